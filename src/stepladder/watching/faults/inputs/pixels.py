"""Images whose axes were exchanged by a view."""

from __future__ import annotations

from statistics import mean

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.inputs import PixelsSeen
from stepladder.watching.seen.seen import Seen

_MIN_LOOKS = 4  # batches
_MIN_VALUES = 8000
_ALIKE = 0.05  # correlation of neighbours
_LOST = 0.6  # of it, at most, that is left
_FEW = 0.75  # of the batches agree


def channel_order(seen: Seen) -> Answer:
    """Compares neighbours in a model's images with those in (height, width, channels) order.

    A row of the images then ends within a row of pixels, and the next one continues there: no
    texture does that.
    """
    looked = [
        one for one in seen.pixels if len(one.downs) >= _MIN_LOOKS and one.num_values >= _MIN_VALUES
    ]
    if not looked:
        return Unseen("no convolution learned from several batches of images with three channels")
    for one in looked:
        if _is_scrambled(one):
            height, width = one.size
            return Found(
                evidence=f"neighbours in a column of the images that {one.built} learns from "
                f"correlate by {mean(one.downs):.2f}; the same values, read as ({height}, {width}, "
                f"3), correlate by {mean(one.pixel_downs):.2f}: they are in the order (height, "
                "width, channels), and view or reshape mixed pixels and channels",
                fix=f"Permute the axes: images.view(-1, {height}, {width}, 3).permute(0, 3, 1, 2).",
                where=one.where,
                numbers={
                    "down": mean(one.downs),
                    "pixel_down": mean(one.pixel_downs),
                    "pixel_right": mean(one.pixel_rights),
                },
            )
    return Sound("neighbours in images are alike, or no order of the axes makes them so")


def _is_scrambled(one: PixelsSeen) -> bool:
    right, down = mean(one.pixel_rights), mean(one.pixel_downs)
    within, between = mean(one.withins), mean(one.betweens)
    agreeing = [
        a < b and c > d
        for a, b, c, d in zip(one.downs, one.pixel_downs, one.withins, one.betweens, strict=True)
    ]
    return (
        min(right, down) >= _ALIKE
        and mean(one.downs) <= _LOST * down
        and within >= _LOST * right
        and between <= _LOST * within
        and sum(agreeing) >= _FEW * len(agreeing)
    )

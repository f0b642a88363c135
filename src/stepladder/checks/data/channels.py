"""Pictures have channels first, by a permute and not by a reshape."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.first_layers import first_layers
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_COLOURS = (1, 3, 4)
_MIN_SIDE = 9
_FAR = 1.3  # neighbours differ this many times as much as values num_channels steps away
_SAME_FRAC = 0.9  # of the examples must show it
_LEAST_PICTURES = 12
_SURE = 4.0  # standard errors over pictures, for each of four differences


_FIX = "Move channels first with permute(0, 3, 1, 2); reshape and view do not reorder the values."


def channels(job: CheckedJob) -> Answer:
    """Check the input shape of the first convolution, and how neighbouring values differ."""
    layers = first_layers(job, Split.TRAIN)
    first = layers[0] if layers else None
    if first is None or first.given is None or first.given.dim() != 4:
        return not_applicable("the inputs of the first layer are not pictures")
    if not isinstance(first.layer, nn.Conv2d):
        return not_applicable("the first layer is not a convolution")
    x = first.given.float()
    shape = "x".join(str(length) for length in x.shape[1:])
    if _is_channels_last(x):
        return found(
            "channel_order",
            f"the input of the first convolution is {shape}, which looks like channels last: it "
            f"treats the {x.shape[1]} rows of a picture as channels",
            fix="Move the channels to the front: inputs.permute(0, 3, 1, 2). (reshape and view "
            "would mix up the pixels.)",
        )
    return _interleaved(x, shape) or passed(
        f"the input of the first convolution is {shape}, channels first"
    )


def _interleaved(x: Tensor, shape: str) -> Answer | None:
    """Find channels that are interleaved within one channel."""
    num = x.shape[1]
    if num < 3 or min(x.shape[2:]) < max(_MIN_SIDE, 2 * num + 2):
        return None
    least = _combed(x, num)
    if least > _SURE:
        return found(
            "channel_order",
            f"in {len(x)} pictures, values {num} and {2 * num} positions apart are more similar "
            f"than adjacent ones, by {least:.0f} standard errors: the values of {num} channels "
            "alternate within one channel, as after reshape or view from channels last",
            fix=_FIX,
            standard_errors=least,
        )
    if num != 3:
        return None
    ratio, share = _striped(x)
    if share >= _SAME_FRAC and ratio > _FAR:
        return found(
            "channel_order",
            f"in {percent(share, 0)} of {len(x)} pictures, adjacent values in a row differ "
            f"{ratio:.1f} times as much as values three positions apart: red, green and blue "
            "alternate within one channel, as after reshape or view from channels last",
            fix=_FIX,
            ratio=ratio,
        )
    return passed(
        f"the input of the first convolution is {shape}, channels first; adjacent values are "
        "similar",
        ratio=ratio,
    )


def _is_channels_last(x: Tensor) -> bool:
    rows, height, colours = x.shape[1:]
    return colours in _COLOURS and rows == height and rows >= _MIN_SIDE


def _combed(x: Tensor, num: int) -> float:
    """Return how surely values are most alike at distances of num and 2 * num.

    Channels-last pixels that are read as channels first repeat with this period along rows, and
    along columns too. Noise adds the same amount to the differences at all distances. A texture
    that repeats by chance does not do so in all pictures, in both directions and at both distances.

    Returns:
        The smallest of four means over pictures, in standard errors.

    Shapes: x (n, num, h, w).
    """
    if len(x) < _LEAST_PICTURES:
        return 0.0
    x = x.double()
    size = x.flatten(1).var(dim=1).clamp_min(1e-24)  # (n,)
    found = []
    for at in (x, x.transpose(2, 3)):
        apart = {
            step: (at[..., step:] - at[..., :-step]).square().mean(dim=(1, 2, 3)) / size
            for one in (num, 2 * num)
            for step in (one - 1, one, one + 1)
        }
        for step in (num, 2 * num):
            nearer = (apart[step - 1] + apart[step + 1]) / 2 - apart[step]
            found.append(float(nearer.mean() / (nearer.std() / len(x) ** 0.5).clamp_min(1e-12)))
    return min(found)


def _striped(x: Tensor) -> tuple[float, float]:
    """Compare differences one step apart with differences three steps apart along rows.

    In a picture, closer pixels are more alike. Channels-last pixels that are read as channels first
    repeat every three values.

    Returns:
        The median ratio of the differences over pictures, and the fraction of pictures in which
        it is above the limit.
    """
    one = (x[..., 1:-2] - x[..., :-3]).abs().mean(dim=(1, 2, 3))
    three = (x[..., 3:] - x[..., :-3]).abs().mean(dim=(1, 2, 3))
    ratios = one / three.clamp_min(1e-12)
    ratios = torch.where(one > 0, ratios, torch.ones_like(ratios))
    return float(ratios.median()), float((ratios > _FAR).float().mean())


def broken() -> Example:
    """Channels-last photographs that a view gives the shape of channels first."""

    class Viewed(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            smooth = nn.functional.avg_pool2d(pictures, 3, stride=1, padding=1)
            colours = torch.tensor([-1.0, 0.2, 1.0]).view(1, 3, 1, 1)
            pixels = (smooth + colours).permute(0, 2, 3, 1).contiguous()  # (n, h, w, c)
            return labelled(pixels.view(pictures.shape), numbers)

    return Example(task=Viewed())


CHECK = Check(
    name="channels",
    reason="A convolution that treats rows as channels, or colours as neighbours, learns badly "
    "without any error.",
    source="PyTorch documentation, Conv2d: (n, c, h, w); numbers measured on photographs",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("channel_order",),
    run=channels,
    broken=broken,
)

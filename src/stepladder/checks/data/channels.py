"""Pictures lie as convolutions read them: channels first, and not merely reshaped to look so."""

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
_FAR = 1.3  # neighbours differ so many times as much as numbers one picture's channels apart
_SAME_FRAC = 0.9  # of the examples that must show it
_LEAST_PICTURES = 12
_SURE = 4.0  # standard errors over pictures, of each of four differences


_FIX = (
    "Put channels first by permute(0, 3, 1, 2): reshape and view leave numbers in their old order."
)


def channels(job: CheckedJob) -> Answer:
    """Look at the shape of what the first convolution is given, and at neighbours in it."""
    layers = first_layers(job, Split.TRAIN)
    first = layers[0] if layers else None
    if first is None or first.given is None or first.given.dim() != 4:
        return not_applicable("the first layer is given no pictures")
    if not isinstance(first.layer, nn.Conv2d):
        return not_applicable("the first layer is no convolution")
    x = first.given.float()
    shape = "x".join(str(length) for length in x.shape[1:])
    if _is_channels_last(x):
        return found(
            "channel_order",
            f"the first convolution is given {shape}: it takes the {x.shape[1]} rows of a picture "
            f"for channels and slides over {x.shape[3]} colours",
            fix="Put channels first: inputs.permute(0, 3, 1, 2), not reshape or view.",
        )
    return _interleaved(x, shape) or passed(
        f"the first convolution is given {shape}, channels first"
    )


def _interleaved(x: Tensor, shape: str) -> Answer | None:
    """Tell channels that follow each other where one is read."""
    num = x.shape[1]
    if num < 3 or min(x.shape[2:]) < max(_MIN_SIDE, 2 * num + 2):
        return None
    least = _combed(x, num)
    if least > _SURE:
        return found(
            "channel_order",
            f"along rows and along columns, numbers {num} and {2 * num} apart are more alike than "
            f"those nearer and farther, in {len(x)} pictures alike ({least:.0f} standard errors): "
            f"{num} channels follow each other where one is read",
            fix=_FIX,
            standard_errors=least,
        )
    if num != 3:
        return None
    ratio, share = _striped(x)
    if share >= _SAME_FRAC and ratio > _FAR:
        return found(
            "channel_order",
            f"in {percent(share, 0)} of {len(x)} pictures a number differs {ratio:.1f} times as "
            "much from the next one in its row as from the third after it: three colours follow "
            "each other in a channel",
            fix=_FIX,
            ratio=ratio,
        )
    return passed(
        f"the first convolution is given {shape}, channels first, neighbours alike", ratio=ratio
    )


def _is_channels_last(x: Tensor) -> bool:
    rows, height, colours = x.shape[1:]
    return colours in _COLOURS and rows == height and rows >= _MIN_SIDE


def _combed(x: Tensor, num: int) -> float:
    """Return how surely numbers are most alike in steps of as many as there are channels.

    Pixels that lie channels last and are read channels first repeat so along rows; and as a row of
    the picture fills as many rows of what is read, along columns too. Noise adds as much to the
    differences at all distances, so that it hides nothing; a texture that repeats by chance does
    not do so in all pictures, both ways, at once and twice the distance.

    Returns:
        The least of four means over pictures, in their standard errors.

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
    """Compare steps of one with steps of three along rows.

    In a picture, what is nearer is more alike, and in noise nothing is. Pixels that lie channels
    last and are read channels first repeat every three numbers.

    Returns:
        Median over pictures of the ratio of the differences, and the share of pictures in which
        it is above the limit.
    """
    one = (x[..., 1:-2] - x[..., :-3]).abs().mean(dim=(1, 2, 3))
    three = (x[..., 3:] - x[..., :-3]).abs().mean(dim=(1, 2, 3))
    ratios = one / three.clamp_min(1e-12)
    ratios = torch.where(one > 0, ratios, torch.ones_like(ratios))
    return float(ratios.median()), float((ratios > _FAR).float().mean())


def broken() -> Example:
    """Photographs, channels last, brought to the wanted shape by a view."""

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
    reason="A convolution that takes rows for channels, or colours for neighbours, learns badly "
    "and says nothing.",
    source="PyTorch documentation, Conv2d: (n, c, h, w); numbers measured on photographs",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("channel_order",),
    run=channels,
    broken=broken,
)

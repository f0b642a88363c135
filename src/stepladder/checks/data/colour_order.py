"""Colour channels are in the order of the files: red, green, blue."""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.first_layers import few_examples, first_layers, learnt_norm
from stepladder.checks.evidence.picture_files import colours, origins
from stepladder.checks.evidence.spread import by_row
from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split, WeightsSource
from stepladder.models.trunk import Trunk
from stepladder.records.findings import Severity
from stepladder.training.output.wording import percent

_READ_S = 0.5  # seconds to read the files of a split
_MIN_TELLING = 10  # pictures that must all agree: by chance, 1 in 1024
_COLOUR_STD = (
    4.0  # of red minus blue over pictures, out of 255: below, they are grey or have one cast
)
_TELLING = 0.3  # of that deviation: how much a picture must differ from the median
_FOLLOWS = 0.8  # of a channel's variance over pictures must be explained by its colour
_CLEAR = 0.25  # of the other order's error
_NEARER = 0.9  # of the distance to the statistics of a pretrained BatchNorm
_FIX = (
    "Convert pictures to RGB where they are read: cv2.cvtColor(image, cv2.COLOR_BGR2RGB), "
    "or image[:, :, ::-1]"
)

Floats = NDArray[np.float64]


class _Order(StrEnum):
    RGB = "rgb"
    BGR = "bgr"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Colours:
    """How the channels of examples follow the colours of their files.

    Attributes:
        order: of the channels; unknown if the pictures do not determine it.
        num_telling: number of pictures that determine it.
        red, blue: fraction of the first channel's variance over pictures explained by the colour.
    """

    order: _Order
    num_telling: int = 0
    red: float = 0.0
    blue: float = 0.0


def colour_order(job: CheckedJob) -> Answer:
    """Compare the colours in the first layer's input with those of the files, over pictures.

    The mean of each channel is fitted to the mean red, green and blue of the files, so
    normalisation makes no difference.
    """
    seen = {split: _look(job, split) for split in (Split.TRAIN, Split.VAL)}
    known = {split: it for split, it in seen.items() if it.order is not _Order.UNKNOWN}
    if not known:
        return not_applicable(
            "the picture files of the examples are not known, or their colours do not show if "
            "channels are RGB or BGR"
        )
    swapped = [split for split, it in known.items() if it.order is _Order.BGR]
    if not swapped:
        words = "; ".join(_words(split, it) for split, it in known.items())
        return passed(f"channels are RGB: {words}", num_telling=_num(known))
    words = "; ".join(_words(split, known[split]) for split in swapped)
    severity, more = _how_bad(job, swapped, is_mixed=len(swapped) < len(known))
    return found(
        "channel_order",
        f"red and blue are swapped in the model's inputs (BGR instead of RGB): {words}{more}",
        fix=f"{_FIX}.",
        severity=severity,
        num_telling=_num({split: known[split] for split in swapped}),
    )


def _num(seen: dict[Split, Colours]) -> int:
    return sum(it.num_telling for it in seen.values())


def _words(split: Split, seen: Colours) -> str:
    return (
        f"in {split.value}, red explains {percent(max(0.0, seen.red), 0)} and blue "
        f"{percent(max(0.0, seen.blue), 0)} of the first channel's variance over pictures, "
        f"and all {seen.num_telling} coloured pictures agree"
    )


def _look(job: CheckedJob, split: Split) -> Colours:
    unknown = Colours(order=_Order.UNKNOWN)
    named = origins(job.source(split)) if by_row(job, split) else []
    batch = few_examples(job, split) if named else None
    if batch is None:
        return unknown
    given = _given(job, split)
    if given is None or given.shape[0] != len(batch.ids):
        return unknown
    channels = given.float().mean(dim=(2, 3)).double().cpu().numpy()  # (n, 3)
    ends = time.perf_counter() + _READ_S
    for origin in named:
        left_s = ends - time.perf_counter()
        seen = compare(channels, colours(origin, batch.ids.tolist(), seconds=left_s))
        if seen.order is not _Order.UNKNOWN:
            return seen
    return unknown


def _given(job: CheckedJob, split: Split) -> Tensor | None:
    """Return the pictures (n, 3, h, w) in the first layer's input, or None."""
    layers = first_layers(job, split)
    given = layers[0].given if layers else None
    return given if given is not None and given.dim() == 4 and given.shape[1] == 3 else None


def compare(channels: Floats, files: Floats) -> Colours:
    """Determine the order of channels from their means and the mean colours of the files.

    Args:
        channels: mean of each channel of each example, after any affine normalisation.
        files: mean red, green and blue; rows of NaN are ignored.

    Shapes: both (n, 3).
    """
    unknown = Colours(order=_Order.UNKNOWN)
    is_known = np.isfinite(files).all(axis=1) & np.isfinite(channels).all(axis=1)
    channels, files = channels[is_known], files[is_known]
    if len(files) < _MIN_TELLING:
        return unknown
    cast = files[:, 0] - files[:, 2]
    if cast.std() < _COLOUR_STD:
        return unknown
    telling = np.abs(cast - np.median(cast)) >= _TELLING * cast.std()
    if telling.sum() < _MIN_TELLING:
        return unknown
    as_rgb, as_bgr = _errors(channels, files), _errors(channels, files[:, ::-1])
    numbers: dict[str, Any] = {
        "num_telling": int(telling.sum()),
        "red": 1 - float(as_rgb[:, 0].mean()),
        "blue": 1 - float(as_bgr[:, 0].mean()),
    }
    for order, ours, other in (
        (_Order.RGB, as_rgb, as_bgr),
        (_Order.BGR, as_bgr, as_rgb),
    ):
        follows = (1 - ours.mean(axis=0) >= _FOLLOWS).all()
        own, others = ours[:, [0, 2]].sum(axis=1), other[:, [0, 2]].sum(axis=1)
        is_clear = own.sum() <= _CLEAR * others.sum()
        if follows and is_clear and (own < others)[telling].all():
            return Colours(order=order, **numbers)
    return Colours(order=_Order.UNKNOWN, **numbers)


def _errors(channels: Floats, files: Floats) -> Floats:
    """Fit a rising line from each colour to its channel, and return the squared residuals.

    Returns:
        Fractions of the channel's variance, (n, 3): their mean over pictures is 1 if the line
        explains nothing.
    """
    x, y = files - files.mean(axis=0), channels - channels.mean(axis=0)
    slope = (x * y).sum(axis=0) / np.maximum((x * x).sum(axis=0), 1e-12)
    left: Floats = (y - np.maximum(slope, 0) * x) ** 2 / np.maximum((y * y).mean(axis=0), 1e-24)
    return left


def _how_bad(
    job: CheckedJob, swapped: list[Split], *, is_mixed: bool
) -> tuple[Severity | None, str]:
    """Return the severity of a swapped order, and why: pretrained weights expect one order."""
    if is_mixed:
        return Severity.ERROR, "; the other split is RGB"
    parts = job.task.split(job.model())
    is_ours = parts is not None and isinstance(parts[0], Trunk)
    if is_ours and job.recipe.model.weights is not WeightsSource.NONE:
        return Severity.ERROR, "; the pretrained weights of the trunk expect RGB"
    nearer = _red_first_is_nearer(job, swapped[0])
    if nearer is None:
        return None, ""
    if nearer < _NEARER:
        return Severity.ERROR, "; the first layer's pretrained BatchNorm expects RGB"
    if nearer > 1 / _NEARER:
        return Severity.INFO, "; the first layer's pretrained BatchNorm expects BGR too"
    return None, ""


def _red_first_is_nearer(job: CheckedJob, split: Split) -> float | None:
    """Compare both orders with the statistics of a pretrained first BatchNorm.

    Returns:
        The distance with channels flipped, relative to that without; None: no such layer.
    """
    layers, given = first_layers(job, split), _given(job, split)
    if given is None or len(layers) < 2 or learnt_norm(layers[1]) is None:
        return None
    modules = dict(job.model().named_modules())  # the recorded pass changed the statistics
    layer, norm = (modules[it.name] for it in layers[:2])
    as_given, turned = (_distance(layer, norm, x) for x in (given, given.flip(1)))
    return turned / max(as_given, 1e-12)


def _distance(layer: nn.Module, norm: Any, pictures: Tensor) -> float:
    """Return the distance of a layer's outputs from running statistics, in standard deviations."""
    with torch.no_grad():
        outputs = layer(pictures).float().transpose(0, 1).flatten(1)  # (channels, n * h * w)
    spread = norm.running_var.clamp_min(1e-12)
    mean = (outputs.mean(dim=1) - norm.running_mean).square() / spread
    width = (outputs.var(dim=1).clamp_min(1e-12) / spread).log().square()
    return float((mean + width).mean())


class _Encoded(Dataset[tuple[Tensor, Tensor]]):
    """PNG pictures, decoded to BGR as by OpenCV."""

    def __init__(self, split: Split) -> None:
        pictures, self.labels = draw(split)
        generator = torch.Generator().manual_seed(5)
        tint = torch.randn(len(pictures), 3, 1, 1, generator=generator)
        pixels = ((pictures + tint) * 30 + 128).clamp(0, 255).to(torch.uint8)
        self.files = [_png(picture) for picture in pixels.permute(0, 2, 3, 1)]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        with Image.open(io.BytesIO(self.files[row])) as image:
            pixels = np.asarray(image)[:, :, ::-1].astype(np.float32)
        return torch.from_numpy(pixels / 42 - 3).permute(2, 0, 1), self.labels[row]


def _png(pixels: Tensor) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


def broken() -> Example:
    """Pictures that are decoded to BGR, as by OpenCV."""

    class BlueFirst(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            return _Encoded(split)

    return Example(task=BlueFirst())


CHECK = Check(
    name="colour_order",
    reason="Pretrained weights mistake red for blue, and weights trained on BGR are wrong wherever "
    "pictures are read as RGB.",
    source="OpenCV documentation, imread: channels in B G R order; sign test, Arbuthnot 1710",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("channel_order",),
    run=colour_order,
    broken=broken,
)

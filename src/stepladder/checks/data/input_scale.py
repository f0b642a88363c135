"""Inputs of the first layer have about mean 0 and deviation 1, or what its weights expect."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.first_layers import (
    CONVOLUTIONS,
    LayerInput,
    first_layers,
    learnt_norm,
)
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity

_FAR_STD = 10.0  # 0..255 has about 60; with 10 a network still learns, slowly
_FAR_MEAN = 10.0  # distance of the mean from 0, in standard deviations
_PICTURE_STD = (
    2.5  # values in 0..1 divided by 0.2, the smallest deviation in use, have at most this
)
_FLAT_STD = 0.02
_DENSE_FRAC = 0.5
_RATIO = 10.0  # of a BatchNorm's variance: domains differ by 3, unnormalised 0..1 by 20
_OTHER_SCALE = 5.0


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Statistics of the first layer's input.

    Attributes:
        channel_mean, channel_std: of each channel, (c,); of each feature for a linear layer.
        dense_frac: fraction of values that are not 0.
    """

    mean: float
    std: float
    low: float
    high: float
    channel_mean: Tensor
    channel_std: Tensor
    dense_frac: float

    def __str__(self) -> str:
        return f"mean {self.mean:.3g}, std {self.std:.3g}, range {self.low:.3g} to {self.high:.3g}"


def input_scale(job: CheckedJob) -> Answer:
    """Check the scale of the input of the first layer with weights."""
    layers = first_layers(job, Split.TRAIN)
    if not layers or layers[0].given is None:
        return not_applicable("the input of the first layer is not floating-point")
    first = layers[0]
    if first.is_norm:
        return not_applicable("the first layer normalises its input itself")
    scale = _measure(first)
    if scale is None:
        return not_applicable("inputs have two values only, such as masks or one-hot codes")
    seen = f"{len(first.given)} training examples" if first.given is not None else None
    answer = _against_weights(layers, scale) or _against_rule(first, scale)
    answer = answer or _against_val(job, scale)
    if answer is None:
        return passed(
            f"input of the first layer: {scale}", coverage=seen, mean=scale.mean, std=scale.std
        )
    fault, evidence, fix, severity = answer
    return found(
        fault,
        evidence,
        fix=fix,
        severity=severity,
        coverage=seen,
        mean=scale.mean,
        std=scale.std,
        low=scale.low,
        high=scale.high,
    )


_Wrong = tuple[str, str, str, Severity]
_NORMALISE = (
    "Subtract the mean of the training data and divide by its standard deviation, per channel."
)
_ONCE = "Normalise once: remove the transform from either the dataset or the model."


def _against_weights(layers: list[LayerInput], scale: _Scale) -> _Wrong | None:
    """Compare with the statistics of a pretrained BatchNorm after the first layer."""
    norm = learnt_norm(layers[1]) if len(layers) > 1 else None
    given = layers[1].given if norm is not None else None
    if norm is None or given is None or norm.running_var is None or not _is_picture(layers[0]):
        return None
    dims = [dim for dim in range(given.dim()) if dim != 1]
    ratio = float((given.float().var(dim=dims) / norm.running_var.clamp_min(1e-12)).median())
    if 1 / _RATIO <= ratio <= _RATIO:
        return None
    seen = (
        f"input of the first layer: {scale}; the variance of its output is {ratio:.3g} times that "
        "in pretraining, so the pretrained weights do not fit these inputs"
    )
    if scale.low >= 0:  # dark pixels are below 0 if a mean was subtracted
        fix = "Normalise with the mean and standard deviation used in pretraining."
        return "unnormalised_input", seen, fix, Severity.ERROR
    if float(scale.channel_std.max()) < _FLAT_STD or scale.std > _PICTURE_STD:
        return "double_normalisation", seen, _ONCE, Severity.ERROR
    return None


def _against_rule(first: LayerInput, scale: _Scale) -> _Wrong | None:
    seen = (
        f"input of the first layer: {scale}; largest std of a channel: "
        f"{float(scale.channel_std.max()):.3g}. Usual are a mean near 0 and a std near 1"
    )
    is_dense = scale.dense_frac > _DENSE_FRAC
    if _is_picture(first):
        if scale.std > _PICTURE_STD:
            is_twice = scale.low < 0 and scale.std < _FAR_STD
            fault = "double_normalisation" if is_twice else "unnormalised_input"
            return fault, seen, _ONCE if is_twice else _NORMALISE, Severity.WARNING
        if is_dense and float(scale.channel_std.max()) < _FLAT_STD:
            return "double_normalisation", seen, _ONCE, Severity.WARNING
    varies = scale.channel_std > 1e-6 * scale.channel_mean.abs().clamp_min(1e-6)
    is_far = (scale.channel_mean.abs() > _FAR_MEAN * scale.channel_std) & varies
    is_far &= scale.channel_mean.abs() > _FAR_MEAN
    is_far |= scale.channel_std > _FAR_STD
    if not is_far.any():
        return None
    worst = int(torch.where(is_far, scale.channel_std + scale.channel_mean.abs(), 0).argmax())
    evidence = (
        f"{int(is_far.sum())} of {len(is_far)} input channels are far from mean 0 and std 1, "
        f"such as channel {worst}: mean {float(scale.channel_mean[worst]):.3g}, std "
        f"{float(scale.channel_std[worst]):.3g}"
    )
    return "unnormalised_input", evidence, _NORMALISE, Severity.WARNING


def _against_val(job: CheckedJob, train: _Scale) -> _Wrong | None:
    """Compare the first layer's input in validation with that in training."""
    layers = first_layers(job, Split.VAL)
    val = _measure(layers[0]) if layers and layers[0].given is not None else None
    if val is None or min(train.std, val.std) <= 0:
        return None
    ratio = val.std / train.std
    is_near = abs(val.mean - train.mean) < _OTHER_SCALE * max(val.std, train.std)
    if 1 / _OTHER_SCALE <= ratio <= _OTHER_SCALE and is_near:
        return None
    evidence = f"input of the first layer in training: {train}; in validation: {val}"
    fix = "Normalise validation inputs in the same way as training inputs."
    return "unnormalised_input", evidence, fix, Severity.WARNING


def _measure(first: LayerInput) -> _Scale | None:
    """Compute statistics; None if inputs have at most two values."""
    assert first.given is not None
    x = first.given.float()
    if x.numel() == 0 or x.layout is not torch.strided:
        return None
    x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    some = x.reshape(-1)[:: max(1, x.numel() // 100_000)]
    if len(torch.unique(some)) <= 2:
        return None
    channel_dim = 1 if isinstance(first.layer, CONVOLUTIONS) and x.dim() > 2 else x.dim() - 1
    dims = [dim for dim in range(x.dim()) if dim != channel_dim]
    return _Scale(
        mean=float(x.mean()),
        std=float(x.std()),
        low=float(x.min()),
        high=float(x.max()),
        channel_mean=x.mean(dim=dims).cpu(),
        channel_std=x.std(dim=dims, unbiased=False).cpu(),
        dense_frac=float((x != 0).float().mean()),
    )


def _is_picture(first: LayerInput) -> bool:
    given = first.given
    is_conv = isinstance(first.layer, nn.Conv2d) and given is not None and given.dim() == 4
    return is_conv and given is not None and given.shape[1] in (1, 3, 4)


def broken() -> Example:
    """Pictures with values of 0 to 255, as in a file."""

    class Raw(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            return labelled((pictures * 40 + 128).clamp(0, 255), numbers)

    return Example(task=Raw())


CHECK = Check(
    name="input_scale",
    reason="Inputs far from mean 0 and standard deviation 1 slow learning down or prevent it, and "
    "pretrained weights are useless on inputs of another scale.",
    source="LeCun et al. 1998, Efficient BackProp, 4.3; thresholds measured on photographs",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("unnormalised_input", "double_normalisation"),
    run=input_scale,
    broken=broken,
)

"""Pictures use more than a small part of the range of their values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.contract import Answer, Check, Tier, found, not_applicable, passed
from stepladder.checks.evidence.first_layers import first_layers
from stepladder.checks.evidence.sample import MAX_EXAMPLES, training_sample
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob
from stepladder.config.choices import Split
from stepladder.records.findings import Severity

_COLOURS = (1, 3, 4)
_WHITE = 255
_LEAST_8_BIT = 64  # 14 bits in 16 become 0 to 63; photographs use 230 to 255
_LEAST_FLOAT = 0.35  # 0..1 is 1 and normalised about 4.5; 12 bits in 16, normalised, are 0.26
_MAX_VALUES = 200_000
_QUANTILES = (0.005, 0.995)
_FIX = (
    "Scale the values so that white is 255 (or 1.0), and then normalise. For a store, prepare it "
    "again: stepladder prepare prints the range in the files and, if it is low, the option to add."
)


def input_range(job: CheckedJob) -> Answer:
    """Check the range of pictures: of the loaded bytes, else of the first layer's input."""
    inputs = _pictures(job)
    if inputs is None:
        return not_applicable("the inputs are not pictures")
    low, high, is_two_valued = _range(inputs)
    if is_two_valued:
        return not_applicable("inputs have two values only, such as masks")
    is_8_bit = inputs.dtype == torch.uint8
    least, of_white = (_LEAST_8_BIT, f" of {_WHITE}") if is_8_bit else (_LEAST_FLOAT, "")
    seen = (
        f"in the centre of {len(inputs)} training pictures, values range from {low:.3g} to "
        f"{high:.3g}"
    )
    if high - low >= least:
        return passed(f"{seen}{of_white}", low=low, high=high)
    usual = f"0 to {_WHITE}" if is_8_bit else "a range of 1 before normalisation, and 4 after it"
    evidence = f"{seen}{of_white}, so the pictures are too dark or have little contrast; usual is "
    return found("range_lost", f"{evidence}{usual}", fix=_FIX, low=low, high=high)


def _pictures(job: CheckedJob) -> Tensor | None:
    """Return pictures as loaded if they are bytes, else as the first convolution gets them."""
    inputs = training_sample(job, MAX_EXAMPLES, is_augmented=False).inputs
    if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 and _are_pictures(inputs):
        return inputs
    layers = first_layers(job, Split.TRAIN)
    if not layers or not isinstance(layers[0].layer, nn.Conv2d):
        return None
    given = layers[0].given
    return given if given is not None and _are_pictures(given) else None


def _are_pictures(inputs: Tensor) -> bool:
    return inputs.dim() == 4 and inputs.shape[1] in _COLOURS and inputs.numel() > 0


def _range(inputs: Tensor) -> tuple[float, float, bool]:
    """Measure the widest channel in the middle of the pictures, where there is no padding.

    Returns:
        Low and high quantile, and whether there are at most two values.
    """
    height, width = inputs.shape[2:]
    middle = inputs[:, :, height // 4 : -(-3 * height // 4), width // 4 : -(-3 * width // 4)]
    widest = (0.0, 0.0)
    for channel in middle.float().unbind(dim=1):
        values = torch.nan_to_num(channel, nan=0.0, posinf=0.0, neginf=0.0).flatten().cpu()
        values = values[:: max(1, values.numel() // _MAX_VALUES)]
        low, high = torch.quantile(values, torch.tensor(_QUANTILES)).tolist()
        if high - low >= widest[1] - widest[0]:
            widest = (low, high)
    return *widest, len(torch.unique(inputs.flatten()[:_MAX_VALUES])) <= 2


def broken() -> Example:
    """Pictures of 12 bits that were read as 16 bits."""

    class Dark(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, ...]]:
            pictures, numbers = draw(split)
            return labelled(pictures * 0.01, numbers)

    return Example(task=Dark())


CHECK = Check(
    name="input_range",
    reason="Pictures that use a small part of the range have lost most of their levels, and "
    "pretrained weights expect the whole range.",
    source="PNG (Third Edition), 11.3.2.7 sBIT; thresholds measured on photographs",
    severity=Severity.WARNING,
    tier=Tier.FAST,
    faults=("range_lost",),
    run=input_range,
    broken=broken,
)

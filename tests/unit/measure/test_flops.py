"""FLOPs and peaks, against numbers that can be checked in the head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.config.choices import Precision
from stepladder.measure.flops import (
    count_flops,
    measure_peaks,
    model_flops_utilisation,
)


def test_a_linear_layer_takes_two_flops_for_each_weight_and_example() -> None:
    layer, x = nn.Linear(10, 7, bias=False), torch.ones(5, 10)
    assert count_flops(lambda: layer(x)) == 2 * 10 * 7 * 5


def test_a_convolution_takes_two_flops_for_each_weight_and_place() -> None:
    layer, x = nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.ones(2, 3, 8, 8)
    assert count_flops(lambda: layer(x)) == 2 * (3 * 4 * 9) * 8 * 8 * 2


def test_utilisation_is_flops_over_what_the_time_allows() -> None:
    assert model_flops_utilisation(30, 2, peak_flops_per_s=60) == 0.25


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_peaks_are_measured_in_each_precision(precision: Precision) -> None:
    peaks = measure_peaks(torch.device("cpu"), precision, budget_s=0.0)
    assert peaks.flops_per_s > 0
    assert peaks.bandwidth_bytes_per_s > 0

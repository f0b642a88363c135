"""FLOPs and peaks, compared with numbers that are easy to verify."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stepladder.config.choices import Precision
from stepladder.measuring.model.flops import (
    count_flops,
    count_flops_by_operation,
    measure_peaks,
    products_in_tf32,
    runs_in_tf32,
)


def test_a_linear_layer_takes_two_flops_for_each_weight_and_example() -> None:
    layer, x = nn.Linear(10, 7, bias=False), torch.ones(5, 10)
    assert count_flops(lambda: layer(x)) == 2 * 10 * 7 * 5


def test_a_convolution_takes_two_flops_for_each_weight_and_place() -> None:
    layer, x = nn.Conv2d(3, 4, 3, padding=1, bias=False), torch.ones(2, 3, 8, 8)
    assert count_flops(lambda: layer(x)) == 2 * (3 * 4 * 9) * 8 * 8 * 2


def test_flops_are_distinguished_by_their_operation() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.Flatten(), nn.Linear(144, 5, bias=False))
    found = count_flops_by_operation(lambda: net(torch.ones(2, 3, 8, 8)))
    of_conv = sum(flops for name, flops in found.items() if "conv" in name)
    assert of_conv == 2 * (3 * 4 * 9) * 6 * 6 * 2
    assert sum(found.values()) - of_conv == 2 * 144 * 5 * 2


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_peaks_are_measured_in_each_precision(precision: Precision) -> None:
    peaks = measure_peaks(torch.device("cpu"), precision, has_conv=True, budget_s=0.0)
    assert peaks.flops_per_s > 0
    assert peaks.bandwidth_bytes_per_s > 0


@pytest.mark.parametrize(
    ("precision", "has_conv", "cudnn", "matmul", "expected"),
    [
        (Precision.FP32, True, True, False, True),  # as torch sets them by default
        (Precision.FP32, False, True, False, False),
        (Precision.FP32, True, False, True, False),
        (Precision.FP32, False, False, True, True),
        (Precision.BF16, True, True, True, False),
        (Precision.FP16_MASTER, True, True, True, False),
    ],
)
def test_the_peak_is_in_tf32_where_the_models_operations_are(
    precision: Precision, has_conv: bool, cudnn: bool, matmul: bool, expected: bool
) -> None:
    found = runs_in_tf32(precision, has_conv=has_conv, cudnn=cudnn, matmul=matmul)
    assert found is expected


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
def test_tf32_is_set_for_the_products_alone(before: str, is_on: bool) -> None:
    matmul = torch.backends.cuda.matmul
    asked = matmul.fp32_precision
    try:
        matmul.fp32_precision = before
        with products_in_tf32(is_on):
            assert (matmul.fp32_precision == "tf32") is is_on
        assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = asked
    assert torch.get_float32_matmul_precision() == "highest"

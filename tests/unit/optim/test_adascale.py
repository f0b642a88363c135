"""AdaScale's gain: its limits, its estimate, and its state."""

from __future__ import annotations

import json

import pytest
import torch

from stepladder.optim.adascale import AdaScale


def observed(gain: AdaScale, parts: torch.Tensor, sizes: list[int]) -> None:
    """Observe the mean gradients of parts, a row each."""
    num = sum(sizes)
    shares = torch.tensor(sizes) / num
    whole = (shares[:, None] * parts).sum(0)
    gain.observe(
        parts_sq=float((shares * parts.square().sum(1)).sum()),
        whole_sq=float(whole.square().sum()),
        num_parts=len(sizes),
        num=num,
    )


def test_equal_gradients_gain_nothing_and_opposite_ones_all() -> None:
    alike, opposite = AdaScale(batch=64, base=16), AdaScale(batch=64, base=16)
    observed(alike, torch.ones(4, 10), [16] * 4)
    assert alike.value == pytest.approx(1)
    observed(opposite, torch.tensor([[1.0], [-1.0], [1.0], [-1.0]]), [16] * 4)
    assert opposite.value == pytest.approx(4)


def test_a_smaller_batch_is_worth_less() -> None:
    noisy, sure = AdaScale(batch=8, base=16), AdaScale(batch=8, base=16)
    observed(noisy, torch.tensor([[1.0], [-1.0]]), [4, 4])
    observed(sure, torch.ones(2, 3), [4, 4])
    assert noisy.value == pytest.approx(0.5)
    assert sure.value == pytest.approx(1)


def test_one_step_is_the_formula_of_the_paper() -> None:
    """With S parts of the base batch: (s2 + m2) / (s2 / S + m2), s2 and m2 as in section 3.2."""
    parts = torch.tensor([[3.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
    gain = AdaScale(batch=48, base=16)
    observed(gain, parts, [16] * 3)
    mean = parts.mean(0)
    noise = (parts - mean).square().sum() / 2
    signal = mean.square().sum() - noise / 3
    assert gain.value == pytest.approx(float((noise + signal) / (noise / 3 + signal)))


@pytest.mark.parametrize("sizes", [[32] * 4, [64, 64], [10, 40, 70, 8]])
def test_it_finds_the_gain_of_known_gradients_whatever_the_parts(sizes: list[int]) -> None:
    """Examples with mean G and covariance C: tr(C) = 50 x 4 and |G|^2 = 50 x 0.09."""
    gain, generator = AdaScale(batch=128, base=32), torch.Generator().manual_seed(0)
    for _ in range(400):
        examples = 0.3 + 2 * torch.randn(sum(sizes), 50, generator=generator)
        parts = torch.stack([part.mean(0) for part in examples.split(sizes)])
        observed(gain, parts, sizes)
    noise, signal = 200.0, 4.5
    assert gain.value == pytest.approx((noise / 32 + signal) / (noise / 128 + signal), rel=0.03)


def test_what_says_nothing_is_left_out() -> None:
    gain = AdaScale(batch=64, base=16)
    observed(gain, torch.ones(1, 3), [64])
    gain.observe(parts_sq=float("nan"), whole_sq=1.0, num_parts=4, num=64)
    gain.observe(parts_sq=float("inf"), whole_sq=1.0, num_parts=4, num=64)
    gain.observe(parts_sq=0.0, whole_sq=0.0, num_parts=4, num=64)
    assert gain.value == 1


def test_means_continue_where_they_were_saved() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [1 + torch.randn(4, 6, generator=generator) for _ in range(6)]
    whole, first, second = (AdaScale(batch=64, base=16) for _ in range(3))
    for parts in steps:
        observed(whole, parts, [16] * 4)
    for parts in steps[:3]:
        observed(first, parts, [16] * 4)
    second.restore(json.loads(json.dumps(first.state())))
    assert second.value == first.value
    for parts in steps[3:]:
        observed(second, parts, [16] * 4)
    assert second.value == whole.value

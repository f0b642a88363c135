from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepladder.data.augment.draws import (
    Purpose,
    draw_bits,
    draw_integers,
    draw_symmetric_beta,
    draw_uniform,
)

IDS = np.arange(20_000)
seeds = st.integers(0, 2**64 - 1)
ids = st.lists(st.integers(0, 2**62), min_size=1, max_size=40, unique=True)


def test_golden_vectors() -> None:
    first = draw_bits([0, 1, 2**40], seed=0, epoch=0, purpose=Purpose.CROP)
    assert first[:, 0].tolist() == [0x3CEEA767ACC0E20D, 0x302BB1D673A33275, 0xC2CDD7883991A62E]
    row = draw_bits([7], seed=42, epoch=3, purpose=Purpose.FLIP, num=3)
    assert row[0].tolist() == [0x133A3AD67BC2387A, 0x13724B3D7B6A730A, 0x739E858E6DD9CBBE]


def test_purposes_keep_their_numbers() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "CROP": 1,
        "FLIP": 2,
        "RANDAUGMENT_OP": 3,
        "RANDAUGMENT_SIGN": 4,
        "MIXUP_SHARE": 5,
        "MIXUP_PARTNER": 6,
    }


def plain_bits(sample: int, seed: int, epoch: int, purpose: int, idx: int) -> int:
    """The same function with Python integers."""
    mask, state = 2**64 - 1, 0
    for word in (seed, epoch, purpose, sample, idx):
        x = ((state ^ (word & mask)) + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        state = x ^ (x >> 31)
    return state


@given(ids=ids, seed=seeds, epoch=st.integers(0, 10**6), purpose=st.sampled_from(Purpose))
def test_agrees_with_plain_integers(
    ids: list[int], seed: int, epoch: int, purpose: Purpose
) -> None:
    bits = draw_bits(ids, seed=seed, epoch=epoch, purpose=purpose, num=2)
    for row, sample in zip(bits.tolist(), ids, strict=True):
        assert row == [plain_bits(sample, seed, epoch, purpose, idx) for idx in (0, 1)]


@settings(max_examples=30)
@given(ids=ids, seed=seeds, epoch=st.integers(0, 1000), data=st.data())
def test_a_sample_draws_the_same_in_any_batch(
    ids: list[int], seed: int, epoch: int, data: st.DataObject
) -> None:
    subset = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=10))
    whole = draw_uniform(ids, seed=seed, epoch=epoch, purpose=Purpose.CROP, num=4)
    part = draw_uniform(subset, seed=seed, epoch=epoch, purpose=Purpose.CROP, num=4)
    rows = [ids.index(sample) for sample in subset]
    assert np.array_equal(part, whole[rows])


def test_uniform_numbers_are_uniform_and_uncorrelated() -> None:
    options = {"epoch": 0, "purpose": Purpose.CROP}
    u = draw_uniform(IDS, seed=1, num=2, **options)
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    expected = u.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi-square, 63 dof, p < 1e-5
    others = (
        u[:, 1],
        np.roll(u[:, 0], 1),
        draw_uniform(IDS, seed=2, **options)[:, 0],
        draw_uniform(IDS, seed=1, epoch=1, purpose=Purpose.CROP)[:, 0],
        draw_uniform(IDS, seed=1, epoch=0, purpose=Purpose.FLIP)[:, 0],
    )
    for other in others:
        assert abs(np.corrcoef(u[:, 0], other)[0, 1]) < 4.5 / np.sqrt(len(IDS))


def test_integers_cover_their_range_evenly() -> None:
    drawn = draw_integers(IDS, below=14, seed=0, epoch=0, purpose=Purpose.RANDAUGMENT_OP)
    counts = np.bincount(drawn[:, 0], minlength=14)
    assert len(counts) == 14
    assert abs(counts - len(IDS) / 14).max() < 5 * np.sqrt(len(IDS) / 14)


@pytest.mark.parametrize("alpha", [0.01, 0.2, 0.5, 1.0, 8.0])
def test_beta_has_its_moments(alpha: float) -> None:
    x = draw_symmetric_beta(IDS, alpha=alpha, seed=0, epoch=0, purpose=Purpose.MIXUP_SHARE)
    centred = x - 0.5
    variance, fourth = 1 / (4 * (2 * alpha + 1)), 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    standard_error = np.sqrt((fourth - variance**2) / len(x))
    assert ((x >= 0) & (x <= 1)).all()
    assert abs(centred.mean()) < 4 * np.sqrt(variance / len(x))
    assert abs((centred**2).mean() - variance) < 4 * standard_error + 1e-12
    assert abs((centred**4).mean() - fourth) < 0.03 * fourth


def test_beta_of_one_is_uniform() -> None:
    x = draw_symmetric_beta(IDS, alpha=1.0, seed=3, epoch=0, purpose=Purpose.MIXUP_SHARE)
    gap = np.abs(np.sort(x) - (np.arange(len(x)) + 0.5) / len(x)).max()
    assert gap < 1.95 / np.sqrt(len(x))  # Kolmogorov-Smirnov, p = 0.001

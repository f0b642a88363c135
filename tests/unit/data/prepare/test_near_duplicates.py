"""Shots of one scene are near-duplicates; other pictures are not, however similar their kind."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepladder.data.prepare.near_duplicates import NearCount, count_near, look


def scene(seed: int) -> NDArray[np.float64]:
    """Draw a coarse scene (60, 80, 3), like a blurred photograph of a place."""
    coarse = np.random.default_rng(seed).uniform(0, 255, size=(6, 8, 3))
    return np.kron(coarse, np.ones((10, 10, 1)))


def shot(
    pixels: NDArray[np.float64], *, seed: int, shift: int = 0, gain: float = 1.0
) -> NDArray[np.uint8]:
    """Take one picture: with noise, a small camera shift, another exposure."""
    noise = np.random.default_rng(seed).normal(0, 5, size=pixels.shape)
    return np.clip(np.roll(pixels, shift, axis=1) * gain + noise, 0, 255).astype(np.uint8)


def looks(pictures: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    return np.stack([look(picture) for picture in pictures])


TRAIN = looks([shot(scene(seed), seed=seed) for seed in range(200)])


def test_a_second_shot_of_a_scene_is_near() -> None:
    again = looks([shot(scene(seed), seed=900 + seed, shift=1, gain=0.9) for seed in range(50)])
    assert count_near(again, TRAIN) == NearCount(50, 50)


def test_other_scenes_are_not_near() -> None:
    other = looks([shot(scene(seed), seed=seed) for seed in range(500, 600)])
    assert count_near(other, TRAIN) == NearCount(0, 100)


def test_pictures_of_one_kind_are_not_near_for_that_alone() -> None:
    common = scene(0)  # like chest X-rays, which share most of their content
    train = looks([shot(0.8 * common + 0.2 * scene(seed), seed=seed) for seed in range(1, 200)])
    other = looks([shot(0.8 * common + 0.2 * scene(seed), seed=seed) for seed in range(300, 350)])
    assert count_near(other, train).num_near == 0


def test_blank_pictures_are_near_nothing() -> None:
    blank = looks([np.full((40, 40, 3), grey, dtype=np.uint8) for grey in (0, 128, 255)])
    assert count_near(blank, np.concatenate([TRAIN, blank])).num_near == 0


def test_a_bounded_number_of_pairs_is_compared() -> None:
    counted = count_near(TRAIN, TRAIN, max_pairs=50 * len(TRAIN))
    assert counted == NearCount(50, 50)
    assert counted.frac == 1.0


def test_no_pictures_are_no_share() -> None:
    assert count_near(TRAIN[:0], TRAIN).frac == 0.0
    assert count_near(TRAIN, TRAIN[:0]).num_near == 0

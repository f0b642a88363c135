"""A changed photograph is a near-duplicate; another one is not, however similar its kind."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from stepladder.data.decoding.resize import pad_white
from stepladder.data.prepare.near_duplicates import (
    LOOK_LENGTH,
    NearPairs,
    find_near,
    look,
    looks,
    num_compared_of,
    sampled,
)

Pixels = NDArray[np.uint8]


def photograph(seed: int, *, height: int = 60, width: int = 80) -> Pixels:
    """Draw a picture with detail at several scales, as photographs have."""
    random = np.random.default_rng(seed)
    total = np.zeros((height, width, 3))
    for cells, strength in ((3, 60.0), (6, 40.0), (12, 25.0)):
        coarse = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        fine = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
        total += strength * (fine / 128 - 1)
    return (128 + total).clip(0, 255).astype(np.uint8)


def garment(seed: int) -> Pixels:
    """Draw a shirt on white: all have one shape, and prints of their own."""
    y, x = np.mgrid[0:210, 0:210]
    is_body = (abs(x - 105) < 54) & (y > 24) & (y < 186)
    is_sleeve = (abs(x - 105) < 90) & (y > 24) & (y < 78)
    print_ = photograph(seed, height=210, width=210)
    return np.where((is_body | is_sleeve)[..., None], print_, 255).astype(np.uint8)


def all_of(pictures: list[Pixels]) -> NDArray[np.uint8]:
    return np.stack(looks([sampled(picture) for picture in pictures]))


def pairs_of(near: NearPairs) -> list[tuple[int, int]]:
    return list(zip(near.held_out.tolist(), near.train.tolist(), strict=True))


TRAIN = all_of([photograph(seed) for seed in range(200)])
SHIRTS = all_of([garment(seed) for seed in range(60)])


# --- changes of one photograph


def encoded(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=40)
    return np.asarray(Image.open(file))


def resized(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    return np.asarray(Image.fromarray(pixels).resize((width // 2, height // 2)))


def cropped(pixels: Pixels) -> Pixels:
    height, width = pixels.shape[:2]
    return np.ascontiguousarray(pixels[height // 25 :, : width - width // 25])


def darker(pixels: Pixels) -> Pixels:
    return (0.75 * pixels).astype(np.uint8)


def padded(pixels: Pixels) -> Pixels:
    return pad_white(pixels, max(pixels.shape) + 10)


@pytest.mark.parametrize("draw", [photograph, garment])
@pytest.mark.parametrize("change", [encoded, resized, cropped, darker, padded])
def test_a_changed_photograph_is_found_with_its_original(
    change: Callable[[Pixels], Pixels], draw: Callable[[int], Pixels]
) -> None:
    train = TRAIN if draw is photograph else SHIRTS
    again = all_of([change(draw(seed)) for seed in range(30)])
    assert pairs_of(find_near(again, train)) == [(seed, seed) for seed in range(30)]


def test_other_photographs_are_not_near() -> None:
    near = find_near(all_of([photograph(seed) for seed in range(500, 600)]), TRAIN)
    assert (len(near), near.num_compared) == (0, 100)


def test_garments_of_one_shape_on_white_are_not_near() -> None:
    assert len(find_near(all_of([garment(seed) for seed in range(500, 560)]), SHIRTS)) == 0


def test_pictures_of_one_kind_are_not_near_for_that_alone() -> None:
    common = photograph(0).astype(
        np.float64
    )  # like chest X-rays, which share most of their content

    def one(seed: int) -> Pixels:
        return (0.8 * common + 0.2 * photograph(seed)).astype(np.uint8)

    train = all_of([one(seed) for seed in range(1, 200)])
    assert len(find_near(all_of([one(seed) for seed in range(300, 350)]), train)) == 0


def test_blank_pictures_are_near_nothing() -> None:
    blank = all_of([np.full((40, 40, 3), grey, dtype=np.uint8) for grey in (0, 128, 255)])
    assert len(find_near(blank, np.concatenate([TRAIN, blank]))) == 0


def test_padding_does_not_change_a_look() -> None:
    picture = photograph(3)
    assert np.array_equal(look(pad_white(picture, 80)), look(pad_white(picture, 120)))


def test_looks_do_not_depend_on_the_pictures_beside() -> None:
    some = [photograph(1), garment(1), photograph(2, height=50), np.zeros((4, 9, 3), np.uint8)]
    for one, together in zip(some, looks(some), strict=True):
        assert together.shape == (LOOK_LENGTH,)
        assert np.array_equal(look(one), together)


def test_a_bounded_number_of_pairs_is_compared() -> None:
    near = find_near(TRAIN, TRAIN, max_pairs=50 * len(TRAIN))
    assert near.num_compared == num_compared_of(200, 200, max_pairs=50 * 200) == 50
    assert np.array_equal(near.held_out, near.train)
    assert len(near) == 50


def test_without_pictures_there_are_no_pairs() -> None:
    assert find_near(TRAIN[:0], TRAIN).num_compared == 0
    assert len(find_near(TRAIN, TRAIN[:0])) == 0


# --- pictures of kinds with little variety: none is a copy, however similar


def disc(random: np.random.Generator) -> Image.Image:
    """A disc of one colour on a light ground, at any place and of any size."""
    image = Image.new("RGB", (120, 96), tuple(random.integers(200, 236, 3).tolist()))
    radius = random.uniform(14, 30)
    x, y = random.uniform(radius, 120 - radius), random.uniform(radius, 96 - radius)
    box = (x - radius, y - radius, x + radius, y + radius)
    ImageDraw.Draw(image).ellipse(box, fill=(190, 60, 50))
    return noisy(np.asarray(image), random, 5)


def glyph(random: np.random.Generator) -> Image.Image:
    """A digit, shifted and turned."""
    image = Image.new("L", (28, 28), 0)
    at = (7 + int(random.integers(-3, 4)), 1 + int(random.integers(-2, 3)))
    font = ImageFont.load_default(random.uniform(18, 24))
    ImageDraw.Draw(image).text(at, str(random.integers(10)), fill=240, font=font)
    return image.rotate(random.uniform(-14, 14), Image.Resampling.BICUBIC).convert("RGB")


def spectrogram(random: np.random.Generator) -> Image.Image:
    """A few tones that rise or fall."""
    y, x = np.mgrid[0:128, 0:128] / 128
    tone, slope = random.uniform(0.05, 0.15), random.uniform(-0.4, 0.4)
    grey = 50 - 30 * y
    for harmonic in range(1, 6):
        off = y - 1 + harmonic * tone * (1 + slope * x)
        grey += 150 / harmonic**0.5 * np.exp(-((off / 0.012) ** 2) / 2)
    return noisy(grey, random, 5)


def blobs(random: np.random.Generator) -> Image.Image:
    """Bright blobs on a gradient."""
    y, x = np.mgrid[0:96, 0:96] / 96
    grey = 60 + 80 * x + 40 * y
    for _ in range(3):
        at_x, at_y, size = random.uniform(0.1, 0.9), random.uniform(0.1, 0.9), 0.12
        grey += 70 * np.exp(-((x - at_x) ** 2 + (y - at_y) ** 2) / 2 / size**2)
    return noisy(grey, random, 3)


def xray(random: np.random.Generator) -> Image.Image:
    """Two lungs in a body, and a faint spot."""
    y, x = np.mgrid[0:128, 0:128] / 128
    grey = 30 + 120 * np.exp(-((x - 0.5) ** 4 / 0.05 + (y - 0.5) ** 4 / 0.06))
    for at in (0.3, 0.7):
        across, along = (x - at - random.normal(0, 0.015)) / 0.11, (y - 0.5) / 0.28
        grey -= 70 * np.exp(-((across**2 + along**2) ** 2))
    at_x, at_y = random.uniform(0.25, 0.75, 2)
    grey += 20 * np.exp(-((x - at_x) ** 2 + (y - at_y) ** 2) / 2 / 0.05**2)
    return noisy(grey, random, 2)


def noisy(levels: NDArray[Any], random: np.random.Generator, noise: float) -> Image.Image:
    levels = levels + random.normal(0, noise, levels.shape)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert("RGB")


@pytest.mark.parametrize("draw", [disc, glyph, spectrogram, blobs, xray])
def test_pictures_of_a_kind_with_little_variety_are_not_near(
    draw: Callable[[np.random.Generator], Image.Image],
) -> None:
    random = np.random.default_rng(3)
    drawn = all_of([np.asarray(draw(random).resize((96, 96))) for _ in range(150)])
    assert len(find_near(drawn[100:], drawn[:100])) == 0


@pytest.mark.parametrize("change", [resized, darker])
def test_copies_of_such_pictures_are_found_with_the_original(
    change: Callable[[Pixels], Pixels],
) -> None:
    random = np.random.default_rng(3)
    drawn = [np.asarray(blobs(random)) for _ in range(100)]
    near = find_near(all_of([change(picture) for picture in drawn[:20]]), all_of(drawn))
    assert pairs_of(near) == [(place, place) for place in range(20)]


def test_a_few_photographs_are_enough_to_find_a_copy() -> None:
    again = all_of([darker(photograph(seed)) for seed in range(4)])
    assert len(find_near(again, TRAIN[:4])) == 4

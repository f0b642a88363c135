"""Draw pictures of one kind, of which no two are copies, such as shapes, glyphs or spectrograms."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Draw = Callable[[np.random.Generator], Image.Image]
Levels = NDArray[np.float64]


def shapes(random: np.random.Generator) -> Image.Image:
    """Up to three shapes of one class on a flat ground, with noise."""
    kind = int(random.integers(5))
    width, height = (int(side) for side in random.integers(72, 151, 2))
    hue, strength, value = kind / 5, random.uniform(0.7, 0.95), random.uniform(0.55, 0.85)
    red, green, blue = (int(255 * one) for one in colorsys.hsv_to_rgb(hue, strength, value))
    image = Image.new("RGB", (width, height), tuple(random.integers(150, 236, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(1, 4)):
        radius = max(2, int(min(width, height) * random.uniform(0.15, 0.33)))
        x, y = (int(random.uniform(radius / 2, side - radius / 2)) for side in (width, height))
        box = (x - radius, y - radius, x + radius, y + radius)
        fill = (red, green, blue)
        if kind == 0:
            draw.ellipse(box, fill=fill)
        elif kind == 1:
            draw.rectangle(box, fill=fill)
        elif kind == 2:
            draw.polygon([(x, box[1]), (box[0], box[3]), (box[2], box[3])], fill=fill)
        elif kind == 3:
            draw.ellipse(box, outline=fill, width=max(2, radius // 3))
        else:
            draw.line(box, fill=fill, width=max(2, radius // 2))
            draw.line((box[0], box[3], box[2], box[1]), fill=fill, width=max(2, radius // 2))
    return _noisy(np.asarray(image), random, 6)


def discs(random: np.random.Generator) -> Image.Image:
    """One disc or square of one of three colours on grey, without noise."""
    radius = random.uniform(15, 38)
    x, y = random.uniform(radius, 128 - radius, 2)
    image = Image.new("RGB", (128, 128), (240, 240, 240))
    draw = ImageDraw.Draw(image)
    kind = int(random.integers(3))
    add = (draw.ellipse, draw.rectangle, draw.ellipse)[kind]
    fill = ((200, 40, 40), (40, 160, 60), (40, 60, 200))[kind]
    add((x - radius, y - radius, x + radius, y + radius), fill=fill)
    return image


def icons(random: np.random.Generator) -> Image.Image:
    """White shapes on a coloured square with round corners."""
    image = Image.new("RGB", (64, 64), "white")
    draw = ImageDraw.Draw(image)
    base = ((52, 152, 219), (231, 76, 60), (46, 204, 113))[int(random.integers(3))]
    draw.rounded_rectangle((4, 4, 59, 59), 12, fill=base)
    for _ in range(random.integers(1, 4)):
        x, y = random.integers(10, 40, 2).tolist()
        width, height = random.integers(6, 20, 2).tolist()
        add = draw.ellipse if random.random() < 0.5 else draw.rectangle
        add((x, y, x + width, y + height), fill="white")
    return image


def blobs(random: np.random.Generator) -> Image.Image:
    """Two to four bright blobs on a gradient."""
    y, x = _grid(96)
    grey = 60 + 80 * x + 40 * y
    for _ in range(random.integers(2, 5)):
        at_x, at_y = random.uniform(0.1, 0.9, 2)
        size = random.uniform(0.05, 0.18)
        grey += random.uniform(40, 90) * _bump((x - at_x) / size, (y - at_y) / size)
    return _noisy(grey, random, 3)


def glyphs(random: np.random.Generator) -> Image.Image:
    """Digits of one font on black, shifted and turned."""
    image = Image.new("L", (28, 28), 0)
    at = (7 + int(random.integers(-3, 4)), 1 + int(random.integers(-2, 3)))
    text, fill = str(random.integers(10)), int(random.integers(190, 256))
    ImageDraw.Draw(image).text(at, text, fill=fill, font=ImageFont.load_default(22))
    levels = np.asarray(image.rotate(random.uniform(-14, 14)), dtype=np.float64)
    return _image(np.where(levels > 0, levels + random.integers(-15, 16, levels.shape), 0))


def spectrograms(random: np.random.Generator) -> Image.Image:
    """A tone and its harmonics, with a vibrato."""
    y, x = _grid(128)
    tone, slope = random.uniform(0.05, 0.15), random.uniform(-0.1, 0.1)
    depth, rate = random.uniform(0, 0.02), random.uniform(2, 5)
    begin, end = random.uniform(0, 0.3), random.uniform(0.6, 1)
    grey = 50 - 30 * y
    for harmonic in range(1, 7):
        at = 1 - harmonic * (tone * (1 + slope * x) + depth * np.sin(2 * np.pi * rate * x))
        grey += 150 / harmonic**0.5 * _bump((y - at) / 0.008, 0) * ((x > begin) & (x < end))
    return _noisy(grey, random, 6)


def bands(random: np.random.Generator) -> Image.Image:
    """Three broad bands, in the colours of a heat map."""
    y, _ = _grid(128)
    level = np.zeros_like(y)
    for _ in range(3):
        at, width = random.uniform(0.1, 0.9), random.uniform(0.03, 0.1)
        level += random.uniform(0.3, 1) * _bump((y - at) / width, 0)
    level /= level.max()
    red, green, blue = 68 + 185 * level, 1 + 230 * level, 84 + 60 * np.sin(3 * level) - 50 * level
    return _noisy(np.stack([red, green, blue], axis=-1), random, 2)


def xrays(random: np.random.Generator) -> Image.Image:
    """A bright body with two dark lungs, ribs, and up to two faint spots."""
    y, x = _grid(128)
    grey = 30 + 120 * np.exp(-((x - 0.5) ** 4 / 0.05 + (y - 0.5) ** 4 / 0.06))
    for at in (0.3, 0.7):
        across = (x - at - random.normal(0, 0.015)) / (0.11 + random.normal(0, 0.008))
        along = (y - 0.5 - random.normal(0, 0.02)) / (0.28 + random.normal(0, 0.02))
        grey -= 70 * np.exp(-((across**2 + along**2) ** 2))
    grey += 8 * np.sin(2 * np.pi * (8 * y + random.uniform(-0.05, 0.05)))
    for _ in range(random.integers(0, 3)):
        at_x, at_y = random.uniform(0.25, 0.75, 2)
        size = random.uniform(0.02, 0.06)
        grey += random.uniform(10, 30) * _bump((x - at_x) / size, (y - at_y) / size)
    return _noisy(grey, random, 2)


def cells(random: np.random.Generator) -> Image.Image:
    """One to three stained cells with a nucleus on a light ground."""
    image = Image.new("RGB", (128, 128), (235, 215, 225))
    draw = ImageDraw.Draw(image)
    for _ in range(random.integers(1, 4)):
        radius = random.uniform(15, 26)
        x, y = random.uniform(radius, 128 - radius, 2)
        for part, fill in ((radius, (190, 90, 150)), (radius / 2, (110, 40, 120))):
            draw.ellipse((x - part, y - part, x + part, y + part), fill=fill)
    return _noisy(np.asarray(image.filter(ImageFilter.GaussianBlur(1.5))), random, 4)


KINDS: dict[str, Draw] = {
    draw.__name__: draw
    for draw in (shapes, discs, icons, blobs, glyphs, spectrograms, bands, xrays, cells)
}


def _grid(side: int) -> Levels:
    return np.mgrid[0:side, 0:side] / side


def _bump(one: Levels, other: Levels | int) -> Levels:
    bump: Levels = np.exp(-(one**2 + other**2) / 2)
    return bump


def _noisy(levels: NDArray[np.generic], random: np.random.Generator, noise: float) -> Image.Image:
    return _image(levels + random.normal(0, noise, levels.shape))


def _image(levels: Levels) -> Image.Image:
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8)).convert("RGB")

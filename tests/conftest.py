"""What tests of several rooms share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: tests share few cores


def draw_photo(kind: int, idx: int, *, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Draw a picture with structure: a graded background, a shape by kind, a place by idx."""
    width, height = size
    random = np.random.default_rng(1000 * kind + idx)
    down, right = np.mgrid[0:height, 0:width]
    colour = random.integers(40, 200, size=3)
    shade = (down / height + right / width)[..., None] * 60
    noise = random.normal(0, 4, size=(height, width, 3))
    picture = Image.fromarray(np.clip(colour + shade + noise, 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    x, y = (int(value) for value in random.integers(2, 12, size=2))
    ink = tuple(int(value) for value in random.integers(0, 255, size=3))
    box = (x, y, x + width // 2, y + height // 2)
    if kind % 3 == 0:
        pen.ellipse(box, fill=ink)
    elif kind % 3 == 1:
        pen.rectangle(box, fill=ink)
    else:
        pen.polygon([(x, y + height // 2), (x + width // 4, y), box[2:]], fill=ink)
    return picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of three classes with eight JPEG photographs each."""
    root = tmp_path / "photos"
    for kind, name in enumerate(("apple", "bread", "corn")):
        folder = root / name
        folder.mkdir(parents=True)
        for idx in range(8):
            draw_photo(kind, idx).save(folder / f"{name}{idx}.jpg", quality=92)
    return root

"""Pictures drawn from a seed, so that each checkout gets the same files."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import save_file

from stepladder.config.choices import WeightsSource
from stepladder.config.recipe import ModelConfig
from stepladder.models.trunk import build_trunk

SIZES = ((40, 30), (33, 47), (64, 64), (120, 90), (300, 200), (17, 90), (1, 1), (500, 375))
ODD_NAMES = (
    "a b.jpg",
    "Größe ß.jpg",
    "-dash.jpg",
    "quote'\".jpg",
    "comma,semicolon;.jpg",
    "100%25.jpg",
    "#hash?.jpg",
    "猫.jpg",
    "UPPER.JPG",
    "two.dots.jpeg",
    "x" * 120 + ".jpg",
)


TRUNK = "trunk.safetensors"


def write_trunk(folder: Path, name: str) -> Path:
    """Write random weights of a trunk to a file: a head is not trained on weights `none`."""
    path = folder / TRUNK
    config = ModelConfig(name=name, weights=WeightsSource.NONE)
    save_file(build_trunk(config).model.state_dict(), path)
    return path


def draw(idx: int, size: tuple[int, int], label: int = 0) -> Image.Image:
    """Draw coarse colors with some grain; the label shifts the mean, so that it can be learned."""
    random = np.random.default_rng(idx)
    coarse = random.integers(0, 200, size=(6, 6, 3), dtype=np.uint8)
    coarse[..., label % 3] = np.clip(coarse[..., label % 3] + 40, 0, 255)
    whole = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = random.integers(-6, 7, size=whole.shape, dtype=np.int16)
    return Image.fromarray(np.clip(whole + grain, 0, 255).astype(np.uint8))


def write_varied(folder: Path) -> int:
    """Write 61 pictures of many kinds and one broken file, in three class folders."""
    classes = [folder / name for name in ("apples", "pears & plums", "Äpfel")]
    for place in classes:
        place.mkdir(parents=True)
    for idx in range(30):  # JPEGs of several sizes, color modes and encodings
        picture = draw(idx, SIZES[idx % len(SIZES)], idx)
        mode = ("RGB", "L", "CMYK")[idx % 3] if idx % 5 == 0 else "RGB"
        exif = Image.Exif()
        if idx % 4 == 0:
            exif[0x0112] = 1 + idx // 4 % 8  # EXIF orientation
        picture.convert(mode).save(
            classes[idx % 3] / f"{idx:03d}.jpg",
            quality=60 + idx,
            progressive=idx % 7 == 0,
            subsampling=idx % 3,
            exif=exif,
        )
    for idx, name in enumerate(ODD_NAMES, start=100):
        picture = draw(idx, SIZES[idx % len(SIZES)], idx)
        picture.save(classes[idx % 3] / name, "JPEG", quality=85)
    forms = (
        ("png", "RGB"),
        ("png", "RGBA"),
        ("png", "P"),
        ("png", "L"),
        ("png", "1"),
        ("png", "LA"),
        ("png", "I;16"),
        ("bmp", "RGB"),
        ("gif", "P"),
        ("tiff", "RGB"),
        ("webp", "RGB"),
        ("webp", "RGBA"),
        ("png", "RGB"),
        ("png", "RGBA"),
    )
    for idx, (suffix, mode) in enumerate(forms, start=200):
        picture = draw(idx, SIZES[idx % 6], idx)
        if mode == "I;16":
            deep = np.asarray(picture.convert("L"), np.uint16) * 257
            picture = Image.fromarray(deep)
        else:
            picture = picture.convert(mode)
        picture.save(classes[idx % 3] / f"form{idx}.{suffix}")
    for idx in range(4):  # exact duplicates, in the same class and in another
        source = classes[idx % 3] / f"{idx:03d}.jpg"
        shutil.copyfile(source, classes[(idx + idx // 2) % 3] / f"again{idx}.jpg")
    draw(5, SIZES[5], 5).save(classes[2] / "near.jpg", quality=50)  # a near-duplicate
    (classes[0] / "broken.jpg").write_bytes((classes[0] / "003.jpg").read_bytes()[:400])
    return sum(1 for path in folder.rglob("*") if path.is_file())


def write_plain(folder: Path, count: int, *, size: tuple[int, int] = (48, 40)) -> None:
    """Write JPEGs of two distinguishable classes, with a folder for each."""
    for idx in range(count):
        place = folder / ("red", "green")[idx % 2]
        place.mkdir(parents=True, exist_ok=True)
        draw(1000 + idx, size, idx % 2).save(place / f"{idx:04d}.jpg", quality=90)

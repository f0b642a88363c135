"""The photographs that all loaders read: JPEGs of about 400 x 300, and resized ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import decode_picture

LONGER_SIDE = 400
QUALITY, PRESIZED_QUALITY = 85, 90
GRAIN = 2


def make_photographs(sources: list[Path], folder: Path, *, count: int, size: int) -> None:
    """Write photos/ and presized/, numbered JPEGs, unless they exist.

    Photographs are scaled to 400 pixels on the longer side, with a little grain, as upscaled ones
    have less detail than a camera's. If there are too few, they are repeated, cropped and mirrored.
    """
    done = folder / "photographs.json"
    wanted = {"count": count, "size": size, "sources": len(sources)}
    if done.is_file() and json.loads(done.read_text())["wanted"] == wanted:
        return
    if done.is_file():
        raise SystemExit(f"{folder}: holds other photographs; use another --folder")
    for name in ("photos", "presized"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    num_bytes = [0, 0]
    for idx, picture in enumerate(_pictures(sources, count)):
        data = _jpeg(picture, QUALITY)
        (folder / "photos" / f"{idx:05d}.jpg").write_bytes(data)
        square = Image.fromarray(decode_picture(data, size=size, fit=Fit.PAD))
        small = _jpeg(square, PRESIZED_QUALITY)
        (folder / "presized" / f"{idx:05d}.jpg").write_bytes(small)
        num_bytes = [num_bytes[0] + len(data), num_bytes[1] + len(small)]
    means = [round(total / count) for total in num_bytes]
    done.write_text(json.dumps({"wanted": wanted, "mean_bytes": means}))


def _pictures(sources: list[Path], count: int) -> Iterator[Image.Image]:
    stride = max(1, len(sources) // count)
    for idx in range(count):
        turn, at = divmod(idx * stride, len(sources))
        with Image.open(sources[at]) as opened:
            picture = opened.convert("RGB")
        if turn:
            margin = turn % 16
            picture = picture.crop((margin, 0, picture.width, picture.height - margin))
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if turn % 2 else picture
        scale = LONGER_SIDE / max(picture.size)
        sides = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        pixels = np.asarray(picture.resize(sides, Image.Resampling.BICUBIC)).astype(np.int16)
        grain = np.random.default_rng(idx).integers(-GRAIN, GRAIN + 1, pixels.shape)
        yield Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8))


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return file.getvalue()

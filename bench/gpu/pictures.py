"""Create a store of generated pictures with class structure; for timing, photos are not needed."""

from __future__ import annotations

import hashlib
import shutil
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from stepladder.config.choices import Encoding
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.store.manifest import publish
from stepladder.records import Manifest, ShardInfo

NUM_SHARDS = 16
CELLS = 6
"""Side of the grid of colors that defines a class; its pictures are shifted and noisy copies."""


def class_patterns(num_classes: int) -> Tensor:
    """Return the color grid of each class: (C, 3, CELLS, CELLS), 0 to 255."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(num_classes, 3, CELLS, CELLS, generator=generator) * 255


def draw(patterns: Tensor, label: int, idx: int, size: int) -> np.ndarray:
    """Draw a picture of a class: its pattern, shifted, with random light and grain; (h, w, 3)."""
    generator = torch.Generator().manual_seed(idx)
    shift = torch.randint(0, CELLS, (2,), generator=generator).tolist()
    pattern = patterns[label].roll((shift[0] % 2, shift[1] % 2), dims=(1, 2))
    light = 0.6 + 0.6 * torch.rand((), generator=generator)
    cells = pattern * light + 40 * torch.randn(pattern.shape, generator=generator)
    large = F.interpolate(cells[None], size=(size, size), mode="bilinear")[0]
    grain = torch.randint(-12, 13, (1, size, size), generator=generator)
    return (large + grain).clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy()


def rows_of(split: str, count: int, num_classes: int) -> list[tuple[bytes, int, int]]:
    """Return (sha256, label, idx) of a split's pictures in stored order."""
    offset = {"train": 0, "val": 10**7, "test": 2 * 10**7}[split]
    return sorted(
        (hashlib.sha256(f"{split}{idx}".encode()).digest(), idx % num_classes, offset + idx)
        for idx in range(count)
    )


def write_shard(
    prefix: int, *, work: Path, split: str, count: int, num_classes: int, size: int
) -> tuple[ShardInfo, np.ndarray, np.ndarray]:
    """Write the rows whose hash starts with a digit; return the shard and its pixel sums."""
    torch.set_num_threads(1)
    patterns = class_patterns(num_classes)
    sums, squares = np.zeros(3, np.int64), np.zeros(3, np.int64)
    path = work / f"{split}-{prefix:x}.parquet"
    with ShardWriter(path, encoding=Encoding.PIXELS, size=size) as writer:
        for sha256, label, idx in rows_of(split, count, num_classes):
            if sha256[0] * NUM_SHARDS // 256 != prefix:
                continue
            picture = draw(patterns, label, idx, size)
            flat = picture.reshape(-1, 3).astype(np.int64)
            sums += flat.sum(0)
            squares += (flat**2).sum(0)
            name = f"class {label:03d}/{idx}.png"
            writer.add(sha256=sha256, path=name, label=label, picture=picture)
        return writer.close(), sums, squares


def make_store(
    out: Path, num_rows: dict[str, int], *, num_classes: int, size: int, workers: int
) -> None:
    """Write a pixel store of generated pictures, in parallel."""
    work = out.with_name(out.name + ".work")
    shutil.rmtree(work, ignore_errors=True)  # left by a process that was killed
    work.mkdir(parents=True)
    infos: list[ShardInfo] = []
    counts: dict[str, tuple[int, ...]] = {}
    totals = np.zeros((2, 3), np.int64)
    with ProcessPoolExecutor(workers) as pool:
        for split, count in num_rows.items():
            write = partial(
                write_shard, work=work, split=split, count=count, num_classes=num_classes, size=size
            )
            for info, sums, squares in pool.map(write, range(NUM_SHARDS)):
                infos.append(info)
                if split == "train":
                    totals += np.stack([sums, squares])
            labels = [label for _, label, _ in rows_of(split, count, num_classes)]
            counts[split] = tuple(np.bincount(labels, minlength=num_classes).tolist())
    manifest = Manifest(
        encoding=Encoding.PIXELS.value,
        size=size,
        fit="pad",
        classes=tuple(f"class {label:03d}" for label in range(num_classes)),
        class_counts=counts,
        channel_sum=tuple(totals[0].tolist()),
        channel_sq_sum=tuple(totals[1].tolist()),
        num_pixels=num_rows["train"] * size * size,
        shards=tuple(infos),
    )
    publish(work, out, manifest)

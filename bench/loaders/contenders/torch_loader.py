"""PyTorch's DataLoader: np.memmap of pixels, and JPEG files."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageOps

from bench.loaders.contract import (
    BATCH,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
    loader_options,
    workers_settings,
)

PACKAGE = None
WRITER = "torch_loader"
SHARED, PILLOW = "the shared function", "Pillow"


def _files(name: str, kind: Kind, decoder: str) -> Line:
    return Line(
        name=f"DataLoader, files, {name}",
        kind=kind,
        shuffle=Shuffle.GLOBAL,
        settings=(
            *workers_settings(1, 2, 3, decoder=decoder),
            *workers_settings(2, decoder=decoder, prefetch=4),
        ),
        is_same_pixels=decoder == SHARED,
    )


LINES = (
    Line(
        name="DataLoader, np.memmap",
        kind=Kind.PIXELS,
        shuffle=Shuffle.GLOBAL,
        settings=(
            *workers_settings(0, 1, 2, is_batched=False),
            *workers_settings(0, 1, 2, is_batched=True),
        ),
    ),
    _files("simplejpeg", Kind.JPEG, SHARED),
    _files("Pillow", Kind.JPEG, PILLOW),
    _files("simplejpeg", Kind.PRESIZED, SHARED),
)
WRITE_SETTINGS = ({"workers": 2},)


def write(job: Job, setting: Setting) -> None:
    """Write the pixels to one flat file; the JPEG files exist already."""
    folder = job.place("torch_loader")
    folder.mkdir(parents=True, exist_ok=True)
    if job.kind is Kind.PIXELS:
        with (folder / "flat.bin").open("wb") as file:
            for _, data in job.items(threads=setting["workers"]):
                file.write(data)


class Pixels:
    """Rows of a flat file, one by one or all rows of a batch at once."""

    def __init__(self, job: Job) -> None:
        shape = (job.num_pictures, job.size, job.size, 3)
        file = job.place("torch_loader") / "flat.bin"
        self.rows = np.memmap(file, dtype=np.uint8, mode="r", shape=shape)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, idx: int | list[int]) -> tuple[Any, Any]:
        import torch

        return torch.from_numpy(np.array(self.rows[idx])), idx


class Files:
    """JPEG files by number."""

    def __init__(self, job: Job, decoder: str) -> None:
        self.job = job
        self.is_shared = decoder == SHARED

    def __len__(self) -> int:
        return self.job.num_pictures

    def __getitem__(self, idx: int) -> tuple[Any, int]:
        import torch

        path = self.job.photo(idx)
        if self.is_shared:
            return torch.from_numpy(self.job.decode(path.read_bytes())), idx
        with Image.open(path) as opened:
            fitted = ImageOps.contain(
                opened.convert("RGB"), (self.job.size, self.job.size), Image.Resampling.BILINEAR
            )
        square = Image.new("RGB", (self.job.size, self.job.size), "white")
        place = ((self.job.size - fitted.width) // 2, (self.job.size - fitted.height) // 2)
        square.paste(fitted, place)
        return torch.from_numpy(np.array(square)), idx


def open_epochs(job: Job, setting: Setting) -> Epoch:
    from torch.utils.data import BatchSampler, DataLoader, RandomSampler

    options = loader_options(setting)
    if job.kind is not Kind.PIXELS:
        files: Any = Files(job, setting["decoder"])
        loader = DataLoader(files, batch_size=BATCH, shuffle=True, **options)
        return lambda: loader
    pixels: Any = Pixels(job)
    if setting["is_batched"]:
        sampler = BatchSampler(RandomSampler(pixels), BATCH, drop_last=False)
        loader = DataLoader(pixels, batch_size=None, sampler=sampler, **options)
    else:
        loader = DataLoader(pixels, batch_size=BATCH, shuffle=True, **options)
    return lambda: loader

"""FFCV: .beton files, memory-mapped or held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.loaders.contract import BATCH, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = "ffcv"
WRITER = "ffcv_loader"


def _line(name: str, kind: Kind, order: str, shuffle: Shuffle) -> Line:
    settings = tuple(
        {"order": order, "workers": workers, "os_cache": os_cache, "ahead": ahead}
        for workers in (1, 2, 3)
        for os_cache, ahead in ((True, 2), (True, 3), (False, 2))
    )
    return Line(
        name=name,
        kind=kind,
        shuffle=shuffle,
        settings=settings,
        is_same_pixels=kind is Kind.PIXELS,
    )


LINES = (
    _line("FFCV, RANDOM", Kind.PIXELS, "RANDOM", Shuffle.GLOBAL),
    _line("FFCV, QUASI_RANDOM", Kind.PIXELS, "QUASI_RANDOM", Shuffle.SHARDS),
    _line("FFCV, RANDOM", Kind.PRESIZED, "RANDOM", Shuffle.GLOBAL),
)
WRITE_SETTINGS = ({"workers": 2}, {"workers": 1})


class _Pictures:
    """A dataset by index, for FFCV's writer."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __len__(self) -> int:
        return self.job.num_pictures

    def __getitem__(self, idx: int) -> tuple[np.ndarray, int]:
        import torch

        torch.set_num_threads(1)
        return self.job.decode(self.job.photo(idx).read_bytes()), int(idx)


def write(job: Job, setting: Setting) -> None:
    """Write raw pixels, or JPEGs that FFCV encodes at quality 90."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    folder = job.place("ffcv_loader")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "pictures.beton"
    file.unlink(missing_ok=True)
    mode = "raw" if job.kind is Kind.PIXELS else "jpg"
    fields = {"picture": RGBImageField(write_mode=mode, jpeg_quality=90), "number": IntField()}
    writer = DatasetWriter(str(file), fields, num_workers=setting["workers"])
    writer.from_indexed_dataset(_Pictures(job))


def open_epochs(job: Job, setting: Setting) -> Epoch:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    pipelines: dict[str, list[Any]] = {
        "picture": [SimpleRGBImageDecoder(), ToTensor()],
        "number": [IntDecoder(), ToTensor()],
    }
    loader = Loader(
        str(job.place("ffcv_loader") / "pictures.beton"),
        batch_size=BATCH,
        num_workers=setting["workers"],
        os_cache=setting["os_cache"],
        order=OrderOption[setting["order"]],
        batches_ahead=setting["ahead"],
        drop_last=False,
        pipelines=pipelines,
    )
    return lambda: loader

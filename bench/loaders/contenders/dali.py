"""NVIDIA DALI on the CPU: NumPy files, and JPEG files with its own decoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.loaders.contract import BATCH, Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = "nvidia-dali-cuda120"
WRITER = "dali"


def _line(kind: Kind) -> Line:
    settings = tuple({"threads": threads, "queue": queue} for threads in (1, 2) for queue in (2, 4))
    return Line(
        name="DALI, on the CPU",
        kind=kind,
        shuffle=Shuffle.GLOBAL,
        settings=settings,
        is_same_pixels=kind is Kind.PIXELS,
    )


LINES = (_line(Kind.PIXELS), _line(Kind.JPEG))
WRITE_SETTINGS = ({"workers": 2},)


def write(job: Job, setting: Setting) -> None:
    """Write a .npy file per picture; the JPEG files exist already."""
    folder = job.place("dali")
    folder.mkdir(parents=True, exist_ok=True)
    if job.kind is Kind.PIXELS:
        for idx, data in job.items(threads=setting["workers"]):
            np.save(folder / f"{idx:05d}.npy", job.picture(data))


def open_epochs(job: Job, setting: Setting) -> Epoch:
    from nvidia.dali import pipeline_def

    graph = pipeline_def(_pixels if job.kind is Kind.PIXELS else _photographs)
    pipeline = graph(
        job,
        batch_size=BATCH,
        num_threads=setting["threads"],
        device_id=None,
        prefetch_queue_depth=setting["queue"],
    )
    pipeline.build()

    def epoch() -> Batches:
        for _ in range(job.num_pictures // BATCH):
            pictures, numbers = pipeline.run()
            ids = np.array(numbers.as_tensor())  # (BATCH, bytes of a file name), or (BATCH, 1)
            if job.kind is Kind.PIXELS:
                ids = np.array([int(bytes(name[-9:-4])) for name in ids])
            yield np.asarray(pictures.as_tensor()), ids

    return epoch


def _pixels(job: Job) -> Any:
    from nvidia.dali import fn

    files = [str(job.place("dali") / f"{idx:05d}.npy") for idx in range(job.num_pictures)]
    pixels = fn.readers.numpy(files=files, shuffle_after_epoch=True)
    return pixels, fn.get_property(pixels, key="source_info")


def _photographs(job: Job) -> Any:
    from nvidia.dali import fn, types

    numbers = list(range(job.num_pictures))
    files = [str(job.photo(idx)) for idx in numbers]
    data, number = fn.readers.file(files=files, labels=numbers, shuffle_after_epoch=True)
    pixels = fn.resize(
        fn.decoders.image(data, device="cpu", output_type=types.RGB),
        resize_x=job.size,
        resize_y=job.size,
        mode="not_larger",
        interp_type=types.INTERP_LINEAR,
        antialias=True,
    )
    square = (job.size, job.size)
    return fn.crop(pixels, crop=square, out_of_bounds_policy="pad", fill_values=255), number

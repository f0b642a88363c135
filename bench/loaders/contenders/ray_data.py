"""Ray Data: Parquet files through its object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.loaders.contract import (
    BATCH,
    BUFFER,
    Epoch,
    Job,
    Kind,
    Line,
    Setting,
    Shuffle,
)

PACKAGE = "ray"
WRITER = "parquet_files"
LINES = tuple(
    Line(
        name="Ray Data",
        kind=kind,
        shuffle=Shuffle.SHARDS,
        settings=(
            {"is_held": False, "buffer": BUFFER, "prefetch": 2},
            {"is_held": True, "buffer": BUFFER, "prefetch": 2},
            {"is_held": True, "buffer": BUFFER // 2, "prefetch": 1},
        ),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)


def open_epochs(job: Job, setting: Setting) -> Epoch:
    import ray

    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=3 << 30,
        configure_logging=False,
    )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    data = ray.data.read_parquet(str(job.place("parquet_files")), shuffle="files")
    if setting["is_held"] and job.kind is not Kind.PIXELS:
        data = data.materialize()
    data = data.map_batches(_decoder(job), batch_size=BATCH, batch_format="numpy")
    if setting["is_held"] and job.kind is Kind.PIXELS:
        data = data.materialize()

    def epoch() -> Iterator[Any]:
        batches = data.iter_batches(
            batch_size=BATCH,
            batch_format="numpy",
            local_shuffle_buffer_size=setting["buffer"],
            prefetch_batches=setting["prefetch"],
        )
        return ((batch["tensor"], batch["number"]) for batch in batches)

    return epoch


def _decoder(job: Job) -> Any:
    def decode(batch: dict[str, Any]) -> dict[str, Any]:
        pictures = np.stack([job.picture(data) for data in batch["picture"]])
        return {"tensor": pictures, "number": batch["number"]}

    return decode

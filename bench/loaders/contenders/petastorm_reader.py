"""Petastorm: Parquet row groups through make_batch_reader."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from bench.loaders.contract import Batches, Epoch, Job, Kind, Line, Setting, Shuffle

PACKAGE = "petastorm"
WRITER = "parquet_files"
LINES = tuple(
    Line(
        name="Petastorm",
        kind=kind,
        shuffle=Shuffle.SHARDS,
        settings=tuple(
            {"pool": pool, "workers": workers}
            for pool, workers in (("thread", 1), ("thread", 2), ("process", 2))
        ),
    )
    for kind in (Kind.PIXELS, Kind.JPEG)
)


def open_epochs(job: Job, setting: Setting) -> Epoch:
    from petastorm import TransformSpec, make_batch_reader

    seeds = itertools.count()
    shape = (job.size, job.size, 3)
    spec = TransformSpec(_Decode(job), edit_fields=[("picture", np.uint8, shape, False)])

    def epoch() -> Batches:
        seed = next(seeds)
        rng = np.random.default_rng(seed)
        with make_batch_reader(
            f"file://{job.place('parquet_files')}",
            num_epochs=1,
            reader_pool_type=setting["pool"],
            workers_count=setting["workers"],
            results_queue_size=4,
            shuffle_row_groups=True,
            seed=seed,
            transform_spec=spec,
        ) as reader:
            for group in reader:  # a row group is a batch; its rows are shuffled here
                order = rng.permutation(len(group.number))
                yield np.asarray(group.picture)[order], group.number[order]

    return epoch


class _Decode:
    """Decode in the reader's workers, as documented."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, frame: Any) -> Any:
        frame["picture"] = [self.job.picture(data) for data in frame["picture"]]
        return frame

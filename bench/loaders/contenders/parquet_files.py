"""Parquet written by pyarrow, for contenders that stream it. Writes only."""

from __future__ import annotations

import shutil

from bench.loaders.contract import BATCH, Job, Setting

PACKAGE = "pyarrow"
WRITER = "parquet_files"
LINES = ()
NUM_FILES = 12
WRITE_SETTINGS = ({"workers": 2},)


def write(job: Job, setting: Setting) -> None:
    """Write uncompressed, plainly encoded row groups of one batch: the fastest layout to read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = job.place("parquet_files")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    schema = pa.schema([("picture", pa.binary()), ("number", pa.int64())])
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    items = job.items(threads=setting["workers"])
    for part_idx, part in enumerate(job.parts(NUM_FILES)):
        path = folder / f"part-{part_idx:02d}.parquet"
        with pq.ParquetWriter(path, schema, **options) as writer:
            for start in range(0, len(part), BATCH):
                rows = [next(items) for _ in part[start : start + BATCH]]
                columns = [pa.array([data for _, data in rows], pa.binary())]
                columns.append(pa.array([idx for idx, _ in rows], pa.int64()))
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

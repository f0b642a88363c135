"""Object-store sources at 100 ms per request: our file system against pyarrow's S3 client.

    python -m bench.data.object_sources [--rounds 10] [--delay-s 0.1]

Both are read by the same code, in one process and in turn: columns of a table by row group, the
pictures of a Parquet file, and a tar file from start to end. Goal: not slower.
"""

from __future__ import annotations

import argparse
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from bench.loaders.object_store import _served
from bench.measure import ratio, rotated_trials, summary
from bench.rows import write_rows
from stepladder.data.remote.arrow_files import object_filesystem
from stepladder.data.sources.containers.files import SourceFile, file_of
from stepladder.data.sources.containers.parquet import open_parquet
from stepladder.data.tables.footers import RowGroups, read_footer
from stepladder.data.tables.listing import Listing, TableFile

OURS, THEIRS = "ours", "pyarrow's client"
NUM_GROUPS, ROWS_A_GROUP, NUM_COLUMNS = 12, 20_000, 16
READ_COLUMNS = ["c0", "c5", "c10", "c15"]  # no two are adjacent
PICTURE_BYTES, NUM_PICTURES = 60_000, 1000
READING_THREADS = 2


def make(folder: Path) -> None:
    """Write a table, a Parquet file of pictures, and a tar file."""
    rng = np.random.default_rng(0)
    rows = NUM_GROUPS * ROWS_A_GROUP
    columns = {f"c{at}": rng.random(rows) for at in range(NUM_COLUMNS)}
    pq.write_table(
        pa.table(columns), folder / "table.parquet", row_group_size=ROWS_A_GROUP, compression="none"
    )
    pictures = [rng.bytes(PICTURE_BYTES) for _ in range(NUM_PICTURES)]
    made = pa.table({"image": pictures, "label": list(range(NUM_PICTURES))})
    pq.write_table(made, folder / "pictures.parquet", row_group_size=200, compression="none")
    with tarfile.open(folder / "pictures.tar", "w") as tar:
        for row, picture in enumerate(pictures):
            info = tarfile.TarInfo(f"{row}.jpg")
            info.size = len(picture)
            tar.addfile(info, io.BytesIO(picture))


def table_columns(file_system: fs.FileSystem) -> int:
    """Read some columns of all row groups, as the table readers do; return the number of bytes."""
    file = TableFile("table.parquet", "bucket/table.parquet")
    footer, _ = read_footer(file_system, file, "s3://bucket")
    groups = RowGroups(Listing("s3://bucket", file_system, (file,)), [footer])
    with ThreadPoolExecutor(READING_THREADS) as pool:
        tables = pool.map(lambda group: groups.read(0, group, READ_COLUMNS), range(NUM_GROUPS))
        return sum(table.nbytes for table in tables)


def parquet_pictures(file_system: fs.FileSystem) -> int:
    """Read the rows of a Parquet file as prepare does; return the number of bytes."""
    parquet = open_parquet(_file(file_system, "pictures.parquet"))
    return sum(batch.nbytes for batch in parquet.iter_batches(64))


def tar_pictures(file_system: fs.FileSystem) -> int:
    """Read a tar file as prepare does; return the number of bytes."""
    num_bytes = 0
    with _file(file_system, "pictures.tar").open_ahead() as file:
        while chunk := file.read(1 << 16):
            num_bytes += len(chunk)
    return num_bytes


CASES: dict[str, Callable[[fs.FileSystem], int]] = {
    "columns of a table": table_columns,
    "pictures in Parquet": parquet_pictures,
    "a tar": tar_pictures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--delay-s", type=float, default=0.1)
    args = parser.parse_args()
    rows = []
    with _bucket(args.delay_s) as file_systems:
        for case, read in CASES.items():
            contenders = {name: partial(_rate, read, one) for name, one in file_systems.items()}
            for one in contenders.values():
                one()
            figures = rotated_trials(contenders, args.rounds)
            found = ratio(figures[OURS], figures[THEIRS])
            rows.append(
                {
                    "": case,
                    **{f"{name}, MB/s": summary(figures[name])["median"] for name in figures},
                    "ours : pyarrow's": found["median"],
                    "min to max": f"{found['min']:.2f} to {found['max']:.2f}",
                }
            )
    note = f"{args.delay_s * 1000:.0f} ms per request, a server on this machine, n = {args.rounds}."
    write_rows("object_sources", rows, note=note)


@contextmanager
def _bucket(delay_s: float) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder, "bucket")
        bucket.mkdir()
        make(bucket)
        with _served(bucket, delay_s) as endpoint:
            os.environ.update(
                AWS_ENDPOINT_URL=endpoint,
                AWS_ACCESS_KEY_ID="anyone",
                AWS_SECRET_ACCESS_KEY="anything",
                AWS_DEFAULT_REGION="us-east-1",
            )
            theirs = fs.S3FileSystem(
                endpoint_override=endpoint.removeprefix("http://"),
                scheme="http",
                region="us-east-1",
            )
            yield {OURS: object_filesystem(), THEIRS: theirs}


def _file(file_system: fs.FileSystem, name: str) -> SourceFile:
    found = file_of(file_system, "bucket", name)
    assert found is not None
    return found


def _rate(read: Callable[[fs.FileSystem], int], file_system: fs.FileSystem) -> float:
    start_s = time.perf_counter()
    return read(file_system) / (time.perf_counter() - start_s) / 1e6


if __name__ == "__main__":
    main()

"""A store in an object store at 100 ms per request, against the same server without delay.

python -m bench.loaders.object_store URL CACHE     prints one line of JSON
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.loaders.child import PYTHONPATH
from bench.loaders.contract import BATCH
from bench.loaders.reading import Plan, compare, make_formats
from bench.measure import rotated_trials
from bench.rows import write_rows

DELAYS_S = {"no delay": 0.0, "100 ms a request": 0.1}
BASE, SLOW = DELAYS_S
MAX_CACHE_BYTES = 20_000_000_000


def run(args: argparse.Namespace, plan: Plan) -> None:
    """Read an epoch in windowed order with an empty cache, in a fresh process each time."""
    make_formats(plan, missing={})
    bucket = plan.job.place("ours")
    with contextlib.ExitStack() as stack:
        trials = {
            name: partial(_trial, stack.enter_context(_served(bucket, delay_s)))
            for name, delay_s in DELAYS_S.items()
        }
        figures = rotated_trials(trials, args.rounds)
    found = compare(figures, ours=SLOW)
    rows = []
    for name, entry in found.items():
        per_s, ratio = entry["per_s"], entry.get("ours_faster_by")
        rows.append(
            {
                "": name,
                "pictures/s": f"{per_s['median']:,.0f}",
                "min to max": f"{per_s['min']:,.0f} to {per_s['max']:,.0f}",
                "100 ms : no delay": f"{ratio['median']:.2f}" if ratio else "",
                "at least (95 %)": f"{entry['lower_95']:.2f}" if "lower_95" in entry else "",
            }
        )
    note = (
        f"{plan.job.num_pictures} pictures of pixels at {plan.job.size} from an object store on "
        "this machine, windowed order, empty cache, from opening the store to the last batch, "
        f"n = {args.rounds}."
    )
    write_rows(args.results or "loaders_object_store", rows, note=note, rounds=[found])


@contextlib.contextmanager
def _served(folder: Path, delay_s: float) -> Iterator[str]:
    words = [
        sys.executable,
        "-m",
        "bench.loaders.slow_bucket",
        str(folder.parent),
        str(delay_s),
    ]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=_environment())
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()


def _environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PYTHONPATH, **more}


def _trial(endpoint: str) -> float:
    cache = tempfile.mkdtemp(prefix="loaders-cache-")
    words = [sys.executable, "-m", "bench.loaders.object_store", "s3://ours/store", cache]
    environment = _environment(
        AWS_ENDPOINT_URL=endpoint,
        AWS_ACCESS_KEY_ID="anyone",
        AWS_SECRET_ACCESS_KEY="anything",
        AWS_DEFAULT_REGION="us-east-1",
    )
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(cache)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return float(json.loads(done.stdout)["per_s"])


def read(url: str, cache: Path) -> dict[str, Any]:
    """Read one epoch."""
    import boto3  # noqa: F401 - an import like any other: before the clock starts

    from stepladder.config.choices import OrderMode, Split
    from stepladder.data.reading.reader import Reader
    from stepladder.data.remote.remote_store import open_shard_files
    from stepladder.data.store.store import Store

    start_s = time.perf_counter()
    files = open_shard_files(Path(url), cache_dir=cache, max_cache_bytes=MAX_CACHE_BYTES)
    store = Store.open(Path(url), files=files)
    split = store.split(Split.TRAIN)
    assert split is not None
    reader = Reader(split, seed=0, global_batch_size=BATCH, mode=OrderMode.WINDOWED)
    num_pictures, first_s = 0, 0.0
    for batch in reader.epoch(0):
        first_s = first_s or time.perf_counter() - start_s
        num_pictures += len(batch.ids)
    seconds = time.perf_counter() - start_s
    store.close()
    return {"per_s": num_pictures / seconds, "seconds": seconds, "first_batch_s": first_s}


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1], Path(sys.argv[2]))))

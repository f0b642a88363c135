"""Resource use of the reader: memory while streaming 20 GB, and time to the first batch.

The stores are made with the store's own writer: one file is copied under many names, as sparse
files, so that 20 GB use little disk space. Each figure is from a fresh process.

    python -m bench.loaders.limits WHAT STORE     prints one line of JSON
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.loaders.child import PYTHONPATH
from bench.loaders.contract import BATCH
from bench.loaders.reading import Plan
from bench.measure import rotated_trials, summary
from bench.pictures import forget_pages
from bench.rows import write_rows
from stepladder.config.choices import Encoding, OrderMode, Split
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.reading.reader import Reader
from stepladder.data.store.index import index_path
from stepladder.data.store.manifest import publish
from stepladder.data.store.store import Store
from stepladder.records import Manifest

LARGE_BYTES = 20_000_000_000
MANY_ROWS = 1_000_000
SMALL_SIZE = 8
MANY_SHARDS = 256
LARGE_SHARD_ROWS = 1024
NUM_SAMPLES = 20
MEMORY = ("RssAnon", "RssShmem")
BLOCK_BYTES = 1 << 20


def make_store(out: Path, *, size: int, num_shards: int, rows_per_shard: int) -> Path:
    """Write a store of black pictures: one shard, and sparse copies of it."""
    if (out / "manifest.json").is_file():
        return out
    work = out.with_name(out.name + ".work")
    work.mkdir(parents=True)
    names = [f"train-{idx:03x}.parquet" for idx in range(num_shards)]
    picture = np.zeros((size, size, 3), dtype=np.uint8)
    with ShardWriter(work / names[0], encoding=Encoding.PIXELS, size=size) as writer:
        for idx in range(rows_per_shard):
            digest = hashlib.sha256(str(idx).encode()).digest()
            writer.add(sha256=digest, path=f"{idx}.jpg", label=0, picture=picture)
        first = writer.close()
    for name in names[1:]:
        copy_with_holes(work / names[0], work / name)
        copy_with_holes(index_path(work / names[0]), index_path(work / name))
    num_rows = num_shards * rows_per_shard
    manifest = Manifest(
        encoding=Encoding.PIXELS.value,
        size=size,
        fit="pad",
        classes=("all",),
        class_counts={"train": (num_rows,)},
        channel_sum=(0, 0, 0),
        channel_sq_sum=(0, 0, 0),
        num_pixels=size * size * num_rows,
        shards=tuple(replace(first, name=name) for name in names),
    )
    publish(work, out, manifest)
    os.sync()
    return out


def copy_with_holes(source: Path, target: Path) -> None:
    """Copy a file sparsely: blocks of zeros use no disk space."""
    zeros = bytes(4096)
    with source.open("rb") as file, target.open("wb") as copy:
        while data := file.read(BLOCK_BYTES):
            for start in range(0, len(data), len(zeros)):
                block = data[start : start + len(zeros)]
                if block == zeros:
                    copy.seek(len(block), os.SEEK_CUR)
                else:
                    copy.write(block)
        copy.truncate(file.tell())


def memory_bytes() -> int:
    """Return this process's anonymous and shared memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(MEMORY))


def stream(store: Path) -> dict[str, Any]:
    """Read an epoch; return memory before the store is opened, and at even steps of the epoch."""
    before = memory_bytes()
    split = Store.open(store).split(Split.TRAIN)
    assert split is not None
    reader = Reader(split, seed=0, global_batch_size=BATCH, mode=OrderMode.GLOBAL)
    every = max(1, reader.steps_per_epoch // NUM_SAMPLES)
    start_s = time.perf_counter()
    samples = [
        memory_bytes() for step, batch in enumerate(reader.epoch(0)) if step % every == every - 1
    ]
    seconds = time.perf_counter() - start_s
    return {"before": before, "samples": samples, "per_s": len(split) / seconds}


def first_batch(store: Path, *, is_resumed: bool) -> dict[str, Any]:
    """Open a store and read one batch, from the start or from the middle of an epoch."""
    start_s = time.perf_counter()
    split = Store.open(store).split(Split.TRAIN)
    assert split is not None
    reader = Reader(split, seed=0, global_batch_size=BATCH, mode=OrderMode.GLOBAL)
    position = reader.num_examples // 2 + 17 if is_resumed else 0
    batches = reader.epoch(3 if is_resumed else 0, position)
    batch = next(batches)
    seconds = time.perf_counter() - start_s
    batches.close()
    assert len(batch.ids) == BATCH
    return {"seconds": seconds}


def torch_alone() -> dict[str, Any]:
    """Return the memory of a process that only imports torch."""
    code = f"import torch\n{MEMORY_CODE}"
    return {"memory": int(_run(["-c", code]))}


MEMORY_CODE = """
lines = open("/proc/self/status").read().splitlines()
names = ("RssAnon", "RssShmem")
print(1024 * sum(int(line.split()[1]) for line in lines if line.startswith(names)))
"""

FIGURES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "stream": stream,
    "first": partial(first_batch, is_resumed=False),
    "resume": partial(first_batch, is_resumed=True),
}


def run(args: argparse.Namespace, plan: Plan) -> None:
    """Create the stores and measure."""
    large_rows = args.large_bytes // (3 * args.size * args.size)
    shards = max(2, round(large_rows / LARGE_SHARD_ROWS))
    folder = plan.job.folder
    large = make_store(
        folder / f"large-{shards}",
        size=args.size,
        num_shards=shards,
        rows_per_shard=LARGE_SHARD_ROWS,
    )
    many = make_store(
        folder / "many",
        size=SMALL_SIZE,
        num_shards=MANY_SHARDS,
        rows_per_shard=-(-MANY_ROWS // MANY_SHARDS),
    )
    rows = [*_memory_rows(large, args.rounds), *_first_rows(many, args.rounds)]
    note = (
        f"Memory is RssAnon + RssShmem of a fresh process, minus that after `import torch` "
        f"alone, while it streams {shards * LARGE_SHARD_ROWS * 3 * args.size**2 / 1e9:.1f} GB. "
        f"First batch: from Store.open, after imports, of {MANY_ROWS:,} rows in {MANY_SHARDS} "
        f"files. n = {args.rounds}."
    )
    write_rows(args.results or "loaders_limits", rows, note=note)


def _memory_rows(store: Path, rounds: int) -> list[dict[str, Any]]:
    alone = [torch_alone()["memory"] for _ in range(rounds)]
    base = summary(alone)["median"]
    passes = [ask("stream", store) for _ in range(rounds)]
    early = [one["samples"][1] - base for one in passes]
    late = [one["samples"][-1] - base for one in passes]
    most = [max(one["samples"]) - base for one in passes]
    rows = [("torch alone", alone), ("above it, a tenth through", early)]
    rows += [("above it, at the end", late), ("above it, at most", most)]
    return [_row(f"memory, MB: {name}", [one / 1e6 for one in values]) for name, values in rows]


def _first_rows(store: Path, rounds: int) -> list[dict[str, Any]]:
    def trial(what: str, is_cold: bool) -> float:
        if is_cold:
            forget_pages(path for path in store.iterdir() if path.is_file())
        return float(ask(what, store)["seconds"]) * 1e3

    ask("first", store)
    names = {"first": "first batch, ms", "resume": "resume in mid epoch, ms"}
    trials = {
        f"{name}: {'cold' if is_cold else 'warm'}": partial(trial, what, is_cold)
        for what, name in names.items()
        for is_cold in (False, True)
    }
    return [_row(name, figures) for name, figures in rotated_trials(trials, rounds).items()]


def _row(name: str, figures: list[float]) -> dict[str, Any]:
    one = summary(figures)
    spread = f"{one['min']:.0f} to {one['max']:.0f}"
    return {"": name, "n": one["n"], "median": f"{one['median']:.0f}", "min to max": spread}


def ask(what: str, store: Path) -> dict[str, Any]:
    """Do one task in a fresh process."""
    answer: dict[str, Any] = json.loads(_run(["-m", "bench.loaders.limits", what, str(store)]))
    return answer


def _run(words: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


if __name__ == "__main__":
    print(json.dumps(FIGURES[sys.argv[1]](Path(sys.argv[2]))))

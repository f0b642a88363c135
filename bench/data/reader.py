"""Time the reader against torch's DataLoader on the same pixels and JPEGs, and measure its memory.

    python -m bench.data.reader [--photos FOLDER] [--rounds 7] [--rows 2048] [--size 224]

Both return shuffled batches of 64, and every batch is touched once per 4 KB. The DataLoader has two
persistent workers, an np.memmap of the same pixels, and the same decoder for JPEGs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench.measure import environment, ratio, rotated_trials, summary, write_results
from stepladder.config.choices import Encoding, Fit, Split, Where
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.reading.reader import Reader
from stepladder.data.store.manifest import publish
from stepladder.data.store.store import Store, StoreSplit
from stepladder.records import Manifest

BATCH = 64
SHARDS = 4


def draw_jpeg(idx: int) -> bytes:
    """Draw a textured picture of 400 x 300 at quality 85: about 35 KB, as a photograph has."""
    random = np.random.default_rng(idx)
    coarse = random.integers(0, 256, size=(10, 13, 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((400, 300), Image.Resampling.BICUBIC))
    grain = random.normal(0, 9, size=(300, 400, 1))
    textured = np.clip(picture + grain, 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(textured).save(file, "JPEG", quality=85)
    return file.getvalue()


def pictures(folder: Path | None, num_rows: int) -> list[bytes]:
    """Return JPEGs from a folder, repeated if there are too few, or draw them."""
    if folder is None:
        return [draw_jpeg(idx % 256) for idx in range(num_rows)]
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in {".jpg", ".jpeg"})
    return [paths[idx % len(paths)].read_bytes() for idx in range(num_rows)]


def write_store(out: Path, jpegs: list[bytes], encoding: Encoding, size: int) -> StoreSplit:
    work = out.with_name(out.name + ".work")
    work.mkdir()
    shards = []
    for shard_idx in range(SHARDS):
        path = work / f"train-{shard_idx:02x}.parquet"
        with ShardWriter(path, encoding=encoding, size=size) as writer:
            for idx in range(shard_idx, len(jpegs), SHARDS):
                data: Any = jpegs[idx]
                if encoding is Encoding.PIXELS:
                    data = decode_picture(data, size=size, fit=Fit.PAD)
                digest = hashlib.sha256(str(idx).encode()).digest()
                writer.add(sha256=digest, path=f"{idx}.jpg", label=0, picture=data)
            shards.append(writer.close())
    manifest = Manifest(
        encoding=encoding.value,
        size=size,
        fit="pad",
        classes=("all",),
        class_counts={"train": (len(jpegs),)},
        channel_sum=(0, 0, 0),
        channel_sq_sum=(0, 0, 0),
        num_pixels=0,
        shards=tuple(shards),
    )
    publish(work, out, manifest)
    split = Store.open(out).split(Split.TRAIN)
    assert split is not None
    return split


class Pixels(Dataset[tuple[torch.Tensor, int]]):
    """Rows of a flat file of pixels."""

    def __init__(self, path: Path, num_rows: int, size: int) -> None:
        self.rows = np.memmap(path, dtype=np.uint8, mode="r", shape=(num_rows, size, size, 3))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(np.array(self.rows[idx])), 0


class Jpegs(Dataset[tuple[torch.Tensor, int]]):
    """JPEG files."""

    def __init__(self, folder: Path, num_rows: int, size: int) -> None:
        self.paths = [folder / f"{idx}.jpg" for idx in range(num_rows)]
        self.size = size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, idx: int) -> tuple[torch.Tensor, int]:
        data = self.paths[idx].read_bytes()
        return torch.from_numpy(decode_picture(data, size=self.size, fit=Fit.PAD)), 0


def rate(batches: Iterable[Any]) -> float:
    """Iterate over batches, touching each page; return pictures per second."""
    start_s = time.perf_counter()
    num_rows = touched = 0
    for batch in batches:
        images = batch[0]
        rows = images.permute(0, 2, 3, 1) if images.shape[1] == 3 else images
        touched += int(rows.reshape(-1)[::4096].sum())
        num_rows += len(images)
    assert touched > 0
    return num_rows / (time.perf_counter() - start_s)


def epochs(reader: Reader) -> Callable[[], float]:
    """Return a function that reads the next epoch; the first one is read here, as a warm-up."""
    counter = iter(range(1, 1 << 30))
    rate(reader.epoch(0))
    return lambda: rate(reader.epoch(next(counter)))


def loader(data: Dataset[Any], num_workers: int) -> Callable[[], float]:
    made = DataLoader(
        data,
        batch_size=BATCH,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    rate(made)
    return lambda: rate(made)


def memcpy_rate(num_rows: int, size: int) -> float:
    """Copy a batch in cache to another buffer: the limit of any reader that fills a buffer."""
    source = np.ones((BATCH, size, size, 3), dtype=np.uint8)
    target = np.empty_like(source)
    start_s = time.perf_counter()
    for _ in range(num_rows // BATCH):
        np.copyto(target, source)
    return num_rows / (time.perf_counter() - start_s)


def streaming_memory(store: Path) -> int:
    """Stream an epoch in a process of its own; return its anonymous and shared memory in bytes."""
    words = [sys.executable, "-m", "bench.data.reader", "--stream", str(store)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout)


def stream(store: Path) -> None:
    split = Store.open(store).split(Split.TRAIN)
    assert split is not None
    torch.set_num_threads(1)
    for _ in Reader(split, seed=0, global_batch_size=BATCH, where=Where.STREAM).epoch(0):
        pass
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    print(kib * 1024)


def measure(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[list[str]]]:
    jpegs = pictures(args.photos, args.rows)
    pixels = write_store(folder / "pixels", jpegs, Encoding.PIXELS, args.size)
    encoded = write_store(folder / "jpegs", jpegs, Encoding.JPEG, args.size)
    flat = np.memmap(
        folder / "flat.bin", dtype=np.uint8, mode="w+", shape=(args.rows, args.size, args.size, 3)
    )
    (folder / "files").mkdir()
    for idx, data in enumerate(jpegs):
        flat[idx] = decode_picture(data, size=args.size, fit=Fit.PAD)
        (folder / "files" / f"{idx}.jpg").write_bytes(data)
    flat.flush()
    raw = Pixels(folder / "flat.bin", args.rows, args.size)
    files = Jpegs(folder / "files", args.rows, args.size)

    def ours(source: StoreSplit, threads: int, where: Where = Where.STREAM) -> Callable[[], float]:
        options: dict[str, Any] = {"threads": threads, "where": where}
        return epochs(Reader(source, seed=0, global_batch_size=BATCH, **options))

    groups = {
        "pixels": {
            "stepladder, 2 threads": ours(pixels, 2),
            "stepladder, 1 thread": ours(pixels, 1),
            "stepladder, in memory": ours(pixels, 1, Where.MEMORY),
            "DataLoader, 2 workers": loader(raw, 2),
            "DataLoader, in process": loader(raw, 0),
            "memcpy, hot": lambda: memcpy_rate(args.rows, args.size),
        },
        "jpegs": {
            "stepladder, 2 threads": ours(encoded, 2),
            "DataLoader, 2 workers": loader(files, 2),
        },
    }
    result: dict[str, Any] = {}
    lines: list[list[str]] = []
    for kind, contenders in groups.items():
        figures = rotated_trials(contenders, args.rounds)
        baseline = figures["DataLoader, 2 workers"]
        for name, rates in figures.items():
            one, share = summary(rates), ratio(rates, baseline)
            result.setdefault(kind, {})[name] = {
                "images_per_s": one,
                "ratio": share,
                "figures": rates,
            }
            spread = f"{one['min']:,.0f} to {one['max']:,.0f}"
            paired = f"{share['median']:.2f} ({share['min']:.2f} to {share['max']:.2f})"
            lines.append([kind, name, f"{one['median']:,.0f}", spread, paired])
    result["memory_bytes"] = measure_memory(folder, jpegs, args.size, args.rounds)
    return result, lines


def measure_memory(
    folder: Path, jpegs: list[bytes], size: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Stream a store and another one four times larger."""
    write_store(folder / "quarter", jpegs[: len(jpegs) // 4], Encoding.PIXELS, size)
    stores = {"a quarter": folder / "quarter", "whole": folder / "pixels"}
    trials = {
        name: (lambda path=path: float(streaming_memory(path))) for name, path in stores.items()
    }
    figures = rotated_trials(trials, rounds)
    return {
        **{name: summary(values) for name, values in figures.items()},
        "ratio": ratio(figures["whole"], figures["a quarter"]),
        "figures": figures,
    }


def memory_line(memory: dict[str, dict[str, Any]]) -> str:
    quarter, whole = (memory[name]["median"] / 1e6 for name in ("a quarter", "whole"))
    share = memory["ratio"]
    return (
        f"Memory (RssAnon + RssShmem) after streaming: {quarter:.0f} MB, and {whole:.0f} MB for a\n"
        f"store four times larger (ratio {share['median']:.3f}, {share['min']:.3f} to "
        f"{share['max']:.3f})."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, help="folder of JPEGs; default: generated ones")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--folder", type=Path, help="folder for the data; default: a temporary one")
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stream:
        stream(args.stream)
        return
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        result, lines = measure(args, Path(name))
    setting = {"rows": args.rows, "size": args.size, "batch": BATCH, "photos": bool(args.photos)}
    head = (
        f"# Reader\n\n{args.rows} pictures at {args.size}, batch {BATCH}, n = {args.rounds} "
        "rounds in rotated order, data warm. Machine and versions: reader.json.\n"
    )
    columns = "| data | reader | images/s, median | min to max | times DataLoader, 2 workers |"
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    memory = memory_line(result["memory_bytes"])
    table = "\n".join([head, columns, "|---|---|---|---|---|", *rows, "", memory, ""])
    write_results("reader", {"environment": environment(), "setting": setting, **result}, table)
    print(table)


if __name__ == "__main__":
    main()

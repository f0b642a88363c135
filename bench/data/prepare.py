"""Speed of preparing a store from large photographs, against recipes that people write.

Goals, for 1600 x 1200 JPEGs on the same two cores: at least 3 times as fast as `convert("RGB")`
followed by `thumbnail(LANCZOS)`, and at least 1.8 times as fast as calling `thumbnail` first, which
lets Pillow decode at a smaller scale. Both recipes pad with white and write raw bytes from two
processes that are started before the clock. Ours is the whole of `prepare`: listing, hashing,
decoding, checksums, near-duplicates, side files, fsync and publishing, in two threads.

The larger the files, the smaller the advantage: entropy decoding of a JPEG takes the same time at
any scale. Raise --quality to see this.

    python -m bench.data.prepare [--photos FOLDER] [--pictures 300] [--rounds 7] [--size 224]
        [--quality 90]

The goals are in wall-clock time. CPU time (user and system) is the same comparison on a busy
machine.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.measure import environment, ratio, rotated_trials, summary, write_results
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare

WIDTH, HEIGHT = 1600, 1200
NUM_WORKERS = 2
OURS = "stepladder prepare"
GOALS = {"convert, then thumbnail": 3.0, "thumbnail first": 1.8}


def make_pictures(folder: Path, photos: Path | None, count: int, *, quality: int = 90) -> float:
    """Write JPEGs of 1600 x 1200 pixels in two class folders; return their mean size in bytes."""
    sources = sorted(photos.rglob("*.jp*g")) if photos else []
    num_bytes = 0
    for idx in range(count):
        picture = enlarge(sources[idx % len(sources)], idx) if sources else draw(idx)
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=quality)
        place = folder / f"class {idx % 2}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{idx:05d}.jpg").write_bytes(buffer.getvalue())
        num_bytes += len(buffer.getvalue())
    return num_bytes / count


def enlarge(path: Path, idx: int) -> Image.Image:
    """Tile a photograph 2 x 2, mirrored and with grain, for more detail per pixel."""
    with Image.open(path) as opened:
        photo = opened.convert("RGB").resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.BICUBIC)
    pixels = np.asarray(photo)
    row = np.concatenate([pixels, pixels[:, ::-1]], axis=1)
    whole = np.concatenate([row, row[::-1]], axis=0).astype(np.int16)
    grain = np.random.default_rng(idx).integers(-2, 3, size=whole.shape, dtype=np.int16)
    return Image.fromarray(np.clip(whole + grain, 0, 255).astype(np.uint8))


def draw(idx: int) -> Image.Image:
    """Draw a texture with detail at every scale, like a photograph."""
    random = np.random.default_rng(idx)
    whole = np.zeros((HEIGHT, WIDTH, 3), dtype=np.float32)
    for cells in (4, 16, 64, 256):
        coarse = random.uniform(0, 255, size=(cells * 3 // 4, cells, 3)).astype(np.uint8)
        layer = Image.fromarray(coarse).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        whole += np.asarray(layer) * (2.0 / cells**0.5)
    return Image.fromarray((whole * (255 / whole.max())).astype(np.uint8))


def convert_then_thumbnail(path: Path, size: int) -> bytes:
    """Resize as most scripts do."""
    picture = Image.open(path).convert("RGB")
    picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    return pad(picture, size)


def thumbnail_first(path: Path, size: int) -> bytes:
    """Resize before converting, which lets Pillow ask libjpeg for a smaller decode."""
    picture = Image.open(path)
    picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    return pad(picture.convert("RGB"), size)


def pad(picture: Image.Image, size: int) -> bytes:
    square = Image.new("RGB", (size, size), "white")
    square.paste(picture, ((size - picture.width) // 2, (size - picture.height) // 2))
    return square.tobytes()


def write_share(task: tuple[Callable[[Path, int], bytes], list[Path], Path, int]) -> float:
    """Resize part of the files into one file of raw bytes, in a worker; return its CPU seconds."""
    shrink, paths, out, size = task
    started_s = time.process_time()
    with out.open("wb") as file:
        for path in paths:
            file.write(shrink(path, size))
    return time.process_time() - started_s


def time_recipe(
    shrink: Callable[[Path, int], bytes], source: Path, out: Path, size: int
) -> tuple[float, float]:
    """Return pictures per second and CPU milliseconds per picture."""
    paths = sorted(source.rglob("*.jpg"))
    shares = [paths[worker::NUM_WORKERS] for worker in range(NUM_WORKERS)]
    # forkserver: a forked process would inherit the locks of this process's threads
    with multiprocessing.get_context("forkserver").Pool(NUM_WORKERS) as pool:
        warm = [(shrink, share[:1], out / f"warm{at}", size) for at, share in enumerate(shares)]
        pool.map(write_share, warm, chunksize=1)
        tasks = [(shrink, share, out / f"raw{at}", size) for at, share in enumerate(shares)]
        started_s = time.perf_counter()
        cpu_s = sum(pool.map(write_share, tasks, chunksize=1))
        return len(paths) / (time.perf_counter() - started_s), 1e3 * cpu_s / len(paths)


def time_prepare(source: Path, out: Path, size: int) -> tuple[float, float]:
    """Return pictures per second and CPU milliseconds per picture."""
    config = PrepareConfig(source=source, out=out / "store", size=size, workers=NUM_WORKERS)
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    result = prepare(config)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - started_cpu_s
    num_done = sum(map(sum, result.manifest.class_counts.values()))
    return num_done / wall_s, 1e3 * cpu_s / num_done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--photos", type=Path, help="folder of photographs to enlarge; default: generated textures"
    )
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--quality", type=int, default=90, help="JPEG quality")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=224)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:NUM_WORKERS])
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "photos"
        mean_bytes = make_pictures(
            source, arguments.photos, arguments.pictures, quality=arguments.quality
        )
        contenders: dict[str, Callable[[Path, Path, int], tuple[float, float]]] = {
            OURS: time_prepare,
            "convert, then thumbnail": partial(time_recipe, convert_then_thumbnail),
            "thumbnail first": partial(time_recipe, thumbnail_first),
        }
        cpu_ms: dict[str, list[float]] = {name: [] for name in contenders}
        out, size = Path(folder) / "out", arguments.size
        time_once(time_prepare, source, out, size, [])  # reads files and imports libraries
        trials = {
            name: partial(time_once, contender, source, out, size, cpu_ms[name])
            for name, contender in contenders.items()
        }
        figures = rotated_trials(trials, arguments.rounds)
    result = {
        "pictures": {
            "count": arguments.pictures,
            "kind": "enlarged photographs" if arguments.photos else "drawn textures",
            "height": HEIGHT,
            "width": WIDTH,
            "quality": arguments.quality,
            "mean_bytes": round(mean_bytes),
        },
        "size": arguments.size,
        "workers": NUM_WORKERS,
        "pictures_per_s": {name: summary(values) for name, values in figures.items()},
        "speedup": {name: ratio(figures[OURS], figures[name]) for name in GOALS},
        "cpu_ms_per_picture": {name: summary(values) for name, values in cpu_ms.items()},
        "cpu_ratio": {name: ratio(cpu_ms[name], cpu_ms[OURS]) for name in GOALS},
        "goals": GOALS,
        "figures": figures,
        "figures_cpu_ms": cpu_ms,
        "environment": environment(),
    }
    table = tabulate(result)
    print(table)
    write_results("prepare", result, table)


def time_once(
    contender: Callable[[Path, Path, int], tuple[float, float]],
    source: Path,
    out: Path,
    size: int,
    cpu_ms: list[float],
) -> float:
    """Run a contender in an empty folder; return pictures per second, and append its CPU time."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    per_s, cpu = contender(source, out, size)
    cpu_ms.append(cpu)
    return per_s


def tabulate(result: dict[str, Any]) -> str:
    """Return the result as Markdown."""
    pictures = result["pictures"]
    lines = [
        f"{pictures['count']} JPEGs of {WIDTH} x {HEIGHT} ({pictures['kind']}, "
        f"quality {pictures['quality']}, {pictures['mean_bytes'] / 1e3:.0f} kB each) to "
        f"{result['size']} pixels, {result['workers']} cores.",
        "",
        "| | n | pictures/s | range | speedup of prepare | range | goal "
        "| CPU ms per picture | times prepare's | range |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, rate in result["pictures_per_s"].items():
        line = f"| {name} | {rate['n']} | {rate['median']:.1f} "
        line += f"| {rate['min']:.1f} to {rate['max']:.1f} "
        speedup = result["speedup"].get(name)
        if speedup:
            line += f"| {speedup['median']:.2f} x | {speedup['min']:.2f} to {speedup['max']:.2f} "
            line += f"| {result['goals'][name]} x "
        else:
            line += "| | | "
        cpu = result["cpu_ratio"].get(name)
        line += f"| {result['cpu_ms_per_picture'][name]['median']:.2f} "
        line += (
            f"| {cpu['median']:.2f} x | {cpu['min']:.2f} to {cpu['max']:.2f} |" if cpu else "| | |"
        )
        lines.append(line)
    machine = result["environment"]
    lines += ["", f"Machine and versions: see prepare.json. Load: {machine['load_average']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()

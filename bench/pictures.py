"""Tables of pictures for benchmarks: the demo's photographs, and the Caltech-101 subset."""

from __future__ import annotations

import csv
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.unpack import unpack

Row = tuple[Path, str, str]
"""File, class, split."""

SUFFIXES = (".jpg", ".jpeg", ".png")
HELD_OUT_A_CLASS = 5


def folder_rows(root: Path) -> list[Row]:
    """List ROOT/SPLIT/CLASS/PICTURE, sorted."""
    return [
        (path, path.parent.name, path.parent.parent.name)
        for path in sorted(root.glob("*/*/*"))
        if path.suffix.lower() in SUFFIXES
    ]


def demo_rows(root: Path) -> list[Row]:
    """List the demo's photographs.

    Raises:
        SystemExit: if they have not been downloaded.
    """
    if not root.is_dir():
        raise SystemExit(f"{root}: no photographs found; run `make demo` first")
    return folder_rows(root)


def caltech_rows(tar: Path, folder: Path) -> list[Row]:
    """Unpack the Caltech-101 subset, and move five pictures of each class from train to val."""
    unpack(tar, folder)
    rows = folder_rows(folder / "caltech101")
    return hold_out(rows, HELD_OUT_A_CLASS)


def hold_out(rows: Iterable[Row], count: int) -> list[Row]:
    """Move `count` pictures of each class from train to val, those with the smallest sha256."""
    by_class: Mapping[str, list[tuple[str, Path]]] = defaultdict(list)
    kept = []
    for path, label, split in rows:
        if split == "train":
            by_class[label].append((hashlib.sha256(path.read_bytes()).hexdigest(), path))
        else:
            kept.append((path, label, split))
    for label, hashed in by_class.items():
        for rank, (_, path) in enumerate(sorted(hashed)):
            kept.append((path, label, "val" if rank < count else "train"))
    return sorted(kept)


def take_few(rows: Iterable[Row], *, num_classes: int, count: int) -> list[Row]:
    """Keep the first pictures of each split of the first classes, for a smoke test."""
    rows = list(rows)
    classes = sorted({label for _, label, _ in rows})[:num_classes]
    num_seen: dict[tuple[str, str], int] = defaultdict(int)
    few = []
    for row in rows:
        key = row[1], row[2]
        if row[1] in classes and num_seen[key] < count:
            num_seen[key] += 1
            few.append(row)
    return few


def write_table(rows: Iterable[Row], path: Path) -> Path:
    """Write the CSV of path, label, split that `prepare` and the contenders read."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "split"))
        writer.writerows((str(picture.resolve()), label, split) for picture, label, split in rows)
    return path


def forget_pages(files: Iterable[Path]) -> None:
    """Ask the kernel to drop files from its page cache, for a cold start of each reader."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)

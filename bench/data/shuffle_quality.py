"""Measure how far an order is from a uniform permutation, for rows and for batches.

    python -m bench.data.shuffle_quality [--rows 100000] [--epochs 10]

Two numbers. Neighbours: the distance in an epoch between two rows of one file, as the largest
difference between its distribution and that of a uniform permutation (Kolmogorov-Smirnov; 0 is
equal, 1 is the maximum). Classes: the variance of the number of pictures of a class in a batch,
over that of batches drawn at random (1 is equal). The latter for files split by hash, as in a
store, and for files with one class each, as in a folder written in order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.measure import environment, write_results
from stepladder.config.choices import OrderMode
from stepladder.data.order.order import Order

BATCH = 64
NUM_CLASSES = 100
NUM_PAIRS = 20_000
BUFFER = 512  # size of the shuffle buffer that ours is compared with

Rows = Callable[[int], np.ndarray]


def ours(mode: OrderMode, sizes: tuple[int, ...], window_files: int) -> Rows:
    """Return the rows of an epoch in one of our orders."""
    order = Order(
        seed=0,
        num_examples=sum(sizes),
        mode=mode,
        fingerprint="quality",
        block_rows=sizes,
        window_rows=window_files * sizes[0],
    )
    return lambda epoch: order.samples(epoch, 0, order.num_samples)


def buffered(sizes: tuple[int, ...]) -> Rows:
    """Return files in shuffled order, with rows shuffled in a buffer."""

    def rows(epoch: int) -> np.ndarray:
        random = np.random.default_rng(epoch)
        starts = np.cumsum((0, *sizes[:-1]))
        queue = np.concatenate(
            [starts[idx] + np.arange(sizes[idx]) for idx in random.permutation(len(sizes))]
        )
        held, given = queue[:BUFFER].copy(), []
        for row in queue[BUFFER:]:
            place = random.integers(BUFFER)
            given.append(held[place])
            held[place] = row
        return np.concatenate([given, random.permutation(held)]).astype(np.int64)

    return rows


def neighbours(rows: np.ndarray, sizes: tuple[int, ...]) -> float:
    """Return the distance between neighbours' gaps and those of a uniform permutation."""
    total = len(rows)
    position = np.empty(total, dtype=np.int64)
    position[rows] = np.arange(total)
    random = np.random.default_rng(0)
    file = random.integers(len(sizes), size=NUM_PAIRS)
    first, second = (file * sizes[0] + random.integers(sizes[0], size=NUM_PAIRS) for _ in range(2))
    apart = first != second
    gaps = np.sort(abs(position[first[apart]] - position[second[apart]])) / total
    uniform = 1 - (1 - gaps) ** 2
    empirical = np.arange(1, len(gaps) + 1) / len(gaps)
    return float(abs(empirical - uniform).max())


def class_variance(rows: np.ndarray, labels: np.ndarray) -> float:
    """Return the variance of class counts in batches, over that of draws without replacement."""
    total = len(rows)
    batches = labels[rows[: total // BATCH * BATCH]].reshape(-1, BATCH)
    counts = np.stack([np.bincount(batch, minlength=NUM_CLASSES) for batch in batches])
    share = np.bincount(labels, minlength=NUM_CLASSES) / total
    expected = BATCH * share * (1 - share) * (total - BATCH) / (total - 1)
    return float(counts.var(axis=0).mean() / expected.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    lines, result = [], []
    for file_rows, kind in ((250, "pixels at 299"), (1900, "JPEGs of 35 kB")):
        sizes = (file_rows,) * (args.rows // file_rows)
        orders: dict[str, Rows] = {"global": ours(OrderMode.GLOBAL, sizes, 4)}
        for window_files in (4, 16, 64):
            orders[f"windowed, {window_files} files"] = ours(
                OrderMode.WINDOWED, sizes, window_files
            )
        orders[f"files shuffled, buffer of {BUFFER}"] = buffered(sizes)
        orders["sequential"] = ours(OrderMode.SEQUENTIAL, sizes, 4)
        total = sum(sizes)
        by_hash = np.random.default_rng(1).integers(NUM_CLASSES, size=total)
        by_class = np.sort(by_hash)
        for name, rows in orders.items():
            epochs = [rows(epoch) for epoch in range(args.epochs)]
            figures: dict[str, Any] = {
                "files": kind,
                "order": name,
                "neighbours": [neighbours(one, sizes) for one in epochs],
                "by_hash": [class_variance(one, by_hash) for one in epochs],
                "by_class": [class_variance(one, by_class) for one in epochs],
            }
            result.append(figures)
            cells = [
                f"{np.mean(figures[key]):.2f}" for key in ("neighbours", "by_hash", "by_class")
            ]
            lines.append(f"| {kind} | {name} | " + " | ".join(cells) + " |")
    head = (
        f"# Shuffle quality\n\n{args.rows:,} rows, {NUM_CLASSES} classes, batches of {BATCH}; "
        f"means of {args.epochs} epochs.\n\n"
        "| files of | order | neighbours (0: uniform) | classes, files cut by hash (1: uniform) "
        "| classes, files of one class (1: uniform) |\n|---|---|---|---|---|\n"
    )
    setting = {"rows": args.rows, "epochs": args.epochs, "batch": BATCH, "classes": NUM_CLASSES}
    table = head + "\n".join(lines) + "\n"
    write_results(
        "shuffle_quality", {"environment": environment(), "setting": setting, "rows": result}, table
    )
    print(table)


if __name__ == "__main__":
    main()

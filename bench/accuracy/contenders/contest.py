"""Shared parts of all contenders: arguments, pictures, trunk, and the output line.

Each contender is a script that runs in a fresh process. Its clock starts after its imports and ends
when its best weights are on disk. It is then scored on the test pictures and prints one line of
JSON.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stepladder.config.recipe import ModelConfig
from stepladder.models.torchvision_shim import import_timm
from stepladder.models.trunk import Trunk, build_trunk

import_timm()  # imported here: outside of every contender's clock, and before lightning imports it

SPAWNED = "CONTENDER_SPAWNED_AT"
"""Environment variable: wall-clock time at which the process was started."""


@dataclass(frozen=True)
class Picture:
    """An image file and its class index."""

    path: Path
    label: int


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return the argument parser that all contenders share."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--pictures", type=Path, required=True, help="CSV of path, label, split")
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--max-epochs", type=int, default=60)
    return parser


def read_pictures(table: Path) -> tuple[dict[str, list[Picture]], list[str]]:
    """Read a CSV of pictures; return them by split, and the class names."""
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    classes = sorted({row["label"] for row in rows})
    splits: dict[str, list[Picture]] = {"train": [], "val": [], "test": []}
    for row in rows:
        picture = Picture(table.parent / row["path"], classes.index(row["label"]))
        splits[row["split"]].append(picture)
    return splits, classes


def square(path: Path, size: int) -> np.ndarray:
    """Decode as most scripts do: whole picture, RGB, aspect ratio kept, white padding."""
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    picture.thumbnail((size, size), Image.Resampling.LANCZOS)
    whole = Image.new("RGB", (size, size), "white")
    whole.paste(picture, ((size - picture.width) // 2, (size - picture.height) // 2))
    return np.asarray(whole)


def frozen_trunk() -> Trunk:
    """Build the packaged trunk: raw pixels (n, 3, h, w) in, features (n, d) out."""
    trunk = build_trunk(ModelConfig())
    trunk.requires_grad_(False)
    return trunk.eval()


def accuracy(logits: torch.Tensor, labels: Sequence[int]) -> float:
    """Return the accuracy."""
    return float((logits.argmax(1) == torch.tensor(labels)).float().mean())


def report(
    *,
    imported_at: float,
    seconds: float,
    epochs: float,
    test_accuracy: float | None,
    **more: object,
) -> None:
    """Print the output line.

    Args:
        imported_at: `time.time()` right after the imports.
        seconds: from then until the best weights are on disk.
        more: extra fields.
    """
    spawned_at = float(os.environ.get(SPAWNED, imported_at))
    line = {
        "seconds": seconds,
        "start_s": imported_at - spawned_at,
        "epochs": epochs,
        "test_accuracy": test_accuracy,
        **more,
    }
    print(json.dumps(line), flush=True)


def now() -> float:
    """Return the wall-clock time, which file times and the parent process use as well."""
    return time.time()

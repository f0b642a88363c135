"""Folders in which trackers keep runs in formats of their own: not read, but named."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepladder.errors import DataError

WANDB_START: Final = b":W&B"
_OUTPUT: Final = "files/output.log"  # of W&B: what the program printed
_STORES: Final = (  # a pattern below the folder, whose it is, and where its values can be exported
    (".aim/run_metadata.sqlite", "a store of Aim", "In Aim's Metrics Explorer"),
    ("run_metadata.sqlite", "a store of Aim", "In Aim's Metrics Explorer"),
    (".neptune/*", "a folder of offline runs of Neptune", "Upload them, and in Neptune's charts"),
    (".cometml-runs/*", "a folder of offline runs of Comet", "Upload them, and in Comet's charts"),
    ("vdlrecords.*.log", "a folder of VisualDL", "In VisualDL's page of scalars"),
)
_WANDB: Final = ("run-*.wandb", "*/run-*.wandb", "wandb/*/run-*.wandb")


def refuse_store(path: Path) -> None:
    """Raise an error for a folder that is the store of a tracker.

    Raises:
        DataError: says where the values can be exported, or which file has the printed output.
    """
    for pattern in _WANDB:
        if files := sorted(path.glob(pattern)):
            raise wandb_error(path, files)
    for pattern, what, where in _STORES:
        if next(path.glob(pattern), None) is not None:
            raise DataError(
                f"this is {what}, which is not read",
                where=str(path),
                fix=f"{where}, export the values as CSV, and pass that file.",
            )


def refuse_tables_of_metrics(path: Path) -> None:
    """Raise an error for a folder with a table for each metric, as DVCLive writes.

    Raises:
        DataError: says how to join the tables.
    """
    tables = sorted((path / "plots" / "metrics").rglob("*.tsv"))
    if not tables:
        return
    out = path.resolve().with_name("dvclive.tsv")
    raise DataError(
        "this is a folder of DVCLive, with one table for each metric, which is not read",
        where=str(path),
        fix=f"Join its tables: paste {shlex.join(map(str, tables))} > {shlex.quote(str(out))} "
        f"&& stepladder audit {shlex.quote(str(out))}",
    )


def wandb_error(path: Path, files: Sequence[Path]) -> DataError:
    """Return the error for binary run files of Weights & Biases."""
    outputs = [file.parent / _OUTPUT for file in files]
    there = [output for output in outputs if output.is_file() and output.stat().st_size]
    ways = ["Export a panel as CSV on the page of the run, and pass that file."]
    if there:
        typed = shlex.join(["stepladder", "audit", *map(str, there)])
        ways.insert(0, f"Read what the program printed: {typed}")
    if path in files:
        what = "this is a binary run file of Weights & Biases, which is not read"
    elif len(files) == 1:
        what = f"{files[0].name} is a binary run file of Weights & Biases, which is not read"
    else:
        what = f"{len(files)} binary run files of Weights & Biases (.wandb) are not read"
    return DataError(what, where=str(path), fix="\n".join(ways))

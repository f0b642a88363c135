"""Losses that a log has only in parts, as those of a detection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stepladder.diagnosis.logs.meaning.column_names import LOSSES, meaning, read_number, split_of

Cells = Mapping[str, str]
_PARTS = frozenset(  # of detection, segmentation and pose, by Ultralytics: already weighted
    f"{name}_loss"
    for name in (
        *("box", "cls", "dfl", "obj", "seg", "sem"),
        *("pose", "kobj", "rle", "giou", "l1", "angle"),
    )
)
_DIGITS = 10


def with_summed_losses(cells: Sequence[Cells]) -> tuple[list[Cells], tuple[str, ...]]:
    """Add the total losses of training and validation, where only the same parts of both are.

    Returns:
        (the cells, a note that names the parts; none if nothing was added).
    """
    columns = list(dict.fromkeys(name for row in cells for name in row))
    parts: dict[str, dict[str, str]] = {"train": {}, "val": {}}
    for name in columns:
        split, rest = split_of(name)
        if split in parts and rest in _PARTS:
            parts[split].setdefault(rest, name)
    is_whole = any(meaning(name) in LOSSES for name in columns)
    if is_whole or len(parts["val"]) < 2 or set(parts["train"]) != set(parts["val"]):
        return list(cells), ()
    summed: list[Cells] = [
        {**row, **{f"{split}/loss": _sum(row, names.values()) for split, names in parts.items()}}
        for row in cells
    ]
    named = ", ".join(parts["val"].values())
    return summed, (f"the validation loss is the sum of {named}; that of training likewise",)


def _sum(row: Cells, names: Iterable[str]) -> str:
    """Return the sum of parts as text; empty if one of them was not written."""
    numbers = [read_number(row.get(name, "")) for name in names]
    known = [number for number in numbers if number is not None]
    return repr(round(sum(known), _DIGITS)) if len(known) == len(numbers) else ""

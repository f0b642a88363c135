"""Faults in what the inputs of a table say about their targets."""

from __future__ import annotations

from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen import PairsSeen, Seen, Told

_MIN_ROWS = 64  # distinct rows
_MIN_ROWS_OF_TWO = 200  # with only two classes, or if only the order is the same
_MANY = 8


def label_in_inputs(seen: Seen) -> Answer:
    """Compares each column of a table of inputs with the targets: equal, affine or one-to-one."""
    tables = [one for one in seen.pairs if one.num_distinct >= _MIN_ROWS and one.num_values > 1]
    if not tables:
        return Unseen("no table of inputs with one target per row was inspected, or too few rows")
    for one in tables:
        is_weak = one.num_values == 2 or one.told is Told.ORDER
        if one.told is None or (is_weak and one.num_distinct < _MIN_ROWS_OF_TWO):
            continue
        return Found(
            evidence=f"in all {one.num_rows:,} inspected examples, {_words(one)}",
            fix=f"Remove {_columns(one)} from the inputs, unless it is known before the target is.",
            where=one.where,
            numbers={"column": one.columns[0], "num_examples": one.num_rows},
        )
    one = tables[0]
    return Sound(f"none of {one.num_columns} columns determines the target")


def _columns(one: PairsSeen) -> str:
    shown = ", ".join(map(str, one.columns[:_MANY]))
    shown += ", …" if len(one.columns) > _MANY else ""
    return f"column {shown}" if len(one.columns) == 1 else f"columns {shown}"


def _words(one: PairsSeen) -> str:
    columns, is_one = _columns(one), len(one.columns) == 1
    whole = f"{columns} of the model's {one.num_columns} inputs (counted from 0)"
    if one.told is Told.EQUAL:
        return f"{whole} {'is' if is_one else 'are'} the target itself"
    if one.told is Told.AFFINE:
        return f"{whole} {'is' if is_one else 'are'} the target times a constant, plus a constant"
    if one.told is Told.ORDER:
        return f"{whole} {'has' if is_one else 'have'} exactly the order of the targets"
    if one.told is Told.CLASS:
        has, own = ("has", "its") if is_one else ("have", "their")
        return f"{whole} {has} a value of {own} own for each of the {one.num_values} classes"
    return f"{whole} together have another value for each of the {one.num_values} classes"

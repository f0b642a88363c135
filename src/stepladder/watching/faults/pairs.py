"""Faults in what the inputs of a table say about their targets."""

from __future__ import annotations

from stepladder.records.findings import Severity
from stepladder.watching.contract import Answer, Found, Sound, Unseen
from stepladder.watching.seen.labels import CopiesSeen, PairsSeen, Told
from stepladder.watching.seen.seen import Seen

_MIN_ROWS = 64  # distinct rows
_MIN_ROWS_OF_TWO = 200  # with only two classes, or if only the order is the same
_MANY = 8
_MIN_AGAIN = 30
_CHANGED = 0.7  # of the labels that would change by chance
_MIN_ASKED = 200
_MIN_REMEMBERED = 300
_MIN_TOKENS = 4  # distinct ones
_COPIED = 0.6  # of the tokens; the others may follow from the order of those before them
_BY_CHANCE = 3.0  # standard deviations


def label_in_inputs(seen: Seen) -> Answer:
    """Compares columns of a table, or tokens, with the targets: equal, affine or one-to-one."""
    copied = _copied(seen.copies)
    if copied is not None:
        return copied
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


def _copied(one: CopiesSeen | None) -> Found | None:
    """Find a causal model of tokens whose targets are not shifted, and that has learned to copy."""
    if one is None or one.why_not is not None or not one.is_causal:
        return None
    if one.num_distinct < _MIN_TOKENS or one.num_copied < _COPIED * one.num_tokens:
        return None
    return Found(
        evidence=f"the targets are the input tokens themselves in all {one.num_equal} inspected "
        f"steps, and {one.built} has learned to copy the current token, not to predict the next "
        f"one: given tokens in random order, a copy of it returns {one.num_copied:,} of "
        f"{one.num_tokens:,} unchanged (without the most frequent one)",
        fix="Shift the targets by one: pass tokens[:, :-1] to the model, and tokens[:, 1:] to the "
        "loss.",
        where=one.where,
        numbers={"num_tokens": one.num_tokens, "num_copied": one.num_copied},
    )


def labels_misaligned(seen: Seen) -> Answer:
    """If nothing is learned: checks for labels that change, or that no simple probe predicts."""
    if not any(one.num_looked for one in seen.losses):
        return Unseen("no loss function of torch was inspected")
    for one in seen.labels:
        steps = f"{one.num_steps:,} steps"
        when = f"the {steps} of the first epoch" if one.is_remembered else f"the last {steps}"
        told = (
            f"the loss was that of a constant guess ({one.loss:.3g} in {when}, and {one.guess:.3g} "
            f"follows from the shares of the {one.num_classes} classes)"
        )
        is_changed = one.num_changed >= _CHANGED * one.chance * one.num_again
        is_again = min(one.num_again, one.num_distinct) >= _MIN_AGAIN  # and not all the same
        if is_again and is_changed and not one.is_remembered:
            return Found(
                evidence=f"{one.num_changed:,} of {one.num_again:,} examples that were seen again "
                f"had another label, about as many as by chance, and {told}",
                fix="Shuffle inputs and labels together: order = torch.randperm(n), then x[order] "
                "and y[order].",
                where=one.where,
                numbers={"num_again": one.num_again, "num_changed": one.num_changed},
            )
        scores = [score for score in (one.nearest, one.linear) if score is not None]
        is_enough = one.num_distinct >= (_MIN_REMEMBERED if one.is_remembered else _MIN_ASKED)
        if scores and is_enough and max(scores) < _BY_CHANCE:
            return Found(
                evidence=f"{told}, and neither nearest neighbours nor a linear fit predict the "
                f"labels of {one.num_distinct:,} examples better than permuted labels",
                fix="Check that inputs and labels are in the same order: shuffle and filter them "
                "with the same indices.",
                where=one.where,
                severity=Severity.INFO if one.is_noise else None,  # perhaps to try a script
                numbers={"nearest": one.nearest, "linear": one.linear},
            )
    return Sound("the loss fell below that of a constant guess, or examples predict their labels")


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

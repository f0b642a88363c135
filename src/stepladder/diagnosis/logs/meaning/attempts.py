"""The trainings in one log: several that follow each other, or one that was resumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from stepladder.diagnosis.logs.meaning.column_names import (
    ACCURACIES,
    LOSSES,
    Meaning,
    meaning,
    read_place,
)

Cells = Mapping[str, str]
_FIRST_EPOCH = 1
_MIN_REPLAYED = 2  # epochs that are listed again


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A place at which a training was resumed.

    Attributes:
        what: epoch or step.
        at: the first one after it, as logged.
        num_replaced: rows of the log that the resumed training repeated.
    """

    what: str
    at: float
    num_replaced: int


@dataclass(kw_only=True)
class Attempt:
    """The rows of one training.

    Attributes:
        cells: its rows; those that a resumed training repeated are replaced by the later ones.
        resumptions: where it was resumed, in order.
    """

    cells: list[Cells] = field(default_factory=list)
    resumptions: tuple[Resumption, ...] = ()

    @property
    def resumed_at(self) -> tuple[float, ...]:
        """Return the epochs, or else steps, at which it was resumed, as logged."""
        return tuple(one.at for one in self.resumptions)

    def notes(self, *, is_epoch_from_0: bool) -> tuple[str, ...]:
        """Return a sentence for each resumption, with epochs counted from 1."""
        found = []
        for one in self.resumptions:
            at = one.at + (is_epoch_from_0 and one.what == "epoch")
            said = f"it was resumed at {one.what} {at:g}"
            if one.num_replaced:
                many = one.num_replaced > 1
                rows = f"{one.num_replaced} earlier rows are" if many else "an earlier row is"
                said += f": {rows} replaced by later ones"
            found.append(said)
        return tuple(found)


def split_attempts(cells: Sequence[Cells], is_new: Sequence[bool] | None = None) -> list[Attempt]:
    """Split a log into its trainings.

    Epochs (or else steps) that start again at the first one are another training. Epochs that go
    back to a later one are the same training, resumed from a checkpoint. A log that was written
    again as a whole, with more rows, replaces the earlier one. Rows are compared with rows of the
    same columns: many loggers count evaluations in another way than training.

    Args:
        is_new: rows before which the log was opened again, such as those after a repeated header.
    """
    key = _place_column(cells)
    opened = list(is_new) if is_new is not None else [False] * len(cells)
    if key is None:
        return _opened(cells, opened)
    attempts = [Attempt()]
    last: dict[frozenset[str], float] = {}
    reopened, is_printed = False, _is_regular(opened)
    for row, is_first in zip(cells, opened, strict=True):
        reopened |= is_first
        at = read_place(row.get(key, ""))
        if at is not None:
            kind = frozenset(name for name, text in row.items() if text)
            before = last.get(kind)
            if reopened and at in last.values():  # of an epoch that may have ended within it
                before = at
            if before is not None and (at < before or (reopened and at == before)):
                if _is_start(at, attempts[-1].cells, key):
                    attempts.append(Attempt())
                else:
                    _resume(attempts[-1], at, key)
                last = {}
            elif reopened and not is_printed and at > max(last.values(), default=math.inf):
                _resume(attempts[-1], at, key)
                last = {}
            last[kind] = at
            reopened = False
        attempts[-1].cells.append(row)
    return _without_older_copies([attempt for attempt in attempts if attempt.cells])


def without_replays(cells: Sequence[Cells]) -> tuple[list[Cells], list[bool]]:
    """Remove rows that list the earlier epochs again, as some scripts do when they resume.

    They may count them from another number: `Epoch 0: valid=0.5` repeats `Epoch 1 | Valid 0.5`. All
    are of one difference between the two numbers, are at least two, and a later epoch follows.

    Returns:
        (the other rows, whether each is the first one after such rows).
    """
    key = _place_column(cells)
    kept: list[Cells] = []
    opened: list[bool] = []
    idx, is_opened = 0, False
    while idx < len(cells):
        num = _num_replayed(cells[idx:], kept, key) if key is not None else 0
        if num:
            idx, is_opened = idx + num, True
            continue
        kept.append(cells[idx])
        opened.append(is_opened)
        idx, is_opened = idx + 1, False
    return kept, opened


def _num_replayed(rows: Sequence[Cells], before: Sequence[Cells], key: str) -> int:
    """Return how many of the first rows repeat results of rows before them."""
    first = read_place(rows[0].get(key, ""))
    if first is None or first > _FIRST_EPOCH:
        return 0
    places = [read_place(row.get(key, "")) for row in before]
    for shift in (0, 1, -1):
        num = 0
        for row in rows:
            at, values = read_place(row.get(key, "")), _results(row)
            if at is None or not values or not any(
                place == at + shift and values <= _results(other)
                for place, other in zip(places, before, strict=True)
            ):  # fmt: skip
                break
            num += 1
        epochs = {row[key] for row in rows[:num]}
        after = None if num == len(rows) else read_place(rows[num].get(key, ""))
        last = max(
            (at for row in rows[:num] if (at := read_place(row[key])) is not None), default=0
        )
        if len(epochs) >= _MIN_REPLAYED and after is not None and after > last:
            return num
    return 0


def _results(row: Cells) -> frozenset[str]:
    """Return the losses and metrics of a row, as printed."""
    return frozenset(
        text
        for name, text in row.items()
        if meaning(name) in ACCURACIES | LOSSES or meaning(name) is None
    )


def _place_column(cells: Sequence[Cells]) -> str | None:
    """Return the column of the epoch, or else of the step."""
    names = dict.fromkeys(name for row in cells for name, text in row.items() if text)
    wanted = (Meaning.EPOCH, Meaning.STEP)
    return next((name for kind in wanted for name in names if meaning(name) is kind), None)


def _is_regular(opened: Sequence[bool]) -> bool:
    """Return True if a header is printed again every so many rows, for those who read along."""
    places = [0, *(idx for idx, is_first in enumerate(opened) if is_first and idx)]
    gaps = {after - before for before, after in pairwise(places)}
    return len(places) > 2 and len(gaps) == 1


def _opened(cells: Sequence[Cells], opened: Sequence[bool]) -> list[Attempt]:
    attempts: list[Attempt] = []
    for row, is_first in zip(cells, opened, strict=True):
        if is_first or not attempts:
            attempts.append(Attempt())
        attempts[-1].cells.append(row)
    return _without_older_copies(attempts)


def _is_start(at: float, cells: Sequence[Cells], key: str) -> bool:
    """Return True if a place is where the training of these rows began."""
    places = [place for row in cells if (place := read_place(row.get(key, ""))) is not None]
    first = min(places)
    is_from_1 = meaning(key) is Meaning.EPOCH and first > 0
    return at <= first or (is_from_1 and at <= _FIRST_EPOCH)


def _resume(attempt: Attempt, at: float, key: str) -> None:
    """Remove the rows that a resumed training replaces: those at its first place and after it."""
    places = [read_place(row.get(key, "")) for row in attempt.cells]
    num = len(attempt.cells)
    first = next((i for i, place in enumerate(places) if place is not None and place >= at), num)
    del attempt.cells[first:]
    what = "epoch" if meaning(key) is Meaning.EPOCH else "step"
    attempt.resumptions += (Resumption(what=what, at=at, num_replaced=num - first),)


def _without_older_copies(attempts: list[Attempt]) -> list[Attempt]:
    """Remove each training that the next one repeats row by row and continues."""
    return [
        attempt
        for attempt, after in zip_longest(attempts, attempts[1:])
        if after is None
        or len(after.cells) <= len(attempt.cells)
        or after.cells[: len(attempt.cells)] != attempt.cells
    ]

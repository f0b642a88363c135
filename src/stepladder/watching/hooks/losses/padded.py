"""Find padding among the targets of sequences: one value that fills the ends of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.seen.losses import LossSeen, PaddedSeen

_MAX_ROWS: Final = 64
_MIN_LENGTH: Final = 4
_MAX_LENGTH: Final = 2048
_MAX_OTHERS: Final = 8
_MOST_INSIDE: Final = 0.05  # of the padding: places elsewhere
_MOST_EMPTY: Final = 0.1  # of the rows: those that begin with it
_LEAST: Final = 0.2  # of the targets
_LEAST_ALIGNED: Final = 0.9  # of the rows


@dataclass(frozen=True)
class Ends:
    """The constant ends of some rows.

    Attributes:
        value: what they consist of.
        lengths: of the end of each row.
        length: of the rows.
        num_inside: how often the value occurs before the ends.
        num_empty: rows that begin with it.
    """

    value: int
    lengths: tuple[int, ...]
    length: int
    num_inside: int
    num_empty: int

    @property
    def is_padding(self) -> bool:
        """Return whether the value occurs at the ends and hardly elsewhere."""
        padded, num = sum(self.lengths), len(self.lengths)
        return (
            padded >= _LEAST * num * self.length
            and self.num_inside <= _MOST_INSIDE * padded
            and self.num_empty < _MOST_EMPTY * num
        )


def ends_of(rows: Tensor) -> Ends | None:
    """Return the constant ends of rows of integers, (n, t); None if there are too few."""
    if rows.dim() != 2 or rows.shape[0] < 4 or not _MIN_LENGTH <= rows.shape[1] <= _MAX_LENGTH:
        return None
    some = rows.detach()[:_MAX_ROWS]
    value = some[:, -1].mode().values
    is_value = (some == value).long()
    ends = is_value.flip(1).cumprod(1).sum(1)
    lengths = tuple(ends.tolist())
    num_inside = int(is_value.sum()) - sum(lengths)
    return Ends(int(value), lengths, int(some.shape[1]), num_inside, int(is_value[:, 0].sum()))


def token_ends(ids: Tensor) -> list[Ends]:
    """Return the padded ends of token ids, whichever of both dimensions is that of time."""
    found = [ends_of(ids), ends_of(ids.detach().t())]
    return [one for one in found if one is not None and one.is_padding]


def note_padded(seen: LossSeen, target: Tensor, given: Any, tokens: list[Ends]) -> None:
    """Note targets whose ends are constant.

    Args:
        given: the model's input, for the number of rows of targets that are stored in one line.
        tokens: the padded ends of the token ids of this step.
    """
    for rows in _as_rows(target, given, tokens):
        found = ends_of(rows)
        if found is None or not found.is_padding:
            found = next((ends for by in tokens if (ends := _filled(rows, by)) is not None), None)
        if found is None or found.value == seen.ignore_index:
            continue
        one = seen.padded = seen.padded or PaddedSeen(value=found.value)
        if one.value != found.value:
            continue
        one.num_looked += 1
        one.num_targets += len(found.lengths) * found.length
        one.num_padded += sum(found.lengths)
        one.num_inside += found.num_inside
        one.num_aligned += any(_is_aligned(found, other) for other in tokens)
        if len(one.others) < _MAX_OTHERS:
            one.others |= set(rows[:4].flatten()[:256].tolist()) - {found.value}
        return
    if seen.padded is not None:
        seen.padded.num_other += 1


def _as_rows(target: Tensor, given: Any, tokens: list[Ends]) -> Iterator[Tensor]:
    """Yield the targets as rows of sequences, in each way that their shape allows."""
    if target.dim() == 2:
        yield target
        yield target.t()
    elif target.dim() == 1:
        sizes = [len(one.lengths) for one in tokens if len(one.lengths) < _MAX_ROWS]
        is_table = given is None or (given.dim() == 2 and given.is_floating_point())
        if not is_table and 2 <= given.dim() <= 3:
            sizes += [int(size) for size in given.shape[:2]]
        for num in dict.fromkeys(sizes):
            if num > 1 and target.numel() % num == 0:
                yield target.reshape(num, -1)
                yield target.reshape(-1, num).t()


def _filled(rows: Tensor, tokens: Ends) -> Ends | None:
    """Return the ends of targets that are one value wherever the token ids are padded.

    The value may occur elsewhere, such as a class for words that are no name.
    """
    some = rows.detach()[:_MAX_ROWS]
    lengths = torch.tensor(tokens.lengths)
    if tuple(some.shape) != (len(lengths), tokens.length) or some.is_cuda:
        return None
    is_padded = torch.arange(tokens.length) >= tokens.length - lengths[:, None]
    values = some[is_padded]
    value = int(values[0])
    if not bool((values == value).all()) or bool((some == value).all()):
        return None
    num_inside = int(((some == value) & ~is_padded).sum())
    num_empty = int((some[:, 0] == value).sum())
    return Ends(value, tokens.lengths, tokens.length, num_inside, num_empty)


def _is_aligned(one: Ends, other: Ends) -> bool:
    """Return whether two ends begin at the same places; targets may be shifted by one."""
    if len(one.lengths) != len(other.lengths):
        return False
    pairs = list(zip(one.lengths, other.lengths, strict=True))
    near = sum(abs(a - b) <= 1 for a, b in pairs)
    varies = max(one.lengths) - min(one.lengths) > 2
    return varies and near >= _LEAST_ALIGNED * len(pairs)

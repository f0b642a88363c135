"""Watch rows of a table together with their targets, and what one column says about them."""

from __future__ import annotations

import weakref
from statistics import fmean
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.hashes import MAX_VALUES, hashes_of, some_values
from stepladder.watching.hooks.inputs.said import guess_level, is_flat, is_new_flat, said_by
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.seen.labels import PairsSeen, Told
from stepladder.watching.watcher import Watcher

_MAX_ROWS: Final = 1024  # that are stored, of each shape of a table
_MAX_COLUMNS: Final = 1024
_MIN_COLUMNS: Final = 3  # with fewer, the target may well be a function of one
_MIN_ROWS: Final = 4
_MAX_TABLES: Final = 4
_MAX_GIVEN: Final = 8
_MAX_CLASSES: Final = 64
_PER_CLASS: Final = 3
_EXACT: Final = 1e-8  # of the variance, left by rounding in 32 bits
_MAX_NAMED: Final = 16
_MAX_LAST: Final = 64  # features of a position


class _Table:
    """Some rows and their targets, of the calls of one loss.

    Attributes:
        is_whole: the rows are all of the inputs, not some values of images or sequences.
    """

    def __init__(self, where: str | None, *, is_whole: bool) -> None:
        self.where = where
        self.is_whole = is_whole
        self.rows: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.num = 0

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Store copies of some rows, until there are enough."""
        left = min(len(rows), _MAX_ROWS - self.num)
        if left > 0:
            self.rows.append(rows[:left].detach().to("cpu", torch.float32, copy=True))
            self.targets.append(targets[:left].detach().to("cpu", torch.float64, copy=True))
            self.num += left


class PairWatch:
    """Stores a few rows and targets of the steps whose values are read."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._given: list[weakref.ref[Tensor]] = []
        self._tables: dict[tuple[int, bool, bool], _Table] = {}
        self._last: dict[int, _Table] = {}

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and losses."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_learnt.append(self._forget)
        watcher.on_loss.append(self._note)

    def settle(self) -> None:
        """Compare every column with the targets, and, if nothing was learned, all of them."""
        last, self._last = self._last, {}
        for table in last.values() if len(last) == 1 else ():
            with torch.inference_mode():
                found = compared(torch.cat(table.rows), torch.cat(table.targets), table.where)
            found.is_last = True
            if found.told is Told.EQUAL:
                self._watcher.seen.pairs.append(found)
        tables, self._tables = self._tables, {}
        is_only = len(tables) == 1  # one of several losses may reconstruct a part of the inputs
        for table in tables.values():
            with torch.inference_mode():
                rows, targets = torch.cat(table.rows), torch.cat(table.targets)
                if table.is_whole and is_only:
                    self._watcher.seen.pairs.append(compared(rows, targets, table.where))
                self._ask(table, rows, targets)

    def _ask(self, table: _Table, rows: Tensor, targets: Tensor) -> None:
        """Measure whether rows say anything about class labels, if nothing was learned from them.

        That is if the loss stayed at a guess; or if it did in the first epoch, and examples could
        be remembered in later ones.
        """
        stepped = [one for one in self._watcher.seen.optimizers if one.num_steps]
        if len(stepped) != 1 or not bool((targets == targets.round()).all()):
            return
        losses, guess = [value for _, value in stepped[0].losses], guess_level(targets)
        is_always = is_flat(losses, guess)
        trained = [one for one in self._watcher.seen.loaders if one.training]
        first = losses[: (trained[0].num_batches or 0) if len(trained) == 1 else 0]
        is_first = table.is_whole and len(losses) >= 2 * len(first) and is_new_flat(first, guess)
        found = said_by(rows, targets) if is_always or is_first else None
        if found is not None:
            some = losses[-(len(losses) // 4) :] if is_always else first
            found.where, found.num_steps, found.loss = table.where, len(some), fmean(some)
            found.is_remembered = not is_always
            self._watcher.seen.labels.append(found)

    def _called(self, _root: Any, _module: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        if not self._watcher.is_close or not torch.is_grad_enabled():
            return
        for one in tensors_in((args, kwargs), 3):
            if one.dim() >= 2 and one.is_floating_point() and len(self._given) < _MAX_GIVEN:
                self._given.append(weakref.ref(one))

    def _forget(self, _learnt: Any) -> None:
        self._given.clear()

    def _note(self, target: Tensor, _scores: Any) -> None:
        if not self._given or not torch.is_grad_enabled():
            return
        if target.dim() == 2 and target.shape[1] == 1:
            target = target[:, 0]
        if target.dim() != 1 or len(target) < _MIN_ROWS or not is_plain(target):
            return
        tables = [one for ref in self._given if (one := ref()) is not None]
        tables = [
            one
            for one in tables
            if len(one) == len(target) and is_plain(one) and not one.requires_grad
        ]
        if not tables:
            return
        memory = target.untyped_storage().data_ptr()
        if any(one.untyped_storage().data_ptr() == memory for one in tables):
            return  # a part of the inputs on purpose, as in an autoencoder
        self._note_last(tables, target)
        is_whole = all(one.dim() == 2 for one in tables)
        num = sum(one.shape[1] if one.dim() == 2 else MAX_VALUES for one in tables)
        if not _MIN_COLUMNS <= num <= _MAX_COLUMNS:
            return
        key = (num, target.is_floating_point(), is_whole)
        if key not in self._tables and len(self._tables) >= _MAX_TABLES:
            return
        if key not in self._tables:
            self._tables[key] = _Table(self._watcher.own.here(), is_whole=is_whole)
        table = self._tables[key]
        if table.num < _MAX_ROWS:
            left = _MAX_ROWS - table.num
            some = [one[:left] if one.dim() == 2 else some_values(one[:left]) for one in tables]
            table.add(some[0] if len(some) == 1 else torch.cat(some, 1), target)

    def _note_last(self, tables: list[Tensor], target: Tensor) -> None:
        """Store the last positions of sequences: a window may contain what is to be predicted."""
        some = [one for one in tables if one.dim() == 3 and one.shape[2] <= _MAX_LAST]
        if len(some) != 1 or len(tables) != 1 or not target.is_floating_point():
            return
        rows = some[0][:, -1]
        if rows.shape[1] not in self._last and len(self._last) >= _MAX_TABLES:
            return
        where = self._watcher.own.here()
        self._last.setdefault(rows.shape[1], _Table(where, is_whole=False)).add(rows, target)


def compared(rows: Tensor, targets: Tensor, where: str | None = None) -> PairsSeen:
    """Find the columns that determine the targets.

    Shapes: rows (n, d), targets (n,).
    """
    is_whole = torch.isfinite(rows).all(1) & torch.isfinite(targets)
    rows, targets = rows[is_whole].double(), targets[is_whole]
    seen = PairsSeen(
        where=where,
        num_rows=len(rows),
        num_columns=rows.shape[1],
        num_distinct=len(set(hashes_of([rows]).tolist())) if len(rows) else 0,
    )
    if len(rows) < _MIN_ROWS:
        return seen
    values, classes, counts = torch.unique(targets, return_inverse=True, return_counts=True)
    seen.num_values = len(values)
    if len(values) < 2:
        return seen
    if len(values) <= _MAX_CLASSES and int(counts.min()) >= _PER_CLASS:
        _compare_classes(seen, rows, classes, len(values))
    else:
        _compare_values(seen, rows, targets)
    return seen


def _compare_classes(seen: PairsSeen, rows: Tensor, classes: Tensor, num: int) -> None:
    """Find columns with one value per class, which together are different for each class."""
    at = classes.unsqueeze(1).expand_as(rows)
    low = rows.new_full((num, rows.shape[1]), torch.inf).scatter_reduce_(0, at, rows, "amin")
    high = rows.new_full((num, rows.shape[1]), -torch.inf).scatter_reduce_(0, at, rows, "amax")
    is_exact = (low == high).all(0) & (low != low[:1]).any(0)
    columns = is_exact.nonzero().flatten().tolist()
    single = [c for c in columns if len(set(low[:, c].tolist())) == num]
    if single:
        seen.told, seen.columns = Told.CLASS, tuple(single[:_MAX_NAMED])
    elif columns and len({tuple(one) for one in low[:, columns].tolist()}) == num:
        seen.told, seen.columns = Told.CLASSES, tuple(columns[:_MAX_NAMED])


def _compare_values(seen: PairsSeen, rows: Tensor, targets: Tensor) -> None:
    """Find columns that are an affine function of the target, or in exactly the same order."""
    centred, target = rows - rows.mean(0), targets - targets.mean()
    spread, size = centred.square().sum(0), target.square().sum()
    product = target @ centred
    is_affine = (spread > 0) & (product.square() >= (1 - _EXACT) * spread * size)
    columns = is_affine.nonzero().flatten().tolist()
    if columns:
        is_equal = all(bool((rows[:, c] == targets.float().double()).all()) for c in columns)
        seen.told = Told.EQUAL if is_equal else Told.AFFINE
        seen.columns = tuple(columns[:_MAX_NAMED])
        return
    order = targets.argsort(stable=True)
    steps, moved = rows[order].diff(dim=0), targets[order].diff().unsqueeze(1)
    is_same = torch.where(moved > 0, steps > 0, steps == 0).all(0)
    is_opposite = torch.where(moved > 0, steps < 0, steps == 0).all(0)
    columns = (is_same | is_opposite).nonzero().flatten().tolist()
    if columns:
        seen.told, seen.columns = Told.ORDER, tuple(columns[:_MAX_NAMED])

"""Watch large embedding tables of which a step uses few rows, but updates all."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.costs import TableSeen
from stepladder.watching.watcher import Watcher

_MIN_VALUES: Final = 1_000_000  # smaller tables are updated quickly
_MAX_USED: Final = 0.05  # of the rows, by one step
_FIRST: Final = 1  # step: at the first one, weights may not be held by an optimizer yet
_MAX_LOOKS: Final = 4  # steps
_MAX_TABLES: Final = 8
_NUM_ROWS: Final = 1024  # of a gradient that are inspected
_SPARSE_AT: Final = {"embedding": 6, "embedding_bag": 7}  # position of the argument


class _Used:
    """A table that is used in the current step."""

    def __init__(self, table: Tensor, where: str | None) -> None:
        self.ref = weakref.ref(table)
        self.where = where
        self.num_ids = 0


class TableWatch:
    """Wraps torch's embeddings, and reads a part of the gradients of large ones after few steps."""

    def __init__(self, names: Names, optimizers: OptimizerWatch) -> None:
        self._names = names
        self._optimizers = optimizers
        self._watcher: Watcher
        self._used: dict[int, _Used] = {}
        self._num_looks = 0

    def install(self, watcher: Watcher) -> None:
        """Install the wrappers."""
        self._watcher = watcher
        for name, at in _SPARSE_AT.items():
            watcher.patches.wrap(functional, name, before=self._lookup(at), is_close_only=True)
        watcher.on_step.append(self._look)

    def _lookup(self, at: int) -> Any:
        def used(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._num_looks >= _MAX_LOOKS or self._watcher.step < _FIRST:
                return
            ids = args[0] if args else kwargs.get("input")
            table: Any = args[1] if len(args) > 1 else kwargs.get("weight")
            is_sparse = args[at] if len(args) > at else kwargs.get("sparse", False)
            if is_sparse or not torch.is_grad_enabled():
                return
            if not isinstance(ids, Tensor) or not is_plain(table):
                return
            if table.numel() < _MIN_VALUES or not table.requires_grad or not table.is_leaf:
                return
            if id(table) not in self._used and len(self._used) >= _MAX_TABLES:
                return
            one = self._used.setdefault(id(table), _Used(table, self._watcher.own.here()))
            one.num_ids += ids.numel()

        return used

    def _look(self) -> None:
        """Check, after a step, that other rows of the tables have no gradient."""
        if not self._used:
            return
        self._num_looks += 1
        for one in self._used.values():
            table = one.ref()
            if table is not None and one.num_ids <= _MAX_USED * len(table):
                self._note(table, one)
        self._used.clear()

    def _note(self, table: Tensor, used: _Used) -> None:
        grad = table.grad
        if grad is None or not is_plain(grad):
            return
        some = grad[:: max(1, len(grad) // _NUM_ROWS)]
        if float(some.flatten(1).any(1).float().mean()) > _MAX_USED:
            return  # it is used in another way as well, such as for the scores of a language model
        name = self._names.of(table)
        tables = self._watcher.seen.costs.tables
        for optimizer in self._optimizers.live_optimizers():
            for group in optimizer.param_groups:
                if any(param is table for param in group["params"]):
                    tables[name] = TableSeen(
                        name=name,
                        where=used.where,
                        shape=(table.shape[0], table.shape[1]),
                        num_used=max(used.num_ids, tables[name].num_used if name in tables else 0),
                        optimizer=type(optimizer).__name__,
                        has_momentum=bool(group.get("momentum", 0)),
                        has_decay=bool(group.get("weight_decay", 0)),
                        is_fused=bool(group.get("fused")),
                        on_cpu=table.is_cpu,
                        identity=id(table),
                    )

"""Find terms of a loss that reach no weight of the optimizer that steps after its backward."""

from __future__ import annotations

import ast
import linecache
import math
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch

from stepladder.watching.hooks.graph import kind_of, shape_of
from stepladder.watching.hooks.steps.optimizers import OptimizerWatch
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.script.sums import summands
from stepladder.watching.seen.losses import UnusedTermSeen
from stepladder.watching.watcher import Watcher

_FIRST: Final = 3  # step: by then every optimizer is known
_MAX_LOOKS: Final = 12  # backwards
_MAX_TERMS: Final = 8
_MAX_NODES: Final = 4000  # of the graph of one term
_MAX_SUMS: Final = 60  # nodes that add the terms
_MAX_READ: Final = 3  # weights whose gradients are read
_MAX_VALUES: Final = 64
_MAX_LINES: Final = 1500  # of a file
_ADDED: Final = frozenset({"Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Mean", "Sum"})
_SHAPES: Final = frozenset({"View", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Reshape"})


@dataclass
class _Pending:
    """A backward whose terms are known, until the next one shows what was stepped in between."""

    where: str | None
    codes: tuple[str, ...]
    terms: list[tuple[str, dict[int, weakref.ref[Any]]]]
    steps: dict[int, int]


class UnusedTermWatch:
    """Lists the weights that each term of a loss reaches, and compares them with the next step."""

    def __init__(self, optimizers: OptimizerWatch) -> None:
        self._optimizers = optimizers
        self._watcher: Watcher
        self._pending: _Pending | None = None
        self._num_looks = 0
        self._read: dict[tuple[str, int], tuple[str, ...]] = {}

    def install(self, watcher: Watcher) -> None:
        """Listen for the graphs of losses."""
        self._watcher = watcher
        watcher.on_graph.append(self._look)

    @property
    def is_due(self) -> bool:
        """Return whether there are terms to judge."""
        return self._pending is not None

    def _look(self, root: Any) -> None:
        watcher, several = self._watcher, len(self._optimizers.live_optimizers()) > 1
        if watcher.step < _FIRST or self._num_looks >= _MAX_LOOKS or not several:
            return
        nodes = _terms(root)
        if not 2 <= len(nodes) <= _MAX_TERMS:
            return
        self._num_looks += 1
        terms = [(kind_of(node), _weights(node)) for node in nodes]
        found = [(kind, weights) for kind, weights in terms if weights is not None]
        if len(found) < len(terms):
            return  # too large to follow
        self._pending = _Pending(
            where=watcher.own.here(),
            codes=self._codes(),
            terms=found,
            steps={id(one): one.seen.num_steps for one in self._optimizers.stepped()},
        )

    def _codes(self) -> tuple[str, ...]:
        """Return the terms as they are written, in the order of the sum."""
        frame = self._watcher.own.frame()
        if frame is None:
            return ()
        key = frame.f_code.co_filename, frame.f_lineno
        if key not in self._read:
            self._read[key] = ()
            lines = linecache.getlines(key[0])
            if 0 < len(lines) <= _MAX_LINES:
                with suppress(SyntaxError):  # a magic command of a notebook
                    found = summands(ast.parse("".join(lines)), key[1])
                    self._read[key] = tuple(one.code for one in found)
        return self._read[key]

    def judge(self) -> None:
        """Compare, at the next backward, the terms with the weights that were stepped since."""
        one, self._pending = self._pending, None
        if one is None:
            return
        stepped: set[int] = set()
        others: set[int] = set()
        names = []
        for live in self._optimizers.stepped():
            if live.seen.num_steps > one.steps.get(id(live), live.seen.num_steps):
                stepped |= live.ids
                names.append(live.seen.kind)
            else:
                others |= live.ids
        is_used = [not stepped.isdisjoint(weights) for _, weights in one.terms]
        if not stepped or not any(is_used):
            return
        for idx, (kind, weights) in enumerate(one.terms):
            if is_used[idx] or not weights or not weights.keys() <= others - stepped:
                continue
            if all(_is_cleared(ref()) for ref in list(weights.values())[:_MAX_READ]):
                code = one.codes[idx] if len(one.codes) == len(one.terms) else ""
                new = UnusedTermSeen(
                    kind=kind,
                    code=code,
                    where=one.where,
                    num_weights=len(weights),
                    optimizer=names[0],
                )
                self._watcher.seen.unused_terms.setdefault((one.where, idx), new).num_seen += 1


def _terms(root: Any) -> list[Any]:
    """Return the nodes of the single numbers that are added, in order."""
    found, left, num = [], [root], 0
    while left and num < _MAX_SUMS:
        node = left.pop()
        num += 1
        kind = kind_of(node)
        inputs = [parent for parent, _ in node.next_functions if parent is not None]
        is_single = all(math.prod(shape_of(one)) == 1 for one in inputs)
        is_sum = kind in ("Add", "Sub") or len(inputs) == 1
        if (kind in _ADDED or kind in _SHAPES) and inputs and is_single and is_sum:
            left += inputs[::-1]
        else:
            found.append(node)
    return found if not left else []


def _weights(root: Any) -> dict[int, weakref.ref[Any]] | None:
    """Return the leaves that a graph reaches, by id; None if it is too large."""
    left, known = [root], {root}
    found: dict[int, weakref.ref[Any]] = {}
    while left:
        node = left.pop()
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = weakref.ref(variable)
        for parent, _ in node.next_functions:
            if parent is not None and parent not in known:
                known.add(parent)
                left.append(parent)
        if len(known) > _MAX_NODES:
            return None
    return found


def _is_cleared(weight: Any) -> bool:
    """Return whether a weight has no gradient, or one of zeros."""
    if weight is None:
        return False
    grad = weight.grad
    return grad is None or (is_plain(grad) and not bool(part(grad, _MAX_VALUES).any()))

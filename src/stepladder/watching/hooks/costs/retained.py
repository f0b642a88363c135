"""Follow backwards that keep their graphs: does each go through those of earlier ones as well?"""

from __future__ import annotations

import weakref
from typing import Any, Final

from torch import Tensor

from stepladder.watching.seen.costs import RetainedSeen
from stepladder.watching.watcher import Watcher

_MAX_STEPS: Final = 12  # in which graphs are counted
_MAX_CALLS: Final = 8  # of a step whose graphs are counted
_MAX_NODES: Final = 6000  # of a step
_MAX_LINES: Final = 4
_AT: Final = 2  # position of `retain_graph`
_KEY: Final = "stepladder_retained"


class RetainedWatch:
    """Counts the nodes of graphs that `retain_graph=True` keeps, in steps that are inspected."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._step = -1
        self._num_steps = 0
        self._num_calls: dict[str | None, int] = {}
        self._left = 0
        self._weight: weakref.ref[Any] | None = None  # of the first graph of a step

    def install(self, watcher: Watcher) -> None:
        """Follow the steps of a watcher."""
        self._watcher = watcher

    def look(
        self, root: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], *, follows_model: bool
    ) -> None:
        """Count the nodes of a graph, before backward is called on it.

        Args:
            args, kwargs: of `torch.autograd.backward`.
            follows_model: an outermost model was called since the last backward.
        """
        does_retain = args[_AT] if len(args) > _AT else kwargs.get("retain_graph")
        if not does_retain or root.grad_fn is None:
            return
        watcher = self._watcher
        if watcher.step != self._step:
            self._step, self._left, self._num_calls = watcher.step, _MAX_NODES, {}
            self._num_steps += 1
            self._weight = None
        lines, where = watcher.seen.costs.retained, watcher.own.here()
        one = lines.get(where)
        if one is None:
            if len(lines) >= _MAX_LINES:
                return
            one = lines[where] = RetainedSeen(where=where)
        num = self._num_calls[where] = self._num_calls.get(where, 0) + 1
        one.num_calls = max(one.num_calls, num)
        one.follows_models = one.follows_models and follows_model
        if self._left <= 0 or num > _MAX_CALLS or self._num_steps > _MAX_STEPS:
            return
        weight = None if self._weight is None else self._weight()
        one.is_cleared = one.is_cleared or (weight is not None and weight.grad is None)
        found, known, leaf = _mark(root.grad_fn, self._left)
        self._left -= found
        if self._weight is None and leaf is not None:
            self._weight = weakref.ref(leaf.variable)
        if self._left > 0:
            one.nodes.setdefault(self._step, []).append((found, known))


def _mark(root: Any, most: int) -> tuple[int, int, Any]:
    """Mark the operations of a graph.

    Returns:
        Their number, how many were marked before, and a node that accumulates a gradient.
    """
    stack, known, num_before, leaf = [root], {root}, 0, None
    while stack and len(known) < most:
        node = stack.pop()
        if type(node).__name__ == "AccumulateGrad":  # it belongs to all graphs of a weight
            leaf = node
        else:
            num_before += _KEY in node.metadata
            node.metadata[_KEY] = True
        for parent, _ in node.next_functions:
            if parent is not None and parent not in known:
                known.add(parent)
                stack.append(parent)
    return len(known), num_before, leaf

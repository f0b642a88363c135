"""Find terms of a loss that cannot have a gradient: both sides without a graph, or the same."""

from __future__ import annotations

import ast
import linecache
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.losses.loss_values import DISTANCES
from stepladder.watching.hooks.losses.lost_terms import is_number, value_of
from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.tensors import part
from stepladder.watching.script.sums import Sources, Summand, summands
from stepladder.watching.seen.losses import ConstantTermSeen
from stepladder.watching.watcher import Watcher

_FEW: Final = 64  # values that show for most arguments that they differ
_MANY: Final = 16_384
_MAX_PLACES: Final = 16
_MAX_STEPS: Final = 64
_MAX_FILES: Final = 4
_MAX_LINES: Final = 1500  # of a file
_MAX_BACKWARDS: Final = 16  # lines whose sums are read
_CLOSE: Final = 1e-4  # of a probability


@dataclass(eq=False)
class _Place:
    """A call of a loss whose value may be constant.

    Attributes:
        is_due: it was called since the last backward.
        model: the one under `torch.no_grad()` whose output it received, by the id of its root.
        is_waiting: its value is in what backward is being called on.
    """

    file: str
    end: tuple[int, int]
    seen: ConstantTermSeen
    is_due: bool = False
    is_explained: bool = False
    model: int | None = None
    is_waiting: bool = False
    is_listed: bool = False


class ConstantTermWatch:
    """Compares the arguments of losses, and reads the source where they are suspicious."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._places: dict[tuple[str, tuple[int, int], str], _Place] = {}
        self._trees: dict[str, ast.Module | None] = {}
        self._sources: dict[str, Sources] = {}
        self._sums: dict[tuple[str, int], list[Summand]] = {}

    def install(self, watcher: Watcher) -> None:
        """Listen for backwards and steps."""
        self._watcher = watcher
        watcher.on_backward.append(self._look)
        watcher.on_learnt.append(self._confirm)
        watcher.on_step.append(self._forget)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def note(self, kind: str, scores: Tensor, target: Tensor, kwargs: dict[str, Any]) -> None:
        """Compare the arguments of a loss that is computed with gradients enabled."""
        has_graph = scores.requires_grad or target.requires_grad
        is_equal = _are_equal(kind, scores, target, kwargs, has_graph=has_graph)
        if has_graph and not is_equal and not self._places:
            return
        frame = self._watcher.own.frame()
        if frame is None:
            return
        place = self._place(kind, frame, is_new=is_equal or not has_graph)
        if place is None:
            return
        one = place.seen
        if has_graph and not is_equal:
            one.has_others = True
            return
        place.is_due = True
        one.has_graph = one.has_graph or has_graph
        one.num_equal += is_equal
        one.num_calls += 1
        if not is_equal and not place.is_explained:
            place.is_explained = True
            self._explain(place, frame)

    def _place(self, kind: str, frame: FrameType, *, is_new: bool) -> _Place | None:
        file, code = frame.f_code.co_filename, frame.f_code
        _, line, _, column = next(islice(code.co_positions(), frame.f_lasti // 2, None))
        if line is None or column is None:
            return None
        key = file, (line, column), kind
        if key not in self._places and is_new and len(self._places) < _MAX_PLACES:
            where = f"{self._watcher.own.name_of(file)}:{frame.f_lineno}"
            self._places[key] = _Place(file, key[1], ConstantTermSeen(kind=kind, where=where))
        return self._places.get(key)

    def _explain(self, place: _Place, frame: FrameType) -> None:
        """Find what a loss received: a tensor cut off its graph, or an output without one."""
        tree = self._tree(place.file)
        if tree is None:
            return
        if place.file not in self._sources:
            self._sources[place.file] = Sources(tree)
        for value, is_without in self._sources[place.file].of_call(place.end):
            cut = next((one for one in ast.walk(value) if _is_cut(one, frame)), None)
            if cut is not None:
                place.seen.cut = ast.unparse(cut)
                return
            model = value_of(value.func, frame) if isinstance(value, ast.Call) else None
            if is_without and isinstance(model, nn.Module) and isinstance(value, ast.Call):
                root = self._names.root_of(model)
                if root is not None and any(p.requires_grad for p in model.parameters()):
                    place.model, place.seen.without = id(root), ast.unparse(value)

    def _tree(self, file: str) -> ast.Module | None:
        if file not in self._trees and len(self._trees) < _MAX_FILES:
            lines = linecache.getlines(file)
            self._trees[file] = None
            if 0 < len(lines) <= _MAX_LINES:
                with suppress(SyntaxError):  # a magic command of a notebook
                    self._trees[file] = ast.parse("".join(lines))
        return self._trees.get(file)

    def _look(self) -> None:
        """Find out which of the suspicious losses are terms of what backward is called on."""
        due = [one for one in self._places.values() if one.is_due]
        frame = self._watcher.own.frame() if due else None
        if frame is None:
            return
        for place in due:
            place.is_due = False
            for one in self._summands(frame.f_code.co_filename, frame.f_lineno):
                is_it = one.end == place.end and place.file == frame.f_code.co_filename
                if is_it and not any(_is_zero(factor, frame) for factor in one.factors):
                    place.seen.term, place.seen.loss = one.code, one.loss
                    is_known = all(is_number(factor, frame) for factor in one.factors)
                    place.seen.is_added, place.seen.is_weighted = one.is_added, is_known
                    place.is_waiting = True

    def _summands(self, file: str, line: int) -> list[Summand]:
        key = file, line
        if key not in self._sums and len(self._sums) < _MAX_BACKWARDS:
            tree = self._tree(file)
            self._sums[key] = [] if tree is None else summands(tree, line)
        return self._sums.get(key, [])

    def _confirm(self, learnt: dict[int, bool]) -> None:
        """Count a step of the terms; of those without gradients only if their model has some."""
        for place in self._places.values():
            if not place.is_waiting:
                continue
            place.is_waiting = False
            one = place.seen
            one.num_unlearnt += place.model in learnt
            if len(one.steps) < _MAX_STEPS:
                one.steps.add(self._watcher.step)
            if not place.is_listed:
                place.is_listed = True
                self._watcher.seen.constant_terms.append(one)

    def _forget(self) -> None:
        for place in self._places.values():
            place.is_due = place.is_waiting = False


def _are_equal(
    kind: str, scores: Tensor, target: Tensor, kwargs: dict[str, Any], *, has_graph: bool
) -> bool:
    """Return whether a loss that is 0 for equal arguments receives them."""
    is_shares = kind == "kl_div" and not kwargs.get("log_target")
    is_distance = kind in DISTANCES or (kind == "kl_div" and not (is_shares and has_graph))
    is_alike = (scores.shape, scores.dtype, scores.device) == (
        target.shape,
        target.dtype,
        target.device,
    )
    if not is_distance or not is_alike or scores.numel() < 2 or not scores.is_floating_point():
        return False
    for most in (_FEW, _MANY):
        first, second = part(scores, most), part(target, most)
        if is_shares and not torch.allclose(first.exp(), second, rtol=_CLOSE, atol=_CLOSE**2):
            return False
        if not is_shares and not torch.equal(first, second):
            return False
    return bool((first != first[0]).any())


def _is_cut(node: ast.AST, frame: FrameType) -> bool:
    """Return whether an expression cuts off the graph of a variable that has one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        base = node.func.value if node.func.attr == "detach" else None
    else:
        is_data = isinstance(node, ast.Attribute) and node.attr == "data"
        base = node.value if is_data and isinstance(node, ast.Attribute) else None
    if not isinstance(base, (ast.Name, ast.Attribute)):
        return False
    value = value_of(base, frame)
    return isinstance(value, Tensor) and value.grad_fn is not None


def _is_zero(factor: ast.expr, frame: FrameType) -> bool:
    """Return whether a factor is 0, as far as it is known, or a product with such a factor."""
    if isinstance(factor, ast.BinOp):
        return _is_zero(factor.left, frame) or (
            isinstance(factor.op, ast.Mult) and _is_zero(factor.right, frame)
        )
    value = value_of(factor, frame)
    return isinstance(value, (int, float)) and value == 0

"""Find terms of a loss that were turned into numbers, if the script's source suggests any."""

from __future__ import annotations

import ast
import inspect
import linecache
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepladder.watching.script.sums import Suspect, suspects
from stepladder.watching.seen.losses import LostTermSeen
from stepladder.watching.watcher import Watcher

_MODES: Any = torch.overrides
_MAX_TRACED: Final = 3  # steps whose operations are followed
_MAX_PLACES: Final = 4  # lines of backward whose source is read
_MAX_LINES: Final = 1500  # of a file
_NUMBERS: Final = {"item": "item()", "tolist": "tolist()", "numpy": "numpy()", "detach": "detach()"}
_SPELLED: Final = {**_NUMBERS, "__float__": "float()", "tensor": "tensor()"}


class _Trace(TorchFunctionMode):
    """Passes operations on, and notes those that turn a number with a graph into one without."""

    def __init__(self, watch: LostTermWatch, watcher: Watcher) -> None:
        super().__init__()
        self._watch = watch
        self._watcher = watcher
        self.is_on = True

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function; before it, note what it is about to do."""
        if self.is_on and args and self._watcher.switch.is_on:
            name = _name_of(func)
            if name is not None:
                self._watcher.switch.run(self._watch.note, name, args[0])
        return func(*args, **(kwargs or {}))


def _name_of(func: Any) -> str | None:
    name = getattr(func, "__name__", "")
    if name == "__get__":
        is_data = getattr(getattr(func, "__self__", None), "__name__", "") == "data"
        return ".data" if is_data else None
    return _SPELLED.get(name)


class LostTermWatch:
    """Reads the source of the loss once, and follows operations of a few steps if it must."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._suspects: dict[str, list[Suspect]] = {}
        self._known: set[tuple[str, int]] = set()
        self._noted: dict[tuple[str, int], str] = {}
        self._seen: dict[tuple[str, int], LostTermSeen] = {}
        self._trace: _Trace | None = None
        self._num_traced = 0

    def install(self, watcher: Watcher) -> None:
        """Listen for steps and backwards."""
        self._watcher = watcher
        watcher.on_step.append(self._next)
        watcher.on_backward.append(self._look)
        watcher.patches.on_undo(self._end)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _look(self) -> None:
        """Read the source at a backward for the first time, or collect what was noted before it."""
        if self._trace is not None:
            is_only = self._watcher.backwards == 0
            self._end()
            for key, operation in self._noted.items() if is_only else ():
                self._count(key, operation)
            return
        frame = self._watcher.own.frame()
        if frame is None or len(self._known) >= _MAX_PLACES:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        if (file, line) in self._known:
            return
        self._known.add((file, line))
        lines = linecache.getlines(file)
        if 0 < len(lines) <= _MAX_LINES:
            try:
                found = suspects("".join(lines), line)
            except SyntaxError:  # a magic command of a notebook
                return
            self._suspects.setdefault(file, []).extend(found)

    def note(self, operation: str, given: Any) -> None:
        """Note an operation at one of the suspected places, applied to a number with a graph."""
        if not isinstance(given, Tensor) or given.grad_fn is None or given.numel() != 1:
            return
        frame = self._watcher.own.frame()
        if frame is None:
            return
        file, line = frame.f_code.co_filename, frame.f_lineno
        for idx, one in enumerate(self._suspects.get(file, ())):
            is_there = one.first <= line <= one.last and (file, idx) not in self._noted
            if is_there and all(is_number(factor, frame) for factor in one.factors):
                self._noted[file, idx] = operation

    def _count(self, key: tuple[str, int], operation: str) -> None:
        file, idx = key
        if key not in self._seen:
            one = self._suspects[file][idx]
            seen = LostTermSeen(
                where=f"{self._watcher.own.name_of(file)}:{one.first}",
                term=one.term,
                operation=operation,
                loss=one.loss,
                is_direct=one.is_direct,
            )
            self._seen[key] = seen
            self._watcher.seen.lost_terms.append(seen)
        self._seen[key].num_seen += 1

    def _next(self) -> None:
        self._end()
        self._noted = {}
        watcher = self._watcher
        if self._num_traced >= _MAX_TRACED or watcher.seen.is_compiled or not watcher.is_close:
            return
        # Others' modes end in the order in which they began: ours is never put on top of them.
        if not any(self._suspects.values()) or _MODES._len_torch_function_stack():
            return
        self._num_traced += 1
        trace: Any = _Trace(self, watcher)
        trace.__enter__()
        self._trace = trace

    def _end(self) -> None:
        """Stop following operations; while another mode is on top of ours, only pass them on."""
        if self._trace is None:
            return
        self._trace.is_on = False
        if _MODES._get_current_function_mode() is self._trace:
            self._trace.__exit__(None, None, None)
            self._trace = None


def is_number(factor: ast.expr, frame: FrameType) -> bool:
    """Return whether a factor is a plain number other than 0, by the frame's variables."""
    if isinstance(factor, ast.UnaryOp):
        return is_number(factor.operand, frame)
    if isinstance(factor, ast.BinOp):
        return is_number(factor.left, frame) and is_number(factor.right, frame)
    value = value_of(factor, frame)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0


def value_of(node: ast.expr, frame: FrameType) -> object:
    """Return a constant, a variable, an attribute or an item of one, without calling any code."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        values = frame.f_locals
        value = values.get(node.id, frame.f_globals.get(node.id))
        is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # of a function's variables
        if isinstance(values, dict) and is_copy:
            for name, one in list(values.items()):  # the frame would keep these graphs alive
                if isinstance(one, Tensor) and one.grad_fn is not None:
                    del values[name]
        return value
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, frame)
        if owner is None or isinstance(owner, (int, float, Tensor)):
            return None
        own = getattr(owner, "__dict__", {})
        return own.get(node.attr, vars(type(owner)).get(node.attr))
    if isinstance(node, ast.Subscript) and isinstance(node.slice, (ast.Constant, ast.Name)):
        holder, key = value_of(node.value, frame), value_of(node.slice, frame)
        is_plain_key = type(key) in (str, int, bool)
        return dict.get(holder, key) if isinstance(holder, dict) and is_plain_key else None
    return None

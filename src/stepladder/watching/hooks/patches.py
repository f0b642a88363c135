"""Wrappers around torch's functions, put in place and taken away again."""

from __future__ import annotations

import functools
import os
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter, thread_time
from types import ModuleType
from typing import Any, Final

import torch

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]
_PER_STEP_S = 50e-6  # what looking may take a step, of the 200 µs that are promised for all
_FIRST_S = 0.015  # and what the first steps may take beyond that
_ACTIVE: list[Switch] = []
DONE: Final = object()


class Switch:
    """Whether we look on, what that took, and what went wrong.

    Whatever fails while looking on switches all of it off; the script goes on.

    Attributes:
        is_on: False in child processes as well.
        spent_s: processor time that looking on took, in seconds; what other processes take
            meanwhile is not ours.
        is_close: numbers are read in this step.
        counts_for: steps that the time taken in this one stands for; 0: it is not taken.
        num_elsewhere: calls by other threads than the one that trains; they are not looked at.
        error: why it went off; None: it did not.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.is_close = True
        self.counts_for = 1
        self.spent_s = 0.0
        self.error: str | None = None
        self.num_steps = 0
        self.num_elsewhere = 0
        self._thread = threading.get_ident()
        self._depth = 0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call one of our functions: timed, and never raising."""
        if self._depth:
            return None
        if self.is_elsewhere():
            return None
        self._depth, counts_for = 1, self.counts_for
        start = thread_time() if counts_for else 0.0
        try:
            return function(*args)
        except Exception as error:
            self.fail(error)
        finally:
            self._depth = 0
            if counts_for:
                self.spent_s += (thread_time() - start) * counts_for

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the one that trains; such calls are counted."""
        is_other = threading.get_ident() != self._thread
        self.num_elsewhere += is_other
        return is_other

    def follow(self) -> None:
        """Look on in the thread that makes the first step, whichever it is."""
        if self.num_steps == 0 and not self._depth:
            self._thread = threading.get_ident()

    def may_spend(self) -> bool:
        """Whether what was spent so far leaves room for a closer look."""
        return self.spent_s < _FIRST_S + _PER_STEP_S * self.num_steps

    def fail(self, error: BaseException) -> None:
        """Switch off, and keep where it went wrong."""
        self.is_on = False
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""  # noqa: PTH119
        self.error = self.error or f"{type(error).__name__}: {error}{at}"


@dataclass(frozen=True)
class _Replaced:
    """One attribute that holds a wrapper; `is_own`: its owner had it, not a parent class."""

    owner: Any
    name: str
    original: Any
    wrapper: Any
    is_own: bool

    def put(self) -> None:
        setattr(self.owner, self.name, self.wrapper)

    def take(self) -> None:
        is_module = isinstance(self.owner, ModuleType)
        if is_module and getattr(self.owner, self.name, None) is not self.wrapper:
            return  # the script put in its own meanwhile
        if self.is_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


class Patches:
    """Replaces attributes by wrappers that call the original and nothing else of torch."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._replaced: list[_Replaced] = []
        self._num_laid_down = 0
        self._undo: list[Callable[[], object]] = []

    def wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Before | None = None,
        after: After | None = None,
        failed: After | None = None,
        is_timed: bool = False,
        is_close_only: bool = False,
    ) -> None:
        """Call ours before and after `owner.name`; its arguments and results pass untouched.

        Args:
            before: gets args and kwargs; what it gives is handed to the others. After `DONE`,
                `after` is not called.
            after: gets that, args, kwargs and the result.
            failed: the same with the exception for a result, which goes on its way.
            is_timed: in place of `before`, the moment of the call is handed on.
            is_close_only: on other steps than those, the original alone is called.
        """
        original = getattr(owner, name, None)
        if original is None:
            return
        switch = self._switch

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not switch.is_on or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            if is_close_only and not switch.is_close:
                return original(*args, **kwargs)
            note = perf_counter() if is_timed else None
            if before is not None:
                note = switch.run(before, args, kwargs)
            if failed is None:
                result = original(*args, **kwargs)
            else:
                try:
                    result = original(*args, **kwargs)
                except Exception as error:
                    switch.run(failed, note, args, kwargs, error)
                    raise
            if after is not None and note is not DONE:
                switch.run(after, note, args, kwargs, result)
            return result

        if isinstance(owner, ModuleType):
            wrapper.__module__ = owner.__name__  # where pickle looks for it
        is_own = not isinstance(owner, type) or name in vars(owner)
        one = _Replaced(owner, name, original, wrapper, is_own)
        self._replaced.append(one)
        one.put()

    def lay_down(self) -> None:
        """Put the originals back for a while, as for a compiler that reads their source."""
        self._num_laid_down += 1
        if self._num_laid_down == 1:
            for one in reversed(self._replaced):
                one.take()

    def take_up(self) -> None:
        """Put the wrappers back in place."""
        self._num_laid_down -= 1
        if self._num_laid_down == 0:
            for one in self._replaced:
                one.put()

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Have something of another kind undone along with the wrappers, as a hook's removal."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Put everything back, the last one first."""
        while self._replaced:
            one = self._replaced.pop()
            if not self._num_laid_down:
                one.take()
        while self._undo:
            with suppress(Exception):
                self._undo.pop()()


def activate(switch: Switch) -> None:
    """Switch on, here and not in the processes that are forked from here."""
    _ACTIVE.append(switch)
    switch.is_on = True


def deactivate(switch: Switch) -> None:
    """Switch off for good."""
    switch.is_on = False
    if switch in _ACTIVE:
        _ACTIVE.remove(switch)


def _off_in_child() -> None:
    for switch in _ACTIVE:
        switch.is_on = False


os.register_at_fork(after_in_child=_off_in_child)

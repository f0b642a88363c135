"""Wrappers around torch's functions, installed and removed."""

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
_PER_STEP_S = 50e-6  # limit for inspecting, of the promised 200 µs per step
_FIRST_S = 0.015  # and the allowance for the first steps
_ACTIVE: list[Switch] = []
DONE: Final = object()
_LAYER: Final = "_stepladder_layer"  # attribute of a wrapper


class Switch:
    """State of the watcher: whether it is on, its cost, and its error.

    Any error of the watcher switches all of it off; the script continues.

    Attributes:
        is_on: False in child processes as well.
        spent_s: processor time of the watcher, in seconds, without that of other processes.
        apart_s: of this, time for which there is a limit of its own.
        is_close: values are read in this step.
        counts_for: steps that the time of this one represents; 0 if it is not timed.
        num_elsewhere: calls by threads other than the training thread, which are not watched.
        error: why it was switched off; None if it was not.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.is_close = True
        self.counts_for = 1
        self.spent_s = 0.0
        self.apart_s = 0.0
        self.error: str | None = None
        self.num_steps = 0
        self.num_elsewhere = 0
        self._thread = threading.get_ident()
        self._depth = 0

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call one of our functions: timed, and without raising."""
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

    @property
    def thread(self) -> int:
        """Return the training thread's identifier."""
        return self._thread

    def is_elsewhere(self) -> bool:
        """Return whether this is not the training thread; such calls are counted."""
        is_other = threading.get_ident() != self._thread
        self.num_elsewhere += is_other
        return is_other

    def follow(self) -> None:
        """Watch the thread of the first step, whichever it is."""
        if self.num_steps == 0 and not self._depth:
            self._thread = threading.get_ident()

    def may_spend(self) -> bool:
        """Return whether the time spent so far allows another inspection."""
        return self.spent_s - self.apart_s < _FIRST_S + _PER_STEP_S * self.num_steps

    def fail(self, error: BaseException) -> None:
        """Switch off, and store where it failed."""
        self.is_on = False
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = f" ({os.path.basename(last[0].filename)}:{last[0].lineno})" if last else ""  # noqa: PTH119
        self.error = self.error or f"{type(error).__name__}: {error}{at}"


@dataclass(slots=True)
class _Replaced:
    """An attribute replaced by a wrapper.

    Attributes:
        original: what the wrapper calls: what it found in its place.
        is_own: the original is its owner's, not a parent class's.
        is_on: the wrapper calls our functions.
        is_placed: it is the attribute, or is called by what has been put there since.
    """

    owner: Any
    name: str
    original: Any
    wrapper: Any = None
    is_own: bool = True
    is_on: bool = False
    is_placed: bool = False

    def put(self) -> None:
        self.is_on = True
        if self.is_placed:
            return
        self.is_placed = True
        self.original = getattr(self.owner, self.name)
        self.is_own = not isinstance(self.owner, type) or self.name in vars(self.owner)
        setattr(self.owner, self.name, self.wrapper)

    def take(self) -> None:
        """Restore the original; under another wrapper, or the script's own function, only rest."""
        self.is_on = False
        if getattr(self.owner, self.name, None) is not self.wrapper:
            return
        self.is_placed = False
        if self.is_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        below = getattr(self.original, _LAYER, None)
        if below is not None and below.wrapper is self.original and not below.is_on:
            below.take()


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
        unless: str | None = None,
    ) -> None:
        """Call our functions before and after `owner.name`, without changing arguments or results.

        Args:
            before: called with args and kwargs; its result is passed to the others. After `DONE`,
                `after` is not called.
            after: called with that, args, kwargs and the result.
            failed: the same with the exception instead of a result; it is raised again.
            is_timed: pass the time of the call instead of the result of `before`.
            is_close_only: on steps that are not inspected, call only the original.
            unless: call only the original if it receives this argument by name, as in recursions.
        """
        original = getattr(owner, name, None)
        if original is None:
            return
        switch = self._switch
        one = _Replaced(owner, name, original)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            original = one.original
            if not (switch.is_on and one.is_on) or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            if (is_close_only and not switch.is_close) or unless in kwargs:
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

        self._install(one, wrapper)

    def replace(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put a function in the place of `owner.name`, until `undo`."""
        self._install(_Replaced(owner, name, getattr(owner, name)), wrapper)

    def _install(self, one: _Replaced, wrapper: Callable[..., Any]) -> None:
        if isinstance(one.owner, ModuleType):
            wrapper.__module__, wrapper.__qualname__ = one.owner.__name__, one.name  # for pickle
        setattr(wrapper, _LAYER, one)
        one.wrapper = wrapper
        self._replaced.append(one)
        one.put()

    def drop(self, owner: Any, name: str) -> None:
        """Restore `owner.name` before `undo`, unless the script has replaced it meanwhile."""
        for one in [one for one in self._replaced if (one.owner, one.name) == (owner, name)]:
            if self._num_laid_down:
                self._replaced.remove(one)
            elif getattr(owner, name, None) is one.wrapper:
                self._replaced.remove(one)
                one.take()

    def lay_down(self) -> None:
        """Restore the originals for a while, for example for a compiler that reads their source."""
        self._num_laid_down += 1
        if self._num_laid_down == 1:
            for one in reversed(self._replaced):
                one.take()

    def take_up(self) -> None:
        """Install the wrappers again."""
        self._num_laid_down -= 1
        if self._num_laid_down == 0:
            for one in self._replaced:
                one.put()

    def on_undo(self, undo: Callable[[], object]) -> None:
        """Register another function to be called by `undo`, such as the removal of a hook."""
        self._undo.append(undo)

    def undo(self) -> None:
        """Restore everything, in reverse order."""
        while self._replaced:
            one = self._replaced.pop()
            if not self._num_laid_down:
                one.take()
        while self._undo:
            with suppress(Exception):
                self._undo.pop()()


def activate(switch: Switch) -> None:
    """Switch on, but not in processes forked from here."""
    _ACTIVE.append(switch)
    switch.is_on = True


def deactivate(switch: Switch) -> None:
    """Switch off permanently."""
    switch.is_on = False
    if switch in _ACTIVE:
        _ACTIVE.remove(switch)


def _off_in_child() -> None:
    for switch in _ACTIVE:
        switch.is_on = False


os.register_at_fork(after_in_child=_off_in_child)

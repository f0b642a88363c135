"""Calls of a script that print or log: how often it makes them, and only some of them."""

from __future__ import annotations

import builtins
import functools
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

from stepladder.records.script import LogCall, Place
from stepladder.scripts.inside.places import call_place
from stepladder.watching.script.own_code import OwnCode

_WRITER: Final = (
    *("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure"),
    *("add_text", "add_embedding", "add_video", "add_audio", "add_pr_curve", "add_mesh"),
)
_BAR: Final = ("set_postfix", "set_postfix_str", "set_description", "set_description_str", "write")
_FUNCTIONS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", _WRITER),
    ("tensorboardX.writer", "SummaryWriter", _WRITER),
    ("tqdm.std", "tqdm", _BAR),
    ("wandb", "", ("log",)),
    ("mlflow", "", ("log_metric", "log_metrics")),
    ("matplotlib.pyplot", "", ("savefig",)),
    ("matplotlib.figure", "Figure", ("savefig",)),
)
"""Module, class in it or nothing, and its functions that log."""
_MIN_STEPS: Final = 8
_ALWAYS: Final = 0.9  # of the steps since its first call


@dataclass(kw_only=True)
class _Seen:
    place: Place
    function: str
    first_step: int
    last_step: int = -1
    num_steps: int = 0
    num_calls: int = 0
    seconds: float = 0.0


class Logs:
    """Follows calls that log, by their place in the script; leaves out some of them.

    Args:
        own: distinguishes the script's lines.
        every: of the calls at `places`, only those in each so many steps are made.
        places: keys of places.
    """

    def __init__(self, own: OwnCode, *, every: int = 1, places: tuple[str, ...] = ()) -> None:
        self._own = own
        self._every = every
        self._places = frozenset(places)
        self._seen: dict[str, _Seen] = {}
        self._wrapped: set[tuple[str, str]] = set()
        self._depth = 0
        self._step = 0
        self._main: int | None = None
        self._pid = os.getpid()

    def install(self) -> None:
        """Follow what is loaded now; what is imported later is followed from a step on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._wrap(builtins, "print", "print", is_direct=True)
        for name in ("debug", "info"):
            self._wrap(logging.Logger, name, f"Logger.{name}")
        self._look()
        register_optimizer_step_post_hook(self._stepped)

    def _look(self) -> None:
        for module, kind, names in _FUNCTIONS:
            if (module, kind) in self._wrapped or module not in sys.modules:
                continue
            owner = getattr(sys.modules[module], kind, None) if kind else sys.modules[module]
            if owner is None:
                continue  # it is being imported
            self._wrapped.add((module, kind))
            for name in names:
                if hasattr(owner, name):
                    self._wrap(owner, name, f"{kind or module}.{name}")

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._main is None:
            self._main = id(optimizer)
        if id(optimizer) == self._main:
            self._step += 1
            self._look()

    def _wrap(self, owner: Any, name: str, shown: str, *, is_direct: bool = False) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._depth or not self._step or os.getpid() != self._pid:
                return original(*args, **kwargs)
            if is_direct and not self._own.is_own(sys._getframe(1).f_code.co_filename):
                return original(*args, **kwargs)
            self._depth += 1
            try:
                return self._call(original, args, kwargs, shown)
            finally:
                self._depth -= 1

        setattr(owner, name, wrapper)

    def _call(self, original: Callable[..., Any], args: Any, kwargs: Any, shown: str) -> Any:
        place, _ = call_place(self._own)
        if place is not None and place.key in self._places and self._step % self._every:
            return None
        began = perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            if place is not None:
                self._count(place, shown, perf_counter() - began)

    def _count(self, place: Place, shown: str, seconds: float) -> None:
        seen = self._seen.get(place.key)
        if seen is None:
            seen = self._seen[place.key] = _Seen(place=place, function=shown, first_step=self._step)
        seen.num_calls += 1
        seen.seconds += seconds
        seen.num_steps += seen.last_step != self._step
        seen.last_step = self._step

    def in_each_step(self, elapsed_s: float) -> tuple[LogCall, ...]:
        """Return the calls that are made in each step, the most expensive first.

        Args:
            elapsed_s: seconds since the first step.
        """
        found = [
            LogCall(
                place=seen.place,
                function=seen.function,
                share=min(1.0, seen.seconds / elapsed_s),
                num_per_step=seen.num_calls / seen.num_steps,
            )
            for seen in self._seen.values()
            if seen.num_steps >= _MIN_STEPS
            and seen.num_steps >= _ALWAYS * (self._step - seen.first_step)
        ]
        return tuple(sorted(found, key=lambda one: -one.share)) if elapsed_s > 0 else ()

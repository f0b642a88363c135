"""Watch what a script or a library sends between ranks: how much, and how long that takes."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from time import perf_counter
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.patches import Patches, Switch
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.step_times import has_gpu

ALIKE: Final = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_coalesced",
    "all_gather_single",
    "all_gather_object",
    "_all_gather_base",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "_reduce_scatter_base",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "gather",
    "gather_object",
    "_broadcast_coalesced",
    "barrier",
    "monitored_barrier",
)
DIFFERENT: Final = ("send", "recv", "isend", "irecv", "all_to_all", "all_to_all_single", "scatter")
"""Those that model parallelism uses."""
_FUNCTIONAL: Final = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather_tensor",
    "reduce_scatter_tensor",
    "broadcast",
)
_WITHOUT_DATA: Final = ("barrier", "monitored_barrier")
_MAX_KINDS: Final = 64


class Collectives:
    """Counts calls, the numbers that they move, and the host time that they take on a CPU.

    On a GPU a collective only queues work: its host time says nothing, and is not recorded.

    Attributes:
        spent_s: seconds in collectives of tensors in memory of the host.
        spent_between_s: of these, those between backward and the optimizer's step.
        num_calls, num_elements: calls that move data, and the numbers.
        has_exchange: there were calls that are used for model parallelism.

    Args:
        on_call: called with the kind of each call.
        is_between: returns True between backward and the optimizer's step.
    """

    def __init__(self, on_call: Callable[[str], None], is_between: Callable[[], bool]) -> None:
        self.spent_s = self.spent_between_s = 0.0
        self._is_between = is_between
        self.num_calls = 0
        self.num_elements = 0
        self.has_exchange = False
        self._on_call = on_call
        self._switch: Switch
        self._patches: Patches
        self._depth = 0
        self._thread = threading.get_ident()
        self._has_functional = False

    def install(self, switch: Switch, patches: Patches) -> None:
        """Wrap the functions of torch.distributed."""
        self._switch, self._patches = switch, patches
        package: Any = torch.distributed
        if not package.is_available():
            return
        owners = (package, importlib.import_module("torch.distributed.distributed_c10d"))
        for owner in owners:
            for name in (*ALIKE, *DIFFERENT):
                self._wrap(owner, name)
        self._wrap(package.Work, "wait", kind="wait")

    def add_functional(self) -> None:
        """Wrap the functional collectives as well, once there is a process group."""
        if not self._has_functional:
            self._has_functional = True
            module = importlib.import_module("torch.distributed._functional_collectives")
            for name in _FUNCTIONAL:
                self._wrap(module, name)

    def _wrap(self, owner: ModuleType | type, name: str, kind: str | None = None) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return
        kind = kind or name.removeprefix("_")

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self._switch.is_on or self._depth or torch.compiler.is_compiling():
                return original(*args, **kwargs)
            if threading.get_ident() != self._thread:  # of autograd, on a GPU
                return original(*args, **kwargs)
            is_timed = self._note(kind, (args, kwargs))
            self._depth += 1
            began = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                if is_timed:
                    took_s = perf_counter() - began
                    self.spent_s += took_s
                    self.spent_between_s += took_s * self._is_between()

        if not isinstance(owner, type):
            functools.update_wrapper(wrapper, original)
        self._patches.replace(owner, name, wrapper)

    def _note(self, kind: str, given: Any) -> bool:
        """Count a call, and return whether its host time is that of the communication."""
        if kind == "wait":
            return not has_gpu()
        found = list(_some_tensors(given))
        self._on_call(kind)
        if kind in DIFFERENT:
            self.has_exchange = True
        if kind not in _WITHOUT_DATA:
            self.num_calls += 1
            self.num_elements += max(1, sum(one.numel() for one in found))
        return all(one.device.type == "cpu" for one in found) and not (not found and has_gpu())


def _some_tensors(given: Any) -> Iterator[Tensor]:
    for num, one in enumerate(tensors_in(given, 4)):
        if num >= _MAX_KINDS:
            return
        yield one

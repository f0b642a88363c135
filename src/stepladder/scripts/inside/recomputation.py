"""Activations that a script recomputes in backward: where, for how long, and how large they are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import checkpoint

from stepladder.records.script import Place
from stepladder.scripts.inside.places import call_place
from stepladder.scripts.settings import CHECKPOINT_OPTIONS
from stepladder.watching.script.own_code import OwnCode

_MAX_PLACES: Final = 16


class Recomputation:
    """Times the calls of `torch.utils.checkpoint.checkpoint` in which gradients are computed.

    The forward of such a call is repeated in backward and takes about as long again. The first call
    of each place keeps its activations, so that their size is known.

    Attributes:
        seconds: of all these calls.
        places: where the script calls it, by file and line; None: in no file of its own.
    """

    def __init__(self, own: OwnCode) -> None:
        self.seconds = 0.0
        self.places: dict[str, Place | None] = {}
        self._own = own
        self._bytes: dict[str, int] = {}
        self._num_calls: dict[str, int] = {}

    def install(self) -> None:
        """Wrap the function, before a script imports it."""
        original = checkpoint.checkpoint

        @functools.wraps(original)
        def wrapper(function: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return original(function, *args, **kwargs)
            place, _ = call_place(self._own)
            key = "" if place is None else place.key
            if key not in self.places and len(self.places) >= _MAX_PLACES:
                return original(function, *args, **kwargs)
            began = perf_counter()
            if key not in self.places:
                self.places[key] = place
                self._bytes[key], result = _measured(function, args, kwargs)
            else:
                result = original(function, *args, **kwargs)
            self.seconds += perf_counter() - began
            self._num_calls[key] = self._num_calls.get(key, 0) + 1
            return result

        checkpoint.checkpoint = wrapper

    def bytes_in(self, num_steps: int) -> int:
        """Return the memory that the activations of a step take if they are kept."""
        total = sum(size * self._num_calls[key] for key, size in self._bytes.items())
        return total // max(1, num_steps)


def keep_activations() -> None:
    """Let `torch.utils.checkpoint.checkpoint` call its function, and nothing else."""
    original = checkpoint.checkpoint

    @functools.wraps(original)
    def direct(function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **_without_options(kwargs))

    checkpoint.checkpoint = direct


def _measured(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> tuple[int, Any]:
    """Call a function, and return the bytes that it keeps for backward, with its result."""
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not (tensor.is_leaf and tensor.requires_grad):  # weights are kept anyway
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*args, **_without_options(kwargs))
    return sum(kept.values()), result


def _without_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name not in CHECKPOINT_OPTIONS}

"""Follow tokens through the operations of a model: what summarises them, and what mixes them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.script.own_code import OwnCode

_KEEPING: Final = frozenset({F.pad, F.conv1d, torch.conv1d, torch.cat})  # may change the length
_MAX_BYTES: Final = 32 << 20  # of results that are compared
_MOVED: Final = 1e-4  # of the largest value, left by rounding


class _Following(TorchFunctionMode):
    """Passes each call of torch on, and shows it to a listener."""

    def __init__(self, listener: Any) -> None:
        super().__init__()
        self._listener = listener

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self._listener(func, args, kwargs or {}, result)
        return result


class Flow:
    """Follows what is computed from tokens, to find a summary of all places.

    A model that reads its whole input into a summary, and predicts each token given this and the
    tokens before, is an autoencoder: its scores are meant to depend on later tokens. Layers of
    models that only predict keep a number for each place.

    Args:
        num_rows, time: of the tokens; no layer may have as many features as there are places.

    Attributes:
        why_not: why the model may be meant to depend on later tokens; None if it is not.
    """

    def __init__(self, *, num_rows: int, time: int) -> None:
        self.why_not: str | None = None
        self._sizes = {time, time * num_rows}
        self._length = time
        self._known: dict[int, tuple[weakref.ref[Tensor], bool]] = {}
        self._num_embeddings = 0

    @contextmanager
    def following(self, tokens: Tensor) -> Iterator[None]:
        """Follow what is computed from tokens."""
        self._known = {id(tokens): (weakref.ref(tokens), True)}
        with _Following(self._note):
            yield

    def end(self, scores: Tensor) -> None:
        """Check that the scores were followed."""
        if self._state(scores) is not True:
            self._refuse("its operations cannot be followed")
        self._known = {}

    def _refuse(self, why: str) -> None:
        self.why_not = self.why_not or why

    def _state(self, value: Tensor) -> bool | None:
        """Return whether a tensor has a number for each place; None if it is not of tokens."""
        ref, has_time = self._known.get(id(value), (None, False))
        return has_time if ref is not None and ref() is value else None

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = [one for one in tensors_in((args, kwargs), 3) if self._state(one) is not None]
        if not given:
            return
        is_written = getattr(func, "__name__", "") == "__setitem__"
        results = list(tensors_in(args[0] if is_written else result, 2))
        if func == F.embedding:
            self._num_embeddings += 1
            if self._num_embeddings > 1:
                self._refuse("it embeds its tokens twice, as an encoder and a decoder do")
        is_summary = any(not self._state(one) and one.is_floating_point() for one in given)
        is_kept = func in _KEEPING and any(self._state(one) for one in given)
        for one in results:
            has_time = not self._sizes.isdisjoint(one.shape)
            has_time = has_time or (is_kept and 4 * one.shape[-1] >= 3 * self._length)
            has_time = has_time or (is_kept and func == torch.cat)
            if has_time and is_summary and one.is_floating_point():
                self._refuse("it computes scores from a summary of all places")
            self._known[id(one)] = (weakref.ref(one), has_time)


class FirstMix:
    """Finds the first operation whose result at earlier places depends on later tokens.

    Run twice, with the same tokens and then with others from some place on.

    Args:
        time, place: of the tokens, and where others begin.

    Attributes:
        operation: its name; None if it was not found.
        where: its line.
    """

    def __init__(self, time: int, place: int, own: OwnCode) -> None:
        self.operation: str | None = None
        self.where: str | None = None
        self._time, self._place = time, place
        self._own = own
        self._results: list[tuple[Any, Tensor | None]] = []
        self._num_bytes = 0
        self._num_runs = 0
        self._idx = 0

    @contextmanager
    def run(self) -> Iterator[None]:
        """Follow one call of the model."""
        self._num_runs += 1
        self._idx = 0
        with _Following(self._store if self._num_runs == 1 else self._compare):
            yield
        if self._num_runs > 1:
            self._results = []

    def _earlier(self, result: Any) -> Tensor | None:
        """Return the numbers of a result at earlier places, if one dimension is that of places."""
        one = next(tensors_in(result, 2), None)
        if one is None or not one.is_floating_point() or one.requires_grad:
            return None
        dims = [dim for dim, size in enumerate(one.shape) if size == self._time]
        return one.narrow(dims[0], 0, self._place) if len(dims) == 1 else None

    def _store(self, func: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        one = self._earlier(result)
        self._num_bytes += 0 if one is None else one.nbytes
        if self._num_bytes <= _MAX_BYTES:
            self._results.append((func, None if one is None else one.clone()))

    def _compare(self, func: Any, _args: Any, _kwargs: Any, result: Any) -> None:
        idx, self._idx = self._idx, self._idx + 1
        if self.where is not None or idx >= len(self._results):
            return
        known, before = self._results[idx]
        now = self._earlier(result)
        if known != func or before is None or now is None or before.shape != now.shape:
            return
        if bool((now - before).abs().max() > _MOVED * before.abs().max()):
            self.operation = str(getattr(func, "__name__", ""))
            self.where = self._own.here()

"""Peak memory of a step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    """Return the peak memory of a call.

    On CUDA: the peak of torch's allocator, including weights. On the CPU: the peak bytes of live
    tensors that the call itself created, counted when the result of an operation is created and
    freed; temporary memory of kernels is not counted. (Growth of the process is no measure: memory
    that malloc kept is reused.)
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device))
    with live_bytes() as live:
        run()
    peak: int = live.peak
    return peak


def live_bytes() -> LiveBytes:
    """Return what counts the bytes of live tensors that a block creates, in `peak`."""
    return LiveBytes()


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live storages that operations created.

    Attributes:
        peak: the most so far.
    """

    peak: int

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        known = {id(storage) for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in known and id(storage) not in self._alive:
                self._add(storage)
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = id(storage), storage.nbytes()

        def forget(_: Any) -> None:
            self._now -= num_bytes
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, forget)
        self._now += num_bytes
        self.peak = max(self.peak, self._now)


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]

"""The best weights of a run: in memory until the next commit, then on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Weights = Mapping[str, Tensor]


@dataclass
class Kept:
    """One of the best weights.

    Attributes:
        value: what it was judged by, lower is better.
        weights: a copy on the CPU until it is on disk and some other is better; then None.
    """

    name: str
    step: int
    epoch: int
    value: float
    is_committed: bool = False
    weights: dict[str, Tensor] | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """Give its JSON values."""
        return {"name": self.name, "step": self.step, "epoch": self.epoch, "value": self.value}


class BestWeights:
    """Keeps the k best weights, the best first; of equal ones the earlier.

    Args:
        k: how many.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._kept: list[Kept] = []

    @property
    def best(self) -> Kept | None:
        """The best so far."""
        return self._kept[0] if self._kept else None

    def names(self) -> list[str]:
        """Names of the kept ones, best first."""
        return [kept.name for kept in self._kept]

    def offer(self, value: float, *, step: int, epoch: int, weights: Callable[[], Weights]) -> None:
        """Keep the weights if they are among the k best.

        Args:
            value: lower is better.
            weights: called only if they are kept; its tensors are copied to the CPU.
        """
        if len(self._kept) == self._k and value >= self._kept[-1].value:
            return
        copy = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights().items()}
        self._kept.append(Kept(f"best-{step:09d}", step, epoch, value, weights=copy))
        self._kept.sort(key=lambda kept: (kept.value, kept.step))
        del self._kept[self._k :]

    def uncommitted(self) -> Iterable[Kept]:
        """Give those that are in memory only."""
        return [kept for kept in self._kept if not kept.is_committed]

    def mark_committed(self) -> None:
        """Note that all are on disk, and free the memory of all but the best."""
        for rank, kept in enumerate(self._kept):
            kept.is_committed = True
            if rank:
                kept.weights = None

    def forget_weights(self) -> None:
        """Free the memory of all that are on disk; from now on they are read from there."""
        for kept in self._kept:
            if kept.is_committed:
                kept.weights = None

    def state(self) -> list[dict[str, Any]]:
        """Give the JSON values that restore this object (the weights are on disk by then)."""
        return [kept.record() for kept in self._kept]

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Go on from saved values."""
        self._kept = [
            Kept(
                str(record["name"]),
                int(record["step"]),
                int(record["epoch"]),
                float(record["value"]),
                is_committed=True,
            )
            for record in records
        ]

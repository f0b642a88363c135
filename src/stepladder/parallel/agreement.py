"""What all ranks have to know of a step: its loss, and whether training ends or is saved now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.machine.activity import waiting_for_others
from stepladder.parallel.world import World


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What a rank wants to happen at the end of a step; what happens is agreed by all ranks.

    Attributes:
        signal: number of the signal that asks to end the run; 0: none.
        is_time_over: the time of the run is over.
        is_worse: the run is worse than its baseline.
        is_commit_due: a checkpoint is due.
    """

    signal: int = 0
    is_time_over: bool = False
    is_worse: bool = False
    is_commit_due: bool = False

    def to_values(self) -> list[float]:
        """Return one number for each field."""
        return [float(getattr(self, field.name)) for field in fields(self)]

    @classmethod
    def of_all(cls, values: Tensor) -> Self:
        """Return what is wanted by any rank, from the maximum over ranks of each number."""
        numbers = [int(value) for value in values.tolist()]
        signal, *others = numbers
        names = [field.name for field in fields(cls)][1:]
        return cls(signal=signal, **dict(zip(names, map(bool, others), strict=True)))


NO_WISHES: Final = Wishes()
_NUM_WISHES: Final = len(fields(Wishes))


@dataclass(kw_only=True)
class StepAgreement:
    """The exchange of one step: begun after the forward pass, and read after the backward pass.

    The few numbers travel while gradients are computed, in a process group of their own.
    """

    world: World
    _loss: Tensor | None = None
    _values: Tensor | None = None
    _works: list[Any] = field(default_factory=list)

    def begin(self, loss_sum: Tensor, wishes: Wishes) -> None:
        """Send the sum of this rank's losses, and its wishes.

        Each rank writes into a row of its own, so that one sum serves for losses, which are added,
        and for wishes, of which the largest counts. On a GPU the loss travels from device to
        device, so that no step waits for the host.
        """
        self._values = torch.zeros((self.world.size, 1 + _NUM_WISHES), dtype=torch.float64)
        own = self._values[self.world.rank]
        own[1:] = torch.tensor(wishes.to_values())
        if loss_sum.device.type == "cpu":
            own[0] = loss_sum.detach()
            self._loss, self._works = None, []
        else:
            self._loss = loss_sum.detach().clone()
            self._works = [dist.all_reduce(self._loss, async_op=True)]
        work = dist.all_reduce(self._values, group=self.world.steps, async_op=True)
        self._works.append(work)

    def end(self) -> tuple[Tensor, Wishes]:
        """Return the sum of all ranks' losses, on the device, and what is agreed."""
        assert self._values is not None
        with waiting_for_others():
            for work in self._works:
                work.wait()
        values, loss = self._values, self._loss
        self._values, self._loss, self._works = None, None, []
        wishes = Wishes.of_all(values[:, 1:].max(dim=0).values)
        return values[:, 0].sum().float() if loss is None else loss, wishes


def agree(world: World, wishes: Wishes) -> Wishes:
    """Return what is agreed by all ranks, outside of a step."""
    if world.is_alone:
        return wishes
    values = torch.tensor(wishes.to_values(), dtype=torch.float64)
    with waiting_for_others():
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=world.steps)
    return Wishes.of_all(values)


def sum_of(world: World, values: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of named numbers over all ranks; every rank passes the same names."""
    if world.is_alone or not values:
        return dict(values)
    flat = torch.tensor([values[name] for name in sorted(values)], dtype=torch.float64)
    with waiting_for_others():
        dist.all_reduce(flat, group=world.steps)
    return dict(zip(sorted(values), flat.tolist(), strict=True))

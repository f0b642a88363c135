"""Decide when the gradients of workers become an update, so that none is older than a bound.

The age of a gradient is the number of updates between the weights that it was computed from and
those that it changes. An update makes every gradient that is still being computed one older. So it
has to wait if that would exceed the bound, and the gradients that arrive meanwhile are averaged
into it. This one rule gives

- with a bound of 0: synchronous SGD, since an update waits for all workers;
- without a bound: asynchronous SGD, in which each gradient is an update of its own;
- in between: stale synchronous SGD, whose fastest worker waits for the slowest.

With backup workers, an update needs only the first few gradients of the current weights, and those
that come later are dropped.

Source: Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1; Ho et al. 2013,
"More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server"; Chen et al. 2016,
"Revisiting Distributed Synchronous SGD", arXiv:1604.00981.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from stepladder.config.choices import AsyncMethod
from stepladder.config.recipe import AsynchronousConfig


class Group(NamedTuple):
    """Workers whose gradients leave the gate together.

    Attributes:
        workers: those of the next update, in the order of their arrival.
        ages: of their gradients, in updates.
        dropped: workers whose gradients are too old to be used.
    """

    workers: tuple[int, ...] = ()
    ages: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(kw_only=True)
class Gate:
    """Holds gradients back until their update may happen.

    Attributes:
        max_age: the most updates that a gradient may be behind; None: no limit.
        num_needed: gradients that an update needs; fewer, if fewer workers are left.
        drops_late: gradients that are not of the current weights are dropped.
        version: updates so far.
    """

    max_age: int | None
    num_needed: int = 1
    drops_late: bool = False
    version: int = 0
    _computing: dict[int, int] = field(default_factory=dict)  # worker → version of its weights
    _waiting: dict[int, int] = field(default_factory=dict)  # in the order of arrival

    def begin(self, worker: int) -> int:
        """Note that a worker begins to compute from the current weights; return their version."""
        self._waiting.pop(worker, None)
        self._computing[worker] = self.version
        return self.version

    def arrive(self, worker: int) -> Group:
        """Take the gradient of a worker, and return what leaves the gate because of it."""
        self._waiting[worker] = self._computing.pop(worker)
        return self.release()

    def leave(self, worker: int) -> Group:
        """Forget a worker that has ended, and return what does not have to wait for it any more."""
        self._computing.pop(worker, None)
        self._waiting.pop(worker, None)
        return self.release()

    def release(self) -> Group:
        """Return the next update, if it may happen now; it counts as having happened."""
        late = self._late()
        for worker in late:
            del self._waiting[worker]
        if not self._waiting or not self._may_update():
            return Group(dropped=late)
        workers = tuple(self._waiting)
        ages = tuple(self.version - version for version in self._waiting.values())
        self._waiting.clear()
        self.version += 1
        return Group(workers, ages, late)

    def _late(self) -> tuple[int, ...]:
        if not self.drops_late:
            return ()
        return tuple(worker for worker, at in self._waiting.items() if at < self.version)

    def _may_update(self) -> bool:
        num_there = len(self._waiting) + len(self._computing)
        if len(self._waiting) < min(self.num_needed, num_there):
            return False
        if self.max_age is None:
            return True
        oldest = min(self._computing.values(), default=self.version + 1)
        return self.version + 1 - oldest <= self.max_age


def gate_of(config: AsynchronousConfig) -> Gate:
    """Return the gate of a method in which a server combines what workers send."""
    if config.method is AsyncMethod.BACKUP_WORKERS:
        needed = config.workers - config.num_backup
        return Gate(max_age=None, num_needed=needed, drops_late=True)
    if config.method is AsyncMethod.HOGWILD:
        return Gate(max_age=None)  # workers do not wait, and count the ages themselves
    return Gate(max_age=0 if config.is_local else config.max_age)

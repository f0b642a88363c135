"""What is asked of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepladder.config.choices import Precision
from stepladder.parallel.divided.choice import Kind
from stepladder.planning.hardware.connections import Connection
from stepladder.planning.hardware.gpus import Gpu
from stepladder.planning.hardware.machines import Machine
from stepladder.planning.step.step import Driver

HOSTS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        machines, hosts: kinds of machines, and numbers of them.
        batches: examples of a step over all devices; empty: that of the job.
        all_reduces: names of ways of exchanging gradients, of EXCHANGES.
        precisions: of the arithmetic; empty: that of the measurement.
        kinds: how devices share the work, each planned; empty: copies of the model if they fit,
            otherwise the fastest way that does.
        slow_device: times by which one of several devices is slower.
        slow_network: of one of several machines; None: as that of the others.
        interrupted_every_s: mean seconds after which a machine fails or is taken away; None: never.
        deadline_s, budget: upper limits; None: none.
        gpus: the user's list with prices.
        driver: of single-process replication; None: a process for each device.
    """

    machines: tuple[Machine, ...]
    hosts: tuple[int, ...] = HOSTS
    batches: tuple[int, ...] = ()
    all_reduces: tuple[str, ...] = ("native",)
    precisions: tuple[Precision, ...] = ()
    kinds: tuple[Kind, ...] = ()
    slow_device: float = 1.0
    slow_network: Connection | None = None
    interrupted_every_s: float | None = None
    deadline_s: float | None = None
    budget: float | None = None
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None

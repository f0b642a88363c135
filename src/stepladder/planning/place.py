"""Machines, and how they train together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from stepladder.config.choices import Precision
from stepladder.parallel.divided.choice import Kind
from stepladder.planning.costs.all_reduce import ALL_REDUCES, Group
from stepladder.planning.hardware.connections import Connection
from stepladder.planning.hardware.gpus import Gpu
from stepladder.planning.hardware.machines import Machine
from stepladder.planning.hardware.ranges import Case, Range
from stepladder.planning.hardware.speed import precision_gain, speed_of
from stepladder.planning.job import PlannedJob
from stepladder.planning.step.step import Driver

ASYNCHRONOUS: Final = "asynchronous"
BACKUP_WORKERS: Final = "backup_workers"
EXCHANGES: Final = (*ALL_REDUCES, ASYNCHRONOUS, BACKUP_WORKERS)
"""Ways in which devices exchange gradients: all of ALL_REDUCES wait for each other."""
SERVED: Final = (ASYNCHRONOUS, BACKUP_WORKERS)
"""Those with a parameter server that does not wait for all."""
_BACKUP_FRAC: Final = 0.05
"""Workers that are not waited for; Chen et al. 2016, arXiv:1604.00981: 4 of 100."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Machines, and how they train together.

    Attributes:
        machine: of which kind; hosts, devices: how many, and devices in use of each.
        batch: examples of a step on all devices.
        all_reduce: how gradients are exchanged, one of EXCHANGES; empty on one device.
        gpus: the user's list with prices.
        driver: of single-process replication; None: a process for each device.
        precision: of the arithmetic.
        interrupted_every_s: mean seconds after which a machine fails or is taken away; None: never.
        kinds: how devices may share the work; empty: copies of the model if they fit.
        slow_device: times by which one of several devices is slower.
        slow_network: of one of several machines; None: as that of the others.
    """

    machine: Machine
    hosts: int
    devices: int
    batch: int
    all_reduce: str
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    precision: Precision = Precision.FP32
    interrupted_every_s: float | None = None
    kinds: tuple[Kind, ...] = ()
    slow_device: float = 1.0
    slow_network: Connection | None = None

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices

    @property
    def is_asynchronous(self) -> bool:
        """Whether nobody waits for others."""
        return self.all_reduce == ASYNCHRONOUS and self.num > 1

    @property
    def num_backups(self) -> int:
        """Devices of a step that are not waited for."""
        is_backed_up = self.all_reduce == BACKUP_WORKERS and self.num > 1
        return math.ceil(_BACKUP_FRAC * self.num) if is_backed_up else 0

    @property
    def own(self) -> int:
        """Examples of a device in a step."""
        return math.ceil(self.batch / (self.num - self.num_backups))

    def speed(self, job: PlannedJob) -> Range | None:
        """Return how many times as fast a device computes as that of the measurement."""
        gpu = self.machine.gpu
        gain = precision_gain(job.rates, gpu, measured=job.precision, asked=self.precision)
        device = speed_of(job.rates, gpu, job.precision)
        if gain is None or device is None:
            return None
        rest = replace(device, provenance=max(gain, device, key=_width).provenance)
        return replace(
            rest,
            best=device.best * gain.best,
            likely=device.likely * gain.likely,
            worst=device.worst * gain.worst,
            source=device.source if gain.likely == 1 else f"{device.source}; {gain.source}",
        )

    def group(self, case: Case) -> Group:
        """Return the devices with the cost of their messages."""
        inside = self.machine.inside
        return Group(
            hosts=self.hosts,
            devices=self.devices,
            inside=None if inside is None else inside.link(case),
            network=self.machine.network.link(case),
            cards=self.machine.cards,
            slow=None if self.slow_network is None else self.slow_network.link(case),
        )


def place_words(machine: str, hosts: int, devices: int) -> str:
    """Return `8 × p3.2xlarge`, or `4 nodes × 2` without a name."""
    if machine:
        return f"{hosts} × {machine}" + (f" with {devices} device{'s' if devices > 1 else ''}")
    return f"{hosts} node{'s' if hosts > 1 else ''} × {devices}"


def _width(value: Range) -> float:
    return value.best / value.worst

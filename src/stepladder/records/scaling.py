"""How training scales with devices: throughput, efficiency, and where the rest of it is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from stepladder.records.ladder import Interval

SCALING_FILE: Final = "scaling.json"
MAX_UNEXPLAINED_FRAC: Final = 0.10
MAX_OVERLAP_FRAC: Final = 0.05


class Part(StrEnum):
    """A part of the time of N devices; see "Several ranks" in docs/design.md."""

    COMPUTE = "compute"
    MICRO_BATCH = "micro_batch"
    CONTENTION = "contention"
    STRAGGLERS = "stragglers"
    COMMUNICATION = "communication"
    DATA = "data"
    SERIAL = "serial"
    UNEXPLAINED = "unexplained"


WORDS: Final = {
    Part.COMPUTE: "compute",
    Part.MICRO_BATCH: "smaller micro batch",
    Part.CONTENTION: "sharing the host",
    Part.STRAGGLERS: "stragglers",
    Part.COMMUNICATION: "communication",
    Part.DATA: "data",
    Part.SERIAL: "serial",
    Part.UNEXPLAINED: "unexplained",
}
"""Names of the parts, in texts and on pages."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """How busy a device was while the training loop ran.

    Attributes:
        host: name of its machine.
        ends_s: end of each window, in seconds of training.
        busy_frac: share of each window: on a CPU, the CPU time of the process over that of its
            cores; on a GPU, the time without waiting for data.
    """

    rank: int
    host: str
    ends_s: tuple[float, ...]
    busy_frac: tuple[float, ...]

    @property
    def mean_frac(self) -> float:
        """The mean over the time."""
        total = before = 0.0
        for end, busy in zip(self.ends_s, self.busy_frac, strict=True):
            total += busy * (end - before)
            before = end
        return total / before if before > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """Training on some devices.

    Attributes:
        hosts, devices: number of machines, and of devices in each.
        is_measured: False: predicted.
        step_s: a full step of the training loop.
        epoch_s: an epoch, with its share of what is beside the steps.
        examples_per_s: throughput of an epoch.
        efficiency: share of compute, over that of one device; bounds only if measured.
        parts_s: seconds of an epoch by part; they add up to epoch_s.
        serial_s: seconds of an epoch by kind of serial work.
        num_blocks: blocks of each kind that were timed.
        cost_per_epoch, cost: in the currency of the list of prices; cost: to the last epoch. None:
            not known.
        use: of each device; empty if predicted.
    """

    hosts: int
    devices: int
    is_measured: bool
    step_s: float
    epoch_s: float
    examples_per_s: float
    efficiency: Interval
    parts_s: Mapping[str, float]
    serial_s: Mapping[str, float] = field(default_factory=dict)
    num_blocks: int = 0
    cost_per_epoch: float | None = None
    cost: float | None = None
    use: tuple[DeviceUse, ...] = ()

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices

    @property
    def layout(self) -> str:
        """Hosts × devices, such as `2 × 4`."""
        return f"{self.hosts} × {self.devices}"

    def share(self, part: Part) -> float:
        """Return the share of a part in the time of an epoch."""
        return self.parts_s.get(part.value, 0.0) / self.epoch_s if self.epoch_s > 0 else 0.0

    def largest_loss(self) -> Part | None:
        """Return the largest part beside compute; None if nothing is lost."""
        parts = [part for part in Part if part is not Part.COMPUTE]
        largest = max(parts, key=self.share)
        return largest if self.share(largest) > 0 else None

    def why_no_advice(self) -> str | None:
        """Return why the split is no basis for a decision, or None if it adds up."""
        share = self.share(Part.UNEXPLAINED)
        if share > MAX_UNEXPLAINED_FRAC:
            return f"{100 * share:.0f} % of the time is not explained (limit: 10 %)"
        if share < -MAX_OVERLAP_FRAC:
            return f"the parts add up to {100 * (1 - share):.0f} % of the time (limit: 105 %)"
        return None


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Training of one job on different numbers of devices.

    Attributes:
        job: its name.
        device: `cpu` or `cuda`.
        device_name: of the hardware.
        cores: of a device, on a CPU; None: a device is a GPU.
        batch: global batch size.
        num_train: examples of an epoch.
        epochs: most epochs of the training, among which the start is divided.
        network_gbit_s: of predictions of several machines.
        is_network_assumed: it was not given.
        points: measured ones first, by number of devices.
        notes: what a reader has to know, one sentence each.
    """

    job: str
    device: str
    device_name: str
    cores: int | None
    batch: int
    num_train: int
    epochs: float
    network_gbit_s: float
    is_network_assumed: bool
    points: tuple[ScalingPoint, ...]
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[ScalingPoint, ...]:
        """The measured points."""
        return tuple(point for point in self.points if point.is_measured)

    @property
    def predicted(self) -> tuple[ScalingPoint, ...]:
        """The predicted points."""
        return tuple(point for point in self.points if not point.is_measured)

"""plan.json: what a training would take on other hardware, with the origin of each number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stepladder.records.profile import Provenance

PLAN_FILE: Final = "plan.json"
NETWORK_FACTORS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Speeds of the network, over that of the plan, for which the page knows the time of a step."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """A predicted number, between the best and the worst of what is not known exactly."""

    best: float
    likely: float
    worst: float


@dataclass(frozen=True, kw_only=True)
class PlanInput:
    """A number that a plan uses.

    Attributes:
        name, unit: in words.
        bounds: the value; equal numbers if it is measured.
        provenance, source: where it is from.
    """

    name: str
    unit: str
    bounds: Bounds
    provenance: Provenance
    source: str


@dataclass(frozen=True, kw_only=True)
class PlanPoint:
    """A training on some machines.

    Attributes:
        machine: its name.
        hosts, devices: number of machines, and of devices in each.
        batch: examples of an optimizer step over all devices.
        micro_batch, accumulation: examples of a device in a pass, and passes of a step.
        all_reduce: how gradients are added up; empty on one device.
        precision: of the arithmetic.
        kind: how the devices share the work: copies of the model, or parts of it.
        step_s, epoch_s, total_s: seconds; the total also depends on when training ends.
        epochs: until training ends, more of them with a larger batch.
        more_examples_frac: by how much more examples are seen than with the batch of the job.
        parts_s: seconds of a step by part, as in `planning.step.StepTime`.
        examples_per_s: in the training loop.
        efficiency: examples per second and device, over those of one device with the same examples
            in a pass.
        cost: price of the whole training; None: prices are not known.
        memory_bytes, memory_limit_bytes: of a device, needed and there; None: not known.
        limit: what limits it, in words.
        paid_devices: devices of all machines, with those that are not in use.
        lr_factor: by which this batch multiplies the learning rate; the first is for SGD, the
            second for Adam and its kin.
        largest_micro_batch: most examples of a device in a pass; None: no limit is known.
        network_steps_s: seconds of a step with networks of NETWORK_FACTORS times the speed.
        beside_s: seconds beside the steps: start, work done once, validations, checkpoints.
        mean_age: updates between the weights of a gradient and those that it changes, on average;
            None: they are the same.
        is_best: no other point is faster and cheaper (without prices: on fewer devices).
        is_knee: of the best ones, where more devices begin to give less than they cost.
    """

    machine: str
    hosts: int
    devices: int
    batch: int
    micro_batch: int
    accumulation: int
    all_reduce: str
    precision: str
    kind: str
    step_s: Bounds
    epoch_s: Bounds
    total_s: Bounds
    epochs: Bounds
    more_examples_frac: float
    parts_s: Mapping[str, float]
    examples_per_s: float
    efficiency: float
    cost: Bounds | None = None
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    limit: str = ""
    paid_devices: int = 1
    lr_factor: tuple[float, float] = (1.0, 1.0)
    largest_micro_batch: int | None = None
    network_steps_s: tuple[float, ...] = ()
    beside_s: float = 0.0
    mean_age: float | None = None
    is_best: bool = False
    is_knee: bool = False

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of `stepladder plan`.

    Attributes:
        job: what is trained, in words.
        now: the training as it was measured.
        inputs: all numbers that were used.
        points: by machine, batch, devices and all-reduce.
        refused: what cannot be trained, and what would make it possible.
        answer: the recommendation, in one sentence.
        notes: about the whole plan.
        deadline_s, budget: what the user asked for; None: nothing.
    """

    job: str
    now: PlanPoint | None
    inputs: tuple[PlanInput, ...]
    points: tuple[PlanPoint, ...]
    refused: tuple[str, ...] = ()
    answer: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)
    deadline_s: float | None = None
    budget: float | None = None

    @property
    def is_priced(self) -> bool:
        """True if the price of every training is known; otherwise device hours are compared."""
        return all(point.cost is not None for point in self.points)

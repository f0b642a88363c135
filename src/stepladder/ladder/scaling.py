"""Measure how training scales with devices, and predict numbers that this machine does not have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch

from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.machine import num_cores
from stepladder.measuring.ranks.ablation import Ablation, measure_ablation
from stepladder.measuring.saving import checkpoints_s
from stepladder.planning.hardware.gpus import Gpu, price_per_hour
from stepladder.records.ladder import Interval
from stepladder.records.profile import TrainingTime
from stepladder.records.scaling import WORDS, Part, Scaling, ScalingPoint
from stepladder.rungs import GPUS, read_gpus
from stepladder.rungs.devices.more_machines import ASSUMED_GBIT_S, ring_s
from stepladder.stats.estimates import mean_estimate
from stepladder.stats.maxima import expected_max
from stepladder.stats.student import t_quantile
from stepladder.task.contract import Task
from stepladder.training.output.wording import percent
from stepladder.training.setup.attempt import device_name

_BACKWARD_FRAC: Final = 2 / 3
"""Of a step's arithmetic: the backward pass takes about twice as long as the forward pass."""
_BUCKET_BYTES: Final = 25 * 1024**2
_VALIDATION, _CHECKPOINT, _START = "validation", "checkpoint", "start"
_CONFIDENCE: Final = 0.95


class Layout(NamedTuple):
    """Machines, and devices in each."""

    hosts: int
    devices: int

    @property
    def num(self) -> int:
        """Number of devices in total."""
        return self.hosts * self.devices


def counts_up_to(num: int) -> tuple[int, ...]:
    """Return 1, 2, 4, … and the number itself."""
    return tuple(sorted({num, *(2**power for power in range(num.bit_length()))}))


def measure_scaling(
    job: JobConfig,
    recipe: Recipe,
    task: Task,
    *,
    name: str,
    counts: Sequence[int],
    layouts: Sequence[Layout] = (),
    device: torch.device,
    folder: Path,
    copies: Path,
    budget_s: float = math.inf,
    message: Callable[[str], None] = lambda _: None,
) -> Scaling:
    """Measure a recipe on several numbers of devices of this machine, and predict the others.

    Args:
        recipe: with all choices made; `device.count` is ignored.
        name: of the job, as it is shown.
        counts: numbers of devices; one device is always measured, and more than this machine has
            are predicted.
        layouts: further machines × devices to predict.
        folder: a private one, on the disk of the run.
        copies: folder with decoded copies of the store.
        budget_s: seconds for the measurements of each number of devices.
        message: shows progress.

    Raises:
        UsageError: if a batch cannot be divided, or other processes cannot make the task.
        ResourceError: if a process ends.
    """
    is_cuda = device.type == "cuda"
    there = torch.cuda.device_count() if is_cuda else num_cores()
    here = sorted({1, *(num for num in counts if num <= there)})
    cores = None if is_cuda else max(1, num_cores() // here[-1])
    found: dict[int, Ablation] = {}
    for num in here:
        message(f"measuring {num} device{'s' if num > 1 else ''} …")
        found[num] = measure_ablation(
            num,
            recipe,
            task,
            is_cuda=is_cuda,
            folder=folder,
            copies=copies,
            cores=cores,
            block_s=job.ladder.block_s,
            budget_s=budget_s,
        )
    costs = Costs(
        recipe=recipe,
        every_s=job.run.checkpoint_every_s,
        gpus=GPUS if job.ladder.prices is None else read_gpus(job.ladder.prices),
        device_name=device_name(device),
    )
    points = [measured_point(found[num], found[1], costs) for num in here]
    speed = job.ladder.network_gbit_s
    network = ASSUMED_GBIT_S if speed is None else speed
    wanted = layouts_to_predict(counts, here, layouts)
    guesses = [
        predicted_point(at, points, found, costs, network_gbit_s=network, is_cuda=is_cuda)
        for at in wanted
    ]
    batch = recipe.batch.global_batch_size
    return Scaling(
        job=name,
        device=device.type,
        device_name=device_name(device),
        cores=cores,
        batch=batch,
        num_train=found[1].num_train,
        epochs=costs.epochs(found[1].num_train),
        network_gbit_s=network,
        is_network_assumed=speed is None,
        points=(*points, *(guess for guess in guesses if guess is not None)),
        notes=tuple(_notes(points, batch, recipe=recipe, there=there, counts=counts)),
    )


def efficiency_words(point: ScalingPoint) -> str:
    """Return the efficiency of a point, and what is lost, the largest part first."""
    losses = [part for part in Part if part is not Part.COMPUTE and point.share(part) >= 0.005]
    losses.sort(key=point.share, reverse=True)
    listed = ", ".join(f"{WORDS[part]} {percent(point.share(part), 0)}" for part in losses)
    said = f"efficiency {percent(point.efficiency.estimate, 0)} on {point.num} devices"
    return f"{said}; of the time: {listed}" if listed else said


class Costs(NamedTuple):
    """What decides how often there are validations and checkpoints, and what a device costs."""

    recipe: Recipe
    every_s: float
    gpus: tuple[Gpu, ...] = GPUS
    device_name: str = ""

    def steps_per_epoch(self, num_train: int) -> float:
        """Return the steps of an epoch; a smaller last one counts as a fraction."""
        return num_train / self.recipe.batch.global_batch_size

    def epochs(self, num_train: int) -> float:
        """Return the most epochs of the training."""
        schedule = self.recipe.schedule
        if schedule.max_steps is None:
            return float(schedule.max_epochs)
        return min(schedule.max_epochs, schedule.max_steps / self.steps_per_epoch(num_train))

    def validations(self, num_train: int) -> float:
        """Return the number of validations in an epoch."""
        stopping = self.recipe.stopping
        if stopping.validate_every_steps is not None:
            return self.steps_per_epoch(num_train) / stopping.validate_every_steps
        return 1 / stopping.validate_every_epochs

    def with_price(self, point: ScalingPoint, epochs: float) -> ScalingPoint:
        """Return a point with its costs, if the price is known."""
        price = price_per_hour(
            self.gpus, self.device_name, machines=point.hosts, devices=point.devices
        )
        if price is None:
            return point
        per_epoch = price * point.epoch_s / 3600
        return replace(point, cost_per_epoch=per_epoch, cost=per_epoch * epochs)


def measured_point(found: Ablation, alone: Ablation, costs: Costs) -> ScalingPoint:
    """Return the point of a measured number of devices."""
    serial_s = _serial_s(found, costs)
    point = _point(
        Layout(1, found.num),
        found.parts_s(),
        serial_s,
        found.num_train,
        costs,
        is_measured=True,
    )
    base_serial_s = _serial_s(alone, costs)
    base = _point(
        Layout(1, 1), alone.parts_s(), base_serial_s, alone.num_train, costs, is_measured=True
    )
    estimate = point.share(Part.COMPUTE) / max(base.share(Part.COMPUTE), 1e-12)
    factor = 1.0 if found is alone else _factor(found, alone)
    return replace(
        point,
        efficiency=Interval(
            estimate=estimate,
            low=estimate / factor,
            high=estimate * factor,
            confidence=_CONFIDENCE,
        ),
        num_blocks=len(found.fastest_s) or len(found.compute_fracs()),
        use=found.use,
    )


def _factor(found: Ablation, alone: Ablation) -> float:
    """Return by how much an efficiency may be off: Student's t on the logs of both shares."""
    logs = [mean_estimate(np.log(one.compute_fracs())) for one in (found, alone)]
    sem = math.hypot(*(one.sem for one in logs))
    df = min(len(one.compute_fracs()) for one in (found, alone)) - 1
    return math.exp(t_quantile(_CONFIDENCE, df) * sem)


def _point(
    at: Layout,
    parts: Mapping[Part, float],
    serial_s: Mapping[str, float],
    num_train: int,
    costs: Costs,
    *,
    is_measured: bool,
) -> ScalingPoint:
    """Return a point from the parts of a step and the serial seconds of an epoch."""
    steps, step_s = costs.steps_per_epoch(num_train), sum(parts.values())
    of_epoch = {part.value: seconds * steps for part, seconds in parts.items()}
    of_epoch[Part.SERIAL.value] = sum(serial_s.values())
    parts_s = {part.value: of_epoch.get(part.value, 0.0) for part in Part}
    epoch_s = sum(parts_s.values())
    point = ScalingPoint(
        hosts=at.hosts,
        devices=at.devices,
        is_measured=is_measured,
        step_s=step_s,
        epoch_s=epoch_s,
        examples_per_s=num_train / epoch_s if epoch_s > 0 else 0.0,
        efficiency=Interval(estimate=1.0, low=1.0, high=1.0, confidence=_CONFIDENCE),
        parts_s=parts_s,
        serial_s=dict(serial_s),
    )
    return costs.with_price(point, costs.epochs(num_train))


def _serial_s(found: Ablation, costs: Costs) -> dict[str, float]:
    """Return the seconds of an epoch that are beside its steps."""
    num_train = found.num_train
    epochs, validations = costs.epochs(num_train), costs.validations(num_train)
    time = TrainingTime(
        epochs=epochs,
        steps_per_epoch=costs.steps_per_epoch(num_train),
        step_s=found.step_s,
        num_validations=epochs * validations,
        validation_s=found.validation_s,
    )
    saving_s = 0.0
    if found.saves is not None:
        saving_s = checkpoints_s(found.saves, time, every_s=costs.every_s)
    return {
        _VALIDATION: validations * found.validation_s,
        _CHECKPOINT: saving_s / max(epochs, 1e-12),
        _START: found.start_s / max(epochs, 1e-12),
    }


def layouts_to_predict(
    counts: Sequence[int], here: Sequence[int], more: Sequence[Layout]
) -> list[Layout]:
    """Return what is predicted: absent devices, and as many machines of one device each."""
    absent = [Layout(1, num) for num in counts if num not in here]
    again = [Layout(1, num) for num in here if num > 2]  # beside what was measured
    apart = [Layout(num, 1) for num in sorted({*counts, *here}) if num > 1]
    doubled = [Layout(2, here[-1])] if here[-1] > 1 else []
    given = [at for at in more if at.hosts > 1 or at.devices not in here]
    return sorted({*absent, *again, *apart, *doubled, *given}, key=lambda at: (at.num, at.hosts))


def predicted_point(
    at: Layout,
    points: Sequence[ScalingPoint],
    found: Mapping[int, Ablation],
    costs: Costs,
    *,
    network_gbit_s: float,
    is_cuda: bool,
) -> ScalingPoint | None:
    """Predict a layout from the largest number of devices below it; None if only one is known.

    compute          of one device, divided by N
    micro batch      a (1 - 1 / N), as a step takes t(b) = a + c b
    sharing a host   grows with the devices of a host; 0 for one
    stragglers       grow like the expected maximum of N normal values
    communication    of the host, like a ring: 2 (d - 1) / d; between hosts, a ring over the
                     network, of which what is not hidden behind the backward pass (GPU) remains
    data             divided among hosts; on a CPU among devices, as each has its own cores
    serial           validation is divided among devices; a checkpoint and the start are not
    """
    known = [point.devices for point in points if 1 < point.devices < max(at.num, 3)]
    if at.hosts == 1:
        known = [num for num in known if num != at.devices]
    if not known:
        return None
    num = max(known)
    ablation, n = found[num], at.num
    parts, serial_s = ablation.parts_s(), _serial_s(ablation, costs)
    compute_s = parts[Part.COMPUTE] * num / n
    fixed_s = parts[Part.MICRO_BATCH] / (1 - 1 / num)
    own_s = compute_s + fixed_s * (1 - 1 / n)
    of_own = parts[Part.COMPUTE] + parts[Part.MICRO_BATCH]
    crowd = (at.devices - 1) / (num - 1)
    contention_s = own_s * crowd * parts[Part.CONTENTION] / of_own
    spread = parts[Part.STRAGGLERS] / of_own / expected_max(num)
    inside_s = parts[Part.COMMUNICATION] * _ring_share(at.devices) / _ring_share(num)
    hidden_s = own_s * _BACKWARD_FRAC if is_cuda else 0.0
    between_s = _exposed_s(ablation.exchanged_bytes, at.hosts, network_gbit_s, hidden_s=hidden_s)
    guess = {
        Part.COMPUTE: compute_s,
        Part.MICRO_BATCH: own_s - compute_s,
        Part.CONTENTION: contention_s,
        Part.STRAGGLERS: own_s * spread * expected_max(n),
        Part.COMMUNICATION: inside_s + between_s,
        Part.DATA: parts[Part.DATA] * (1 / at.hosts if is_cuda else num / n),
    }
    later_s = dict(serial_s)
    later_s[_VALIDATION] *= num / n
    point = _point(at, guess, later_s, ablation.num_train, costs, is_measured=False)
    estimate = point.share(Part.COMPUTE) / max(points[0].share(Part.COMPUTE), 1e-12)
    return replace(point, efficiency=Interval(estimate=estimate, low=estimate, high=estimate))


def _ring_share(num: int) -> float:
    """Return the bytes that a ring sends for each byte of the gradients."""
    return 2 * (num - 1) / num


def _exposed_s(num_bytes: int, hosts: int, network_gbit_s: float, *, hidden_s: float) -> float:
    """Return the seconds of an exchange between machines that the backward pass does not hide."""
    if hosts == 1:
        return 0.0
    whole_s = ring_s(num_bytes, hosts, network_gbit_s)
    last_s = ring_s(min(num_bytes, _BUCKET_BYTES), hosts, network_gbit_s)
    return max(last_s, whole_s - hidden_s)


def _notes(
    points: Sequence[ScalingPoint],
    batch: int,
    *,
    recipe: Recipe,
    there: int,
    counts: Sequence[int],
) -> list[str]:
    """Return what a reader has to know about the numbers."""
    notes = []
    for point in points:
        why = point.why_no_advice()
        if why is not None:
            on = f"{point.num} device{'s' if point.num > 1 else ''}"
            notes.append(f"On {on}, {why}: the split is no basis for a decision.")
    if recipe.features.cached:
        notes.append("Steps are those of the head, on features that are computed once.")
    absent = [num for num in counts if num > there]
    if absent:
        listed = ", ".join(str(num) for num in absent)
        notes.append(f"This machine has {there} devices, so {listed} are predicted.")
    largest = max(counts)
    if batch % largest:
        notes.append(f"A batch of {batch} is not divided evenly by {largest} devices.")
    return notes

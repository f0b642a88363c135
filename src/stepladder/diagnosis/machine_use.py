"""How a run used its machine, and what low or uneven use comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stepladder.diagnosis.run_curves import RunFiles, number
from stepladder.records.diagnosis import MachineUse, Use
from stepladder.train.clock import STEP_PHASES, Phase
from stepladder.train.wording import duration, percent

# Shares of the steps' time from which on something is named as what holds a run back.
MUCH_WAIT = 0.10
MUCH_HOST = 0.15
MUCH_ELSE = 0.20
LOW_GPU = 70.0  # percent; the 95th percentile below it
IDLE_GPU = 10.0  # percent; the 5th percentile below it, while the 95th is high, is uneven use
LOW_CPU = 0.5  # share of the cores
MIN_SAMPLES = 5
GROWTH = 0.10  # of memory from the first third of the samples to the last
GROWTH_BYTES = 200e6
_HOST: Final = (Phase.TO_DEVICE.value, Phase.LOGGING.value, "unexplained")
_PARTS: Final = (
    ("gpu_percent", "GPU", "%"),
    ("cpu_percent", "CPU", "% of a core"),
    ("gpu_memory_bytes", "GPU memory", "bytes"),
    ("rss_bytes", "memory", "bytes"),
    ("disk_read_bytes_per_s", "disk, read", "bytes/s"),
    ("disk_write_bytes_per_s", "disk, written", "bytes/s"),
    ("network_bytes_per_s", "network", "bytes/s"),
    ("power_w", "GPU power", "W"),
)


def judge_machine(files: RunFiles) -> MachineUse:
    """Say how a run used its machine, by its samples and the phases of its clock.

    A share of time with a kernel running says nothing of how full the device was; only low and
    uneven use is read from it.

    Source: Gao et al. 2024, "An Empirical Study on Low GPU Utilization of Deep Learning Jobs",
    ICSE; AWS, "SageMaker Debugger built-in rules", LowGPUUtilization (95th percentile under 70 %,
    5th under 10 %).
    """
    samples = files.of("system")
    uses = tuple(use for key, name, unit in _PARTS if (use := _use(samples, key, name, unit)))
    phases = _phases(files.summary)
    held_by, why = _held_by(files, phases)
    said = [why] if why else []
    said += _of_device(files, uses, held_by)
    said += _of_memory(samples)
    said += _of_time(files.summary)
    if not samples:
        every = "rarer than the run was long" if files.summary else "not there yet"
        said.append(f"use of the machine was not sampled: samples were {every}")
    return MachineUse(
        uses=uses,
        phases=phases,
        energy_wh=_energy(files),
        held_by=held_by,
        said=tuple(said),
    )


def _use(samples: Sequence[Mapping[str, Any]], key: str, name: str, unit: str) -> Use | None:
    values = _values(samples, key)
    if not values:
        return None
    low, high = np.quantile(values, [0.05, 0.95])
    return Use(
        name=name,
        unit=unit,
        mean=float(np.mean(values)),
        low=float(low),
        high=float(high),
        num_samples=len(values),
    )


def _phases(summary: Mapping[str, Any]) -> dict[str, float]:
    """Give the share of each phase in the run's time without set-up and test, largest first."""
    seconds = _seconds(summary)
    inside = {
        name: s for name, s in seconds.items() if name not in (Phase.SETUP.value, Phase.TEST.value)
    }
    total = sum(inside.values())
    if total <= 0:
        return {}
    ranked = sorted(inside.items(), key=lambda item: -item[1])
    return {name: s / total for name, s in ranked}


def _held_by(files: RunFiles, phases: Mapping[str, float]) -> tuple[str | None, str]:
    """Name what the time goes to beside computing, and why; what costs most comes first."""
    wait = _data_wait(files)
    if wait is None:
        return None, "where the time of a step goes is not known: there is no summary yet"
    steps = sum(phases.get(phase.value, 0.0) for phase in STEP_PHASES) if phases else 0.0
    waited = wait * steps if phases else wait  # of the whole time
    host = sum(phases.get(name, 0.0) for name in _HOST)
    validation = phases.get(Phase.VALIDATION.value, 0.0)
    checkpoints = phases.get(Phase.CHECKPOINT.value, 0.0)
    found = [
        (waited, waited > MUCH_WAIT, "data wait",
         f"{percent(wait)} of the steps' time was spent waiting for data: more reading threads "
         "(--loader.threads), a store of pixels or features computed once help"),
        (host, host > MUCH_HOST, "host work",
         f"{percent(host)} of the time is the host's own work between steps (copies, logging, "
         "what no phase names): log more rarely (--run.log-every), or take larger batches"),
        (validation, validation > MUCH_ELSE, "validation",
         f"{percent(validation)} of the time is validation: validate more rarely "
         "(--stopping.validate-every-epochs)"),
        (checkpoints, checkpoints > MUCH_WAIT, "checkpoints",
         f"{percent(checkpoints)} of the time is checkpoints: save more rarely "
         "(--run.checkpoint-every-s)"),
    ]  # fmt: skip
    much = [(size, name, said) for size, is_much, name, said in found if is_much]
    if not much:
        return None, ""
    _, name, said = max(much)
    return name, said


def _of_device(files: RunFiles, uses: Sequence[Use], held_by: str | None) -> list[str]:
    """Say what low or uneven use of the GPU, or of the cores, comes from."""
    by_name = {use.name: use for use in uses}
    gpu, cpu = by_name.get("GPU"), by_name.get("CPU")
    if gpu is not None and gpu.num_samples >= MIN_SAMPLES:
        return _of_gpu(gpu, held_by)
    cores = _num_cores(files)
    if cpu is None or cpu.num_samples < MIN_SAMPLES or cores is None:
        return []
    share = cpu.mean / (100 * cores)
    said = f"{cpu.mean:.0f} % of one core was used on average, of {cores} cores: {percent(share)}"
    if share >= LOW_CPU:
        return [f"{said}, so the processor was busy"]
    why = held_by or "steps too small to share among cores: larger batches, or other jobs beside it"
    return [f"{said}; it was held up by {why}"]


def _of_gpu(gpu: Use, held_by: str | None) -> list[str]:
    said = (
        f"the GPU had a kernel running {gpu.mean:.0f} % of the time (5th percentile {gpu.low:.0f}, "
        f"95th {gpu.high:.0f})"
    )
    if gpu.high < LOW_GPU:
        kind = "low"
    elif gpu.low < IDLE_GPU:
        kind = "uneven"
    else:
        return [f"{said}: it was kept busy, which does not say that it was full"]
    if held_by is None:
        return [
            f"{said}: use is {kind}, and no phase of the clock explains it: the work of a step is "
            "too small for this device; take larger batches (--batch.global-batch-size)"
        ]
    return [f"{said}: use is {kind}, by {held_by}"]


def _of_memory(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say whether memory kept growing: losses kept with their graphs do that."""
    said = []
    for key, name in (("rss_bytes", "memory"), ("gpu_memory_bytes", "GPU memory")):
        values = _values(samples, key)[1:]  # the first is taken while things are still built
        third = len(values) // 3
        if third < MIN_SAMPLES:
            continue
        thirds = [float(np.mean(part)) for part in np.array_split(values, 3)]
        grown = thirds[2] - thirds[0]
        is_steady = thirds[0] < thirds[1] < thirds[2]
        if is_steady and grown > max(GROWTH * thirds[0], GROWTH_BYTES):
            said.append(
                f"{name} grew all the time, by {grown / 1e9:.1f} GB from the first third of the "
                "run to the last: losses that are kept with their graphs do that"
            )
    return said


def _of_time(summary: Mapping[str, Any]) -> list[str]:
    seconds = _seconds(summary)
    total = sum(seconds.values())
    before = seconds.get(Phase.SETUP.value, 0.0) + seconds.get(Phase.FEATURES.value, 0.0)
    if total <= 0 or before < MUCH_ELSE * total:
        return []
    share = percent(before / total)
    return [f"{duration(before)} ({share} of the run) passed before the first step"]


def _data_wait(files: RunFiles) -> float | None:
    """Give the share of the steps' time spent waiting for data: of the whole run, else so far."""
    found = number(files.summary.get("data_wait_frac"))
    if found is not None:
        return found
    shares = _values(files.of("train"), "time_metrics/data_loading(%)")
    return float(np.mean(shares)) / 100 if shares else None


def _energy(files: RunFiles) -> float | None:
    found = number(files.summary.get("energy_wh"))
    if found is not None:
        return found
    return next(iter(_values(files.of("system")[::-1], "energy_wh")), None)


def _num_cores(files: RunFiles) -> int | None:
    cpu = files.env.get("cpu")
    cores = number(cpu.get("num_cores")) if isinstance(cpu, dict) else None
    return int(cores) if cores else None


def _seconds(summary: Mapping[str, Any]) -> dict[str, float]:
    phases = summary.get("phases_s")
    if not isinstance(phases, dict):
        return {}
    pairs = ((str(name), number(value)) for name, value in phases.items())
    return {name: max(0.0, s) for name, s in pairs if s is not None and math.isfinite(s)}


def _values(events: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    found = (number(event.get(key)) for event in events)
    return [value for value in found if value is not None and math.isfinite(value)]

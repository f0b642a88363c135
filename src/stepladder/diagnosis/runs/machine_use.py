"""Machine use of a run, and the causes of low or uneven use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stepladder.diagnosis.runs.run_curves import RunFiles
from stepladder.diagnosis.runs.run_state import number
from stepladder.records.diagnosis import MachineUse, Use
from stepladder.records.reading import Reading, reading_of
from stepladder.training.clock import STEP_PHASES, Phase
from stepladder.training.output.wording import byte_rate, duration, percent

# Shares of the steps' time above which something counts as a bottleneck.
MUCH_WAIT = 0.10
MUCH_HOST = 0.15
MUCH_ELSE = 0.20
LOW_GPU = 70.0  # percent; use is low if the 95th percentile is below it
IDLE_GPU = 10.0  # percent; use is uneven if only the 5th percentile is below it
LOW_CPU = 0.5  # share of the cores
MIN_SAMPLES = 5
GROWTH = 0.10  # of memory from the first third of an attempt's samples to the last
GROWTH_BYTES = 200e6
STEADY = 0.10  # of that growth: its minimum between parts of a run, if it continues
SETTLING = 0.10  # of an attempt's samples, and at least MIN_SAMPLES, are ignored
MIN_STEPS_S = 1.0  # steps, or another phase, that took less in total are no bottleneck
MIN_STEPS = 0.10  # the same as a share of the run
_BESIDE: Final[Mapping[str, str]] = {  # phases besides training; only the last one is sampled
    Phase.SETUP: "set-up",
    Phase.FEATURES: "computing features",
    Phase.TEST: "the final evaluation",
}
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
FEW_HITS: Final = 0.9
MOSTLY: Final = 0.5
_ANY: Final = "use more reader threads (--loader.threads), a pixel store, or features computed once"


def what_helps_reading(files: RunFiles) -> str:
    """Return what would shorten the wait for data, from what the reader threads spend time on."""
    reading = reading_of(files.of("reader"))
    if reading is None:
        return _ANY
    return _of_cache(reading) or _of_threads(reading) or _ANY


def _of_cache(reading: Reading) -> str | None:
    """Return advice for a cache with few hits; in the first epoch each file is a miss."""
    hit_frac = reading.hit_frac
    if hit_frac is None or hit_frac >= FEW_HITS:
        return None
    return (
        f"only {percent(hit_frac)} of the files were in the cache, and the others came over the "
        "network: a cache for the whole store (--data.max-cache-bytes) avoids that from the "
        "second epoch, features computed once (--features.cached) after a single pass"
    )


def _of_threads(reading: Reading) -> str | None:
    rate = reading.fetch_bytes_per_s
    if rate is None:
        return None
    if reading.decode_frac > MOSTLY:
        return (
            f"decoding is {percent(reading.decode_frac)} of the reader threads' work: use a pixel "
            "store (--data.decode-once), features computed once (--features.cached) or more "
            "reader threads (--loader.threads)"
        )
    return (
        f"fetching is {percent(1 - reading.decode_frac)} of the reader threads' work, at "
        f"{byte_rate(rate)} per thread: use memory (--data.where memory), features computed once "
        "(--features.cached) or a faster disk"
    )


def judge_machine(files: RunFiles, *, is_built_in: bool = False) -> MachineUse:
    """Judge the machine use of a run, by its samples and the phases of its clock.

    If steps took little of the run, their waits do not matter: what took the time is named.

    A kernel running does not mean that the device is fully used; only low and uneven use are
    inferred from that share.

    Source: Gao et al. 2024, "An Empirical Study on Low GPU Utilization of Deep Learning Jobs",
    ICSE; AWS, "SageMaker Debugger built-in rules", LowGPUUtilization (95th percentile under 70 %,
    5th under 10 %).

    Args:
        is_built_in: the steps contain no code of the user.
    """
    samples = files.of("system")
    uses = tuple(use for key, name, unit in _PARTS if (use := _use(samples, key, name, unit)))
    phases = _phases(files.summary)
    held_by, why = _elsewhere(files) or _held_by(files, phases)
    said = [why] if why else []
    said += _of_device(files, samples, held_by)
    said += _of_memory(samples, is_built_in=is_built_in)
    said += _of_time(files.summary)
    if not samples:
        every = "less frequent than the run was long" if files.summary else "not taken yet"
        said.append(f"machine use is unknown: samples were {every}")
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
    """Return each phase's share of the run's time without set-up and test, largest first."""
    seconds = _seconds(summary)
    inside = {
        name: s for name, s in seconds.items() if name not in (Phase.SETUP.value, Phase.TEST.value)
    }
    total = sum(inside.values())
    if total <= 0:
        return {}
    ranked = sorted(inside.items(), key=lambda item: -item[1])
    return {name: s / total for name, s in ranked}


def _has_steps(files: RunFiles) -> bool:
    """Return True if steps took enough of a run for their shares to matter."""
    seconds = _seconds(files.summary)
    if seconds:
        steps_s = sum(seconds.get(phase.value, 0.0) for phase in STEP_PHASES)
        total_s = sum(seconds.values())
    else:
        steps_s, total_s = _steps_so_far(files)
    if total_s <= 0:
        return True  # there is no clock
    return steps_s >= MIN_STEPS_S and steps_s >= MIN_STEPS * total_s


def _steps_so_far(files: RunFiles) -> tuple[float, float]:
    """Return the seconds of steps and of everything from the events, if there is no summary.

    Training lasts from one event to that of the next window; samples of the machine are between.
    """
    steps_s = before = end = 0.0
    for event in files.events:
        at = number(event.get("elapsed_s"))
        if at is None or not math.isfinite(at):
            continue
        end = max(end, at)
        if event.get("event") == "train":
            steps_s += max(0.0, at - before)
        before = before if event.get("event") == "system" else at
    return steps_s, end


def _elsewhere(files: RunFiles) -> tuple[str | None, str] | None:
    """Return the phases that took most of a run, if its steps took little of it.

    Returns:
        None if steps, validation or checkpoints took it; the name is that of the longest phase in
        which the machine was sampled.
    """
    seconds = _seconds(files.summary)
    total = sum(seconds.values())
    ranked = sorted(seconds.items(), key=lambda item: -item[1])
    much = [(name, s) for name, s in ranked if name in _BESIDE and s > MIN_STEPS * total]
    if _has_steps(files) or sum(s for _, s in much) < total / 2 or not much:
        return None
    steps_s = sum(seconds.get(phase, 0.0) for phase in STEP_PHASES)
    spent = [f"{_BESIDE[name]} ({duration(s)})" for name, s in much]
    listed = " and ".join(part for part in (", ".join(spent[:-1]), spent[-1]) if part)
    held_by = _BESIDE[Phase.TEST] if any(name == Phase.TEST for name, _ in much) else None
    return held_by, (
        f"most of the run's {duration(total)} was spent on {listed}; its steps took "
        f"{duration(steps_s)} in all"
    )


def _held_by(files: RunFiles, phases: Mapping[str, float]) -> tuple[str | None, str]:
    """Return the largest bottleneck besides computing, and its reason."""
    wait = _data_wait(files)
    if wait is None:
        return None, "the time within a step is unknown: there is no summary yet"
    steps = sum(phases.get(phase.value, 0.0) for phase in STEP_PHASES) if phases else 0.0
    waited = wait * steps if phases else wait  # of the whole time
    host = sum(phases.get(name, 0.0) for name in _HOST)
    inside_s = sum(s for name, s in _seconds(files.summary).items() if name in phases)
    validation = phases.get(Phase.VALIDATION.value, 0.0)
    checkpoints = phases.get(Phase.CHECKPOINT.value, 0.0)
    found = [
        (waited, waited > MUCH_WAIT and _has_steps(files), "data wait",
         f"{percent(wait)} of the steps' time was spent waiting for data: "
         f"{what_helps_reading(files)}"),
        (host, host > MUCH_HOST, "host work",
         f"{percent(host)} of the time is work of the host between steps (copies, logging, "
         "unexplained): log less often (--run.log-every), or use larger batches"),
        (validation, validation > MUCH_ELSE, "validation",
         f"{percent(validation)} of the time is validation: validate less often "
         "(--stopping.validate-every-epochs)"),
        (checkpoints, checkpoints > MUCH_WAIT, "checkpoints",
         f"{percent(checkpoints)} of the time is checkpoints: save less often "
         "(--run.checkpoint-every-s)"),
    ]  # fmt: skip
    much = [(size, name, said) for size, is_much, name, said in found if is_much
            and not (inside_s and size * inside_s < MIN_STEPS_S)]  # fmt: skip
    if not much:
        return None, ""
    _, name, said = max(much)
    return name, said


def _of_device(
    files: RunFiles, samples: Sequence[Mapping[str, Any]], held_by: str | None
) -> list[str]:
    """Return the causes of low or uneven use, in the latest attempt that is long enough.

    Attempts may differ in machine and options: even use in each would look uneven over all.
    """
    attempts = _by_attempt(samples)
    long = [attempt for attempt, part in attempts.items() if len(part) >= MIN_SAMPLES]
    if not long:
        return []
    said = _of_attempt(files, attempts[long[-1]], held_by)
    where = f"in attempt {long[-1]}, " if len(attempts) > 1 else ""
    return [f"{where}{sentence}" for sentence in said]


def _of_attempt(
    files: RunFiles, samples: Sequence[Mapping[str, Any]], held_by: str | None
) -> list[str]:
    """Judge the use of the GPU in one attempt, or of the CPU cores without GPU samples."""
    gpu = _use(samples, "gpu_percent", "GPU", "%")
    if gpu is not None and gpu.num_samples >= MIN_SAMPLES:
        return _of_gpu(gpu, held_by, has_steps=_has_steps(files))
    cpu, cores = _use(samples, "cpu_percent", "CPU", "% of a core"), _num_cores(files)
    if cpu is None or cpu.num_samples < MIN_SAMPLES or cores is None:
        return []
    share = cpu.mean / (100 * cores)
    said = f"on average {cpu.mean:.0f} % of one core was used, of {cores} cores: {percent(share)}"
    if share >= LOW_CPU:
        return [f"{said}, so the CPU was busy"]
    if held_by is None and not _has_steps(files):
        return [said]
    why = held_by or "steps too small to use all cores: use larger batches, or run jobs in parallel"
    cause = "most of that time was" if held_by in _BESIDE.values() else "the bottleneck was"
    return [f"{said}; {cause} {why}"]


def _of_gpu(gpu: Use, held_by: str | None, *, has_steps: bool) -> list[str]:
    said = (
        f"the GPU had a kernel running {gpu.mean:.0f} % of the time (5th percentile {gpu.low:.0f}, "
        f"95th {gpu.high:.0f})"
    )
    if gpu.high < LOW_GPU:
        kind = "low"
    elif gpu.low < IDLE_GPU:
        kind = "uneven"
    else:
        return [f"{said}: it was busy, which does not mean that it was fully used"]
    if held_by is None and not has_steps:
        return [f"{said}: use is {kind}"]
    if held_by is None:
        return [
            f"{said}: use is {kind}, and no phase of the clock explains it: the steps are too "
            "small for this device; use larger batches (--batch.global-batch-size)"
        ]
    return [f"{said}: use is {kind}, because of {held_by}"]


def _of_memory(samples: Sequence[Mapping[str, Any]], *, is_built_in: bool) -> list[str]:
    """Check whether memory kept growing within an attempt, and return the cause."""
    attempts = _by_attempt(samples)
    why = "a common cause is storing losses with their autograd graphs"
    if is_built_in:
        why = (
            "a built-in job stores nothing between steps, so please report it with this folder's "
            "env.json and events.jsonl; until then, fewer prefetched batches "
            "(--loader.prefetch-batches 1) need less memory"
        )
    said = []
    for key, name in (("rss_bytes", "memory"), ("gpu_memory_bytes", "GPU memory")):
        growths = [(_growth(_values(part, key)), attempt) for attempt, part in attempts.items()]
        grown, attempt = max(growths, default=(0.0, 1))
        if grown > 0:
            whole = f"attempt {attempt}" if len(attempts) > 1 else "the run"
            said.append(
                f"{name} grew continuously, by {grown / 1e9:.1f} GB from the first third of "
                f"{whole} to the last: {why}"
            )
    return said


def _growth(values: Sequence[float]) -> float:
    """Return by how many bytes memory grew in one attempt; 0 if it settled, or if unknown.

    Memory that settles, or jumps once, stays constant afterwards: real growth continues between
    the thirds, and within the last one.
    """
    settled = values[max(MIN_SAMPLES, int(SETTLING * len(values))) :]
    if len(settled) < 3 * MIN_SAMPLES:
        return 0.0
    thirds = np.array_split(settled, 3)
    first, last = float(np.mean(thirds[0])), float(np.mean(thirds[2]))
    parts = [np.mean(part) for part in (*thirds[:2], *np.array_split(thirds[2], 2))]
    grown = last - first
    is_steady = min(np.diff(parts)) >= STEADY * grown
    return grown if is_steady and grown > max(GROWTH * first, GROWTH_BYTES) else 0.0


def _of_time(summary: Mapping[str, Any]) -> list[str]:
    seconds = _seconds(summary)
    total = sum(seconds.values())
    before = seconds.get(Phase.SETUP.value, 0.0) + seconds.get(Phase.FEATURES.value, 0.0)
    if total <= 0 or before < MUCH_ELSE * total:
        return []
    num_attempts = _whole(summary.get("attempts"))
    steps = f"first steps of its {num_attempts} attempts" if num_attempts > 1 else "first step"
    return [f"{duration(before)} ({percent(before / total)} of the run) passed before the {steps}"]


def _data_wait(files: RunFiles) -> float | None:
    """Return the share of the steps' time spent waiting for data: of the whole run, or so far."""
    found = number(files.summary.get("data_wait_frac"))
    if found is not None:
        return found
    shares = _values(files.of("train"), "time_metrics/data_loading(%)")
    return float(np.mean(shares)) / 100 if shares else None


def _energy(files: RunFiles) -> float | None:
    """Return the energy of all attempts; each counts from zero, and the summary has the last."""
    found = {
        attempt: values[-1]
        for attempt, part in _by_attempt(files.of("system")).items()
        if (values := _values(part, "energy_wh"))
    }
    of_summary = number(files.summary.get("energy_wh"))
    if of_summary is not None:
        found[_whole(files.summary.get("attempts"))] = of_summary
    return sum(found.values()) if found else None


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


def _by_attempt(events: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """Return the events of each attempt, in their order."""
    found: dict[int, list[Mapping[str, Any]]] = {}
    for event in events:
        found.setdefault(_whole(event.get("attempt")), []).append(event)
    return found


def _whole(attempt: object) -> int:
    """Return the number of an attempt, 1 by default."""
    return attempt if isinstance(attempt, int) and not isinstance(attempt, bool) else 1

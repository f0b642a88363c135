"""Measure where a step's time goes: real steps, steps on replayed batches, and the loader."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from stepladder.config.choices import Where
from stepladder.data.batch import Batch
from stepladder.data.reading.reader import Reader
from stepladder.machine import available_memory_bytes
from stepladder.measuring.blocks.timing import wait_for
from stepladder.measuring.reading.example_time import ReadingCost, cost_while_drained
from stepladder.measuring.subject import Subject
from stepladder.training.clock import Clock, Timeline

NUM_REPLAYED = 8
"""Number of replayed batches: one alone is not representative if examples differ in length."""
MAX_HELD_FRAC = 0.1
"""Maximum fraction of the free memory for them."""

_SHARES = {"host": 0.35, "real": 0.45, "device": 0.2}  # of the time budget
_LEAST = {"host": 4, "real": 4, "device": 2}
_MOST_STEPS = 400
_MAX_DRAIN_S = 0.5
_MOST_LOOKS = 3
_MOST = {"host": _MOST_STEPS, "real": _MOST_LOOKS * _MOST_STEPS, "device": _MOST_STEPS}


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of a mean step, and of its phases.

    Attributes:
        step_s: wall time of real steps.
        phases_s: seconds of each phase of one step, on the device if it has a timeline.
        unexplained_frac: fraction of the wall time outside all phases.
        no_advice_because: why the times are no basis for advice, on the host or the device.
        replay_host_s, replay_device_s: on batches in host memory, and on the device.
        load_s: loading all training images into memory, once; None if they are not held.
        loader_per_s: examples per second of the reader without training.
        reading: cost of one thread per example; None: unknown.
        batches: the replayed batches, in host memory.
    """

    step_s: float
    phases_s: Mapping[str, float]
    unexplained_frac: float
    no_advice_because: str | None
    replay_host_s: float
    replay_device_s: float
    load_s: float | None
    loader_per_s: float
    reading: ReadingCost | None
    batches: Sequence[Batch]


def measure_steps(subject: Subject, *, budget_s: float) -> StepTimes:
    """Time real and replayed steps, interleaved, with the recipe's own reader.

    The reader is drained at full speed before the real steps, so that none of them uses prefetched
    batches. Replays run before and after the real steps, because machines drift.
    """
    reader = subject.reader()
    endless = reader.endless()
    try:
        start_s = subject.clock.now()
        first = next(endless)
        first_s = subject.clock.now() - start_s
        held = list(itertools.islice(endless, _num_held(first) - 1))
        host = itertools.cycle([first, *held])
        est_s = _warm_up(subject, host)
        num = {
            name: min(max(int(share * budget_s / max(est_s, 1e-9)), _LEAST[name]), _MOST[name])
            for name, share in _SHARES.items()
        }
        before_s = _replay(subject, host, num["host"] // 2)
        loader_per_s, reading = _drain(reader, endless, subject.clock)
        real = _real_steps_that_close(subject, endless, num["real"])
        after_s = _replay(subject, host, num["host"] // 2)
        on_device = itertools.cycle([subject.to_device(batch) for batch in (first, *held)])
        device_s = _replay(subject, on_device, num["device"])
    finally:
        endless.close()
        reader.close()
    is_held = subject.recipe.data.where is Where.MEMORY
    num_all = subject.num_train
    return StepTimes(
        step_s=real.step_s,
        phases_s=real.phases_s,
        unexplained_frac=real.unexplained_frac,
        no_advice_because=real.no_advice_because,
        replay_host_s=(before_s + after_s) / 2,
        replay_device_s=device_s,
        load_s=first_s * num_all / reader.num_examples if is_held else None,
        loader_per_s=loader_per_s,
        reading=reading,
        batches=(first, *held),
    )


def difference(before: Timeline, after: Timeline) -> Timeline:
    """Return the part of a timeline between two states of it."""
    return Timeline(
        wall_s=after.wall_s - before.wall_s,
        phases_s={
            name: seconds - before.phases_s.get(name, 0.0)
            for name, seconds in after.phases_s.items()
        },
    )


def input_bytes(value: Any) -> int:
    """Sum the bytes of the tensors in a batch's inputs."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        return sum(input_bytes(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return sum(input_bytes(item) for item in value)
    return 0


def _num_held(first: Batch) -> int:
    """Return the number of batches to hold: eight, or fewer if they are very large."""
    fits = MAX_HELD_FRAC * available_memory_bytes() / max(1, input_bytes(first.inputs))
    return max(1, min(NUM_REPLAYED, int(fits)))


def _warm_up(subject: Subject, host: Iterator[Batch]) -> float:
    """Take the first steps, which are slow, and return the seconds of a later one."""
    subject.step_on(host)
    started = subject.clock.now()
    for _ in range(10):
        seconds = _replay(subject, host, 1)
        if subject.clock.now() - started > 0.1:
            break
    return seconds


def _replay(subject: Subject, batches: Iterator[Batch], num_steps: int) -> float:
    """Take steps and return the seconds of a full one; a short batch is a part of a step."""
    wait_for(subject.device)
    start_s = subject.clock.now()
    num_examples = sum(subject.step_on(batches).ids.numel() for _ in range(num_steps))
    wait_for(subject.device)
    return (subject.clock.now() - start_s) * subject.batch_size / num_examples


class _Real(NamedTuple):
    step_s: float
    phases_s: dict[str, float]
    timeline: Timeline
    no_advice_because: str | None

    @property
    def unexplained_frac(self) -> float:
        return self.timeline.unexplained_s / self.timeline.wall_s


def _real_steps_that_close(subject: Subject, batches: Iterator[Batch], num_steps: int) -> _Real:
    """Time real steps in several runs; return the median of those whose timelines add up.

    Another process that uses the core between two phases sometimes leaves a gap in a timeline and
    slows it down: then there is another run. Work outside all phases leaves gaps in all of them,
    and the one with the smallest gap is returned.
    """
    num_looks = min(_MOST_LOOKS, max(1, num_steps // _LEAST["real"]))
    of_look = min(-(-num_steps // num_looks), _MOST_STEPS)
    found = [_real_steps(subject, batches, of_look) for _ in range(num_looks)]
    while all(look.no_advice_because for look in found) and len(found) < _MOST_LOOKS:
        found.append(_real_steps(subject, batches, of_look))
    closed = [look for look in found if look.no_advice_because is None]
    if not closed:
        return min(found, key=lambda look: look.unexplained_frac)
    return sorted(closed, key=lambda look: look.step_s)[(len(closed) - 1) // 2]


def _real_steps(subject: Subject, batches: Iterator[Batch], num_steps: int) -> _Real:
    clock, device = subject.clock, subject.clock.device
    wait_for(subject.device)
    device_before = None if device is None else device.close()
    host_before = clock.host()
    num_examples = sum(subject.step_on(batches).ids.numel() for _ in range(num_steps))
    host = difference(host_before, clock.host())  # on CUDA steps are still queued, in no phase
    wait_for(subject.device)
    full_steps = num_examples / subject.batch_size
    step_s = (clock.wall_s() - host_before.wall_s) / full_steps
    timelines = [host]
    if device is not None and device_before is not None:
        timelines.append(difference(device_before, device.close()))
    reasons = [reason for timeline in timelines if (reason := timeline.why_no_advice())]
    phases_s = {name: s / full_steps for name, s in timelines[-1].phases_s.items() if s > 0}
    return _Real(step_s, phases_s, timelines[-1], reasons[0] if reasons else None)


def _drain(
    reader: Reader, batches: Iterator[Batch], clock: Clock
) -> tuple[float, ReadingCost | None]:
    """Read the prefetched batches, and then more, without training.

    Returns:
        Examples per second, and the cost of one thread per example.
    """
    ahead = 3
    for _ in range(ahead):
        next(batches)
    before = replace(reader.stats)
    started = clock.now()
    num_examples = 0
    last: deque[np.ndarray] = deque(maxlen=4)
    for idx in range(_MOST_STEPS):
        last.append(next(batches).ids.numpy())
        num_examples += len(last[-1])
        took_s = max(clock.now() - started, 1e-9)
        if took_s > _MAX_DRAIN_S or (idx >= 2 * NUM_REPLAYED and took_s > 0.05):
            break
    drained = reader.stats.since(before)
    cost = cost_while_drained(reader, drained, np.concatenate(last), now=clock.now)
    return num_examples / took_s, cost

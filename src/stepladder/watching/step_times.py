"""Where a step's time goes: host times of the steps that are followed, CUDA events of some."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from time import perf_counter
from typing import Any, Final

import torch

from stepladder.watching.seen.seen import Seen

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
VALIDATION: Final = "validation"
CHECKPOINT: Final = "checkpoint"
_BY_STEP: Final = (FORWARD, BACKWARD, OPTIMIZER)  # similar in all steps: a sample is enough
_STRETCH: Final = 50  # steps
_FIRST = 3  # steps that are not timed: they compile, fill caches and start workers
_FIRST_FOLLOWED: Final = 64  # steps that are all followed
_EVERY: Final = 50  # then the first steps of every 50
_FOLLOWED: Final = 12
_STIRRED: Final = 128  # steps that are followed after something unusual
_FOR_LONG: Final = 1000
_MAX_MARKS: Final = 64


def has_gpu() -> bool:
    """Return whether the script uses a GPU, without initialising CUDA."""
    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_initialized())


@dataclass
class _Stretch:
    """Some consecutive steps, of which a sample is timed and represents the others.

    Attributes:
        own_s, num_own: seconds by phase of steps that represent only themselves, and their number.
        sample_s, num_sampled: the same for the other steps that were timed.
    """

    own_s: dict[str, float] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    num_steps: int = 0
    num_own: int = 0
    num_sampled: int = 0

    def whole_s(self, phase: str) -> float:
        """Return the seconds of a phase in all steps of the stretch."""
        some, own = self.sample_s.get(phase, 0.0), self.own_s.get(phase, 0.0)
        num_others = self.num_steps - self.num_own
        return own + (some * num_others / self.num_sampled if self.num_sampled else some)


class Phases:
    """Adds up the time of each phase, from the end of the third step.

    On a GPU the host times are those of launching work; CUDA events, which are read later, time
    the work itself. Nothing is synchronised.

    Attributes:
        is_counting: the first steps are over.
        num_steps: steps that were counted.
        total_s: seconds by phase, without the last steps; see `whole_s`.
        is_sampling: the phases of this step are timed.
        marks: when every `stride`-th counted step ended; thinned as they become many.
        num_validations: validations that began, except for those that are passes over a loader.
        is_own: this step represents only itself: at round step numbers, scripts do rare work and
            watchers read values.
    """

    def __init__(self) -> None:
        self.is_counting = False
        self.num_steps = 0
        self.is_sampling = True
        self.is_own = False
        self.total_s: dict[str, float] = {}
        self.marks: list[float] = []
        self.stride = 1
        self._stretch = _Stretch()
        self.device_s: dict[str, list[float]] = {}
        self.began = 0.0
        self.ended = 0.0
        self.spent_before_s = 0.0
        self._seen_steps = 0
        self._forward_began: float | None = None
        self._validation_began: float | None = None
        self._validation_at = 0.0
        self.num_validations = 0
        self._events: list[tuple[str, Any, Any]] = []

    def add(self, phase: str, seconds: float) -> None:
        """Add host time to a phase."""
        if not self.is_counting:
            return
        if phase not in _BY_STEP:
            self.total_s[phase] = self.total_s.get(phase, 0.0) + seconds
        elif self.is_sampling:
            some = self._stretch.own_s if self.is_own else self._stretch.sample_s
            some[phase] = some.get(phase, 0.0) + seconds

    def step_ended(self) -> None:
        """Count a step."""
        now = perf_counter()
        self._seen_steps += 1
        if self.is_counting:
            self.num_steps += 1
            self._count_step()
            if self.num_steps % self.stride == 0:
                self._mark(now)
        elif self._seen_steps >= _FIRST:
            self.is_counting, self.began = True, now
            self.marks.append(now)
        self.ended = now

    def _mark(self, now: float) -> None:
        self.marks.append(now)
        if len(self.marks) > _MAX_MARKS:
            self.marks = self.marks[::2]
            self.stride *= 2

    @property
    def block_s(self) -> tuple[float, ...]:
        """Mean seconds of a step in equal blocks of steps, in order."""
        return tuple((b - a) / self.stride for a, b in pairwise(self.marks))

    def _count_step(self) -> None:
        stretch = self._stretch
        stretch.num_steps += 1
        stretch.num_own += self.is_sampling and self.is_own
        stretch.num_sampled += self.is_sampling and not self.is_own
        if stretch.num_steps >= _STRETCH and stretch.num_sampled:
            for phase in _BY_STEP:
                self.total_s[phase] = self.whole_s(phase)
            self._stretch = _Stretch()

    def whole_s(self, phase: str) -> float:
        """Return the seconds of a phase in all steps, including those that were not timed."""
        return self.total_s.get(phase, 0.0) + self._stretch.whole_s(phase)

    def touch(self) -> None:
        """Extend the measured span to now, for example at the end of a validation."""
        if self.is_counting:
            self.ended = perf_counter()

    @property
    def span_s(self) -> float:
        """Return the seconds from the end of the third step to the last one seen."""
        return max(0.0, self.ended - self.began) if self.is_counting else 0.0

    def open_forward(self) -> None:
        """Begin the forward phase, which lasts until backward, as a model is called."""
        self.close_validation()
        if self._forward_began is None:
            self._forward_began = perf_counter()

    def close_forward(self) -> None:
        """End the forward phase, as backward is called."""
        now = perf_counter()
        if self._forward_began is not None:
            self.add(FORWARD, now - self._forward_began)
        elif self._validation_began is not None:
            self.add(FORWARD, now - self._validation_began)  # training in evaluation mode
        self._forward_began = self._validation_began = None

    def drop_forward(self) -> None:
        """Discard the forward phase, as a new batch comes without a backward."""
        self._forward_began = None

    @property
    def is_in_forward(self) -> bool:
        """Return whether a model was called and backward was not."""
        return self._forward_began is not None

    def open_validation(self) -> None:
        """Begin a validation, which lasts until training resumes."""
        if self._validation_began is None and self._forward_began is None:
            self._validation_began = perf_counter()
            self.num_validations += self.is_counting

    @property
    def is_validating(self) -> bool:
        """Return whether a validation has begun and training has not resumed."""
        return self._validation_began is not None

    def close_validation(self) -> None:
        """End the validation, as training resumes."""
        if self._validation_began is not None:
            self.add(VALIDATION, perf_counter() - self._validation_began)
            self._validation_began = None
            self.touch()

    def still_validation(self) -> None:
        """Extend the validation to now, as a model has answered."""
        self._validation_at = perf_counter()

    def pause(self) -> None:
        """End or discard open phases, as the next steps are not timed."""
        self.end()
        self.drop_forward()

    def end(self) -> None:
        """End an open validation at the model's last answer."""
        if self._validation_began is not None:
            self.add(VALIDATION, self._validation_at - self._validation_began)
            self._validation_began = None
            self.ended = max(self.ended, self._validation_at)

    def event(self) -> Any:
        """Record an event on the device; return None if there is no GPU."""
        if not has_gpu():
            return None
        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, phase: str, first: Any) -> None:
        """Store a pair of events of a sampled step."""
        if first is not None:
            self._events.append((phase, first, self.event()))

    def settle(self) -> None:
        """Read the events that have completed."""
        waiting = []
        for phase, first, last in self._events:
            if last.query():
                self.device_s.setdefault(phase, []).append(first.elapsed_time(last) / 1000)
            else:
                waiting.append((phase, first, last))
        self._events = waiting


class Rest:
    """Decides which steps are only counted, and what ends that.

    A step evicts the watcher from the processor's caches, so each of our calls costs many times
    what it does in a tight loop. Once training proceeds normally, most steps are therefore only
    counted, with their losses and the time of the loader; a stretch of every fifty is followed as
    before and represents the others. Anything unusual ends the rest at once: a model in evaluation
    mode or without gradients, a new pass over a loader, a new optimizer. More calls of models than
    usual in a step end it permanently: one of them may have been part of a validation, which is
    seen before the step's own call. Trainings whose order, precision or validation can be judged
    only from all of their steps never rest.

    Attributes:
        is_on: only counts are recorded.
        num_steps: number of steps that were only counted.
    """

    def __init__(self, seen: Seen) -> None:
        self.is_on = False
        self.num_steps = 0
        self._seen = seen
        self._may = True
        self._calls = 0
        self._fewest: float = inf
        self._usual: float = inf
        self._depth = 0
        self._awake_until = _FIRST_FOLLOWED
        self._woken_at = -_EVERY

    def forbid(self) -> None:
        """Follow all steps from now on."""
        self._may = False

    def lets_pass(self, module: Any) -> bool:
        """Return whether the call of an outermost model is a usual one, in a step only counted."""
        self._calls += 1
        if not self.is_on:
            return False
        if module.training and torch.is_grad_enabled():
            if self._calls <= self._usual:
                self._depth += 1
                return True
            self.forbid()
        self.wake()
        return False

    @property
    def is_outermost(self) -> bool:
        """Return whether the call is not within another one."""
        return self._depth == 1

    def let_go(self) -> None:
        """Register the end of a call for which `lets_pass` was True."""
        self._depth = max(0, self._depth - 1)

    def wake(self) -> None:
        """Watch from now on, at least until the next step."""
        if not self.is_on:
            return
        self.is_on = False
        step = self._seen.num_steps
        if step - self._woken_at <= 2:  # it happens in every step: resting is pointless
            self._awake_until = step + _FOR_LONG
        self._woken_at = step

    def stir(self) -> None:
        """Follow the next steps, as something has changed."""
        step = self._seen.num_steps
        self._awake_until = max(self._awake_until, step + _STIRRED if step else 0)
        self.is_on = False

    def count(self) -> None:
        """Count a step, if the next one is only counted as well."""
        self.num_steps += 1
        self._calls = self._depth = 0

    def step_ended(self, *, is_close: bool) -> None:
        """Decide whether the next steps are only counted.

        Args:
            is_close: the values of the next step are read.
        """
        step = self._seen.num_steps
        if step % _EVERY == 0:
            self._fewest = inf
        elif not self.is_on:
            self._fewest = min(self._fewest, self._calls)
        self.num_steps += self.is_on
        self._calls = self._depth = 0
        is_followed = step < self._awake_until or step % _EVERY < _FOLLOWED or is_close
        if self.is_on:
            self.is_on = not is_followed
        elif self._may and not is_followed and self._is_usual():
            self.is_on = True
            self._usual = self._fewest

    def _is_usual(self) -> bool:
        """Return whether nothing was seen that requires all steps to be followed."""
        seen = self._seen
        return (
            not seen.precision.num_scaled
            and not any(one.has_closure for one in seen.optimizers)
            and not any(
                one.window_offsets
                or one.dropped
                or one.num_idle_graphs
                or one.num_train_without_grad
                or one.num_eval_mode
                for one in seen.models
            )
        )

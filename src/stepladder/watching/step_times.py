"""Where a step's time goes: host times of the steps that are followed, CUDA events of some."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any, Final

import torch

from stepladder.watching.seen import Seen

FORWARD: Final = "forward"
BACKWARD: Final = "backward"
OPTIMIZER: Final = "optimizer"
VALIDATION: Final = "validation"
CHECKPOINT: Final = "checkpoint"
_BY_STEP: Final = (FORWARD, BACKWARD, OPTIMIZER)  # alike in every step: some stand for all
_STRETCH: Final = 50  # steps
_FIRST = 3  # steps that are left out: they compile, fill caches and start workers
_FIRST_FOLLOWED: Final = 64  # steps that are all followed
_EVERY: Final = 50  # and then the first of so many steps
_FOLLOWED: Final = 14
_STIRRED: Final = 128  # steps that are followed after something that was not usual
_FOR_LONG: Final = 1000


def has_gpu() -> bool:
    """Whether the script uses a GPU; asking starts none."""
    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_initialized())


@dataclass
class _Stretch:
    """Some steps in a row, of which a sample is timed and stands for the others.

    Attributes:
        own_s, num_own: seconds by phase of the steps that stand for themselves, and how many.
        sample_s, num_sampled: the same of the others that were timed.
    """

    own_s: dict[str, float] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    num_steps: int = 0
    num_own: int = 0
    num_sampled: int = 0

    def whole_s(self, phase: str) -> float:
        """Return a phase's seconds in all of its steps."""
        some, own = self.sample_s.get(phase, 0.0), self.own_s.get(phase, 0.0)
        num_others = self.num_steps - self.num_own
        return own + (some * num_others / self.num_sampled if self.num_sampled else some)


class Phases:
    """Adds up time by phase from the end of the third step on.

    On a GPU the host's times are those of launching work; events, which are read later, time the
    work itself. Nothing is synchronised.

    Attributes:
        is_counting: the first steps are over.
        num_steps: steps that were counted.
        total_s: seconds by phase, those of the last steps apart; see `whole_s`.
        is_sampling: the parts of this step are timed.
        is_own: this step stands for itself alone: one of those that come at round numbers, where
            scripts do what they do rarely, and where numbers are read.
    """

    def __init__(self) -> None:
        self.is_counting = False
        self.num_steps = 0
        self.is_sampling = True
        self.is_own = False
        self.total_s: dict[str, float] = {}
        self._stretch = _Stretch()
        self.device_s: dict[str, list[float]] = {}
        self.began = 0.0
        self.ended = 0.0
        self.spent_before_s = 0.0
        self._seen_steps = 0
        self._forward_began: float | None = None
        self._validation_began: float | None = None
        self._validation_at = 0.0
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
        elif self._seen_steps >= _FIRST:
            self.is_counting, self.began = True, now
        self.ended = now

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
        """Return a phase's seconds in all steps, also of those whose parts were not timed."""
        return self.total_s.get(phase, 0.0) + self._stretch.whole_s(phase)

    def touch(self) -> None:
        """Let the span that is explained reach to this moment, as at the end of a validation."""
        if self.is_counting:
            self.ended = perf_counter()

    @property
    def span_s(self) -> float:
        """Seconds from the end of the third step to the last that was seen."""
        return max(0.0, self.ended - self.began) if self.is_counting else 0.0

    def open_forward(self) -> None:
        """A model is called that may be learnt from: forward lasts until backward."""
        self.close_validation()
        if self._forward_began is None:
            self._forward_began = perf_counter()

    def close_forward(self) -> None:
        """Backward is called, or it was not meant: what came before it was forward."""
        now = perf_counter()
        if self._forward_began is not None:
            self.add(FORWARD, now - self._forward_began)
        elif self._validation_began is not None:
            self.add(FORWARD, now - self._validation_began)  # it learns in evaluation mode
        self._forward_began = self._validation_began = None

    def drop_forward(self) -> None:
        """A new batch comes: what was called before it led to no backward."""
        self._forward_began = None

    def open_validation(self) -> None:
        """A model that is trained is called in evaluation mode: it lasts until training goes on."""
        if self._validation_began is None and self._forward_began is None:
            self._validation_began = perf_counter()

    def close_validation(self) -> None:
        """Training goes on."""
        if self._validation_began is not None:
            self.add(VALIDATION, perf_counter() - self._validation_began)
            self._validation_began = None
            self.touch()

    def still_validation(self) -> None:
        """A model has answered: validation reaches to here at least."""
        self._validation_at = perf_counter()

    def pause(self) -> None:
        """The next steps are not timed: nothing may stand open that they would close."""
        self.end()
        self.drop_forward()

    def end(self) -> None:
        """Nothing more comes: a validation that stands open ended with the last answer."""
        if self._validation_began is not None:
            self.add(VALIDATION, self._validation_at - self._validation_began)
            self._validation_began = None
            self.ended = max(self.ended, self._validation_at)

    def event(self) -> Any:
        """Record an event on the device, or give None where there is none."""
        if not has_gpu():
            return None
        cuda: Any = torch.cuda
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, phase: str, first: Any) -> None:
        """Keep a pair of events of a sampled step."""
        if first is not None:
            self._events.append((phase, first, self.event()))

    def settle(self) -> None:
        """Read the events whose work is done."""
        waiting = []
        for phase, first, last in self._events:
            if last.query():
                self.device_s.setdefault(phase, []).append(first.elapsed_time(last) / 1000)
            else:
                waiting.append((phase, first, last))
        self._events = waiting


class Rest:
    """Whether the watchers rest, and what wakes them.

    A step leaves the processor's caches full of its own numbers, so that each call of ours costs
    many times what it does in a loop of its own. Once training goes its usual way, most steps are
    therefore only counted, with their losses and what the loader takes; a stretch of each fifty is
    followed as before, and stands for the others. What is not usual ends the rest at once: a model
    in evaluation mode or without gradients, a new pass over a loader, a new optimiser. More calls
    of models than a step has end it for good: one of them may have been a validation's, which is
    met before the step's own. Trainings whose order, precision or validation can be judged only
    from all of their steps never rest.

    Attributes:
        is_on: nothing but the counts is kept.
        num_steps: steps that passed so.
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
        """Follow all steps, whatever comes."""
        self._may = False

    def lets_pass(self, module: Any) -> bool:
        """Whether an outermost model's call is a usual one, of a step that is only counted."""
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
        """Whether the call that was let pass is within no other."""
        return self._depth == 1

    def let_go(self) -> None:
        """A call that was let pass has ended."""
        self._depth = max(0, self._depth - 1)

    def wake(self) -> None:
        """Look on from here, until the next step at least."""
        if not self.is_on:
            return
        self.is_on = False
        step = self._seen.num_steps
        if step - self._woken_at <= 2:  # it comes in every step: there is nothing to rest from
            self._awake_until = step + _FOR_LONG
        self._woken_at = step

    def stir(self) -> None:
        """Follow the next steps, as something has changed."""
        step = self._seen.num_steps
        self._awake_until = max(self._awake_until, step + _STIRRED if step else 0)
        self.is_on = False

    def count(self) -> None:
        """A step has passed, and the next is only counted as well."""
        self.num_steps += 1
        self._calls = self._depth = 0

    def step_ended(self, *, is_close: bool) -> None:
        """Choose whether the next steps are only counted.

        Args:
            is_close: the next one's numbers are read.
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
        """Whether nothing was seen that only all steps together can tell."""
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

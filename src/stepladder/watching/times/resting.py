"""Lets most steps of a long training pass with the least work of ours."""

from __future__ import annotations

from math import inf
from typing import Any, Final

import torch

from stepladder.watching.seen import Seen

_FIRST: Final = 64  # steps that are all followed
_EVERY: Final = 50  # and then the first of so many steps
_FOLLOWED: Final = 14
_STIRRED: Final = 128  # steps that are followed after something that was not usual
_FOR_LONG: Final = 1000


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
        self._awake_until = _FIRST
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

"""Watches a script while it trains: the installed watchers, what they share, and their end."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

from stepladder.machine.contention import Usage
from stepladder.watching.hooks.patches import Patches, Switch, activate, deactivate
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.seen.seen import Seen
from stepladder.watching.step_times import Phases, Rest

CLOSE_EVERY = 10  # steps between steps whose values are read
MODULES_EVERY = 50  # steps between steps with hooks on modules
_TIME_EVERY = 8  # every 8th of the other steps is timed: timing costs time
_FIRST_CLOSE = 4  # the first steps are all inspected
_MIN_CLOSE = 10  # steps that are inspected whatever that costs
_FOLLOW_FIRST = 32  # steps in which the clearing of gradients is followed
_FOLLOW_EVERY, _FOLLOW_NUM = 50, 5  # then 5 in a row out of every 50
_TELL_EVERY_S = 5.0  # while steps are only counted
_OWED_EVERY = 100  # then every 100th step


class Part(Protocol):
    """One watcher: what it wraps, and what it reads at the end."""

    def install(self, watcher: Watcher) -> None:
        """Put wrappers and hooks in place."""

    def settle(self) -> None:
        """Read what was deferred."""


class Watcher:
    """The state shared by the parts: the step, whether it is inspected, and what was seen.

    Attributes:
        rest: whether steps are only counted.
        step: steps of the main optimizer: the first one, until another steps twice in a row.
        backwards: calls of backward since the last step of any optimizer.
        new_batches: batches returned by loaders since then.
        current: the pass over a loader that returned the last batch; None if no loader did.
        is_following: whether the clearing of gradients is followed in this step.
        is_scaled: a GradScaler has scaled the loss of the last backward, and not unscaled since.
        inputs: values of the inputs of models since the last step, if these are inspected.
        evaluated: the outermost module that was last called in evaluation mode.
        input_refs: weak references to the last input of the outermost module.
        on_first_step: called before the first step of each optimizer.
        on_layer: called with each module that is called, and whether it is an outermost one, in
            steps with hooks on modules.
        batch_refs: weak references to the numbers in the last batch of a loader, apart from images.
        output_shape: of the last output of an outermost module that is a tensor.
        on_output: called with the outputs of outermost modules, while any part listens.
        on_step: called after each step; less often while steps are only counted.
        on_close: called before each step that is inspected.
        on_pass: called when one of a loader's first passes begins.
        on_any_pass: called when any pass over a loader begins.
        on_pass_end: called when a pass has returned all of its batches, with its dataset.
        on_backward: called at each inspected backward, before it.
        on_graph: called with the graph of its loss, if that is a number.
        wants_input_gradient: an input of a model depends on a leaf that is no weight.
        on_call: called with each outermost model, its arguments and its module.
        on_learnt: called by backward, with the mode of the models that it learns from, by the id
            of their `Root`.
        on_loaded: called with each module that weights other than its own were loaded into.
        on_loss: called with the target and the input of a loss of torch whose values are read.
        on_classes: called with what was seen of a loss with class labels, its target and its
            input, if their values are read.
        on_tokens: called with the ids that an embedding receives, if their values are read.
        on_evaluation: called when a model in evaluation mode is called, and when it returns.
    """

    def __init__(self, own: OwnCode) -> None:
        self.own = own
        self.seen = Seen()
        self.switch = Switch()
        self.patches = Patches(self.switch)
        self.phases = Phases()
        self.rest = Rest(self.seen)
        self.step = 0
        self.backwards = 0
        self.new_batches = 0
        self.evaluated: Callable[[], Any] = lambda: None  # a weak reference
        self.inputs: set[tuple[float, ...]] = set()
        self.current: Any = None
        self.is_following = True
        self.is_scaled = False
        self.began = perf_counter()
        self.usage = Usage.now()
        self.input_refs: list[Any] = []
        self.on_first_step: list[Callable[[], None]] = []
        self.on_layer: list[Callable[[Any, bool], None]] = []
        self.batch_refs: list[Any] = []
        self.output_shape: tuple[int, ...] = ()
        self.on_output: list[Callable[[Any], None]] = []
        self.on_step: list[Callable[[], None]] = []
        self.on_close: list[Callable[[], None]] = []
        self.on_backward: list[Callable[[], None]] = []
        self.on_graph: list[Callable[[Any], None]] = []
        self.on_pass: list[Callable[[], None]] = []
        self.on_any_pass: list[Callable[[], None]] = []
        self.on_pass_end: list[Callable[[Any, Any], None]] = []
        self.wants_input_gradient = False
        self.on_evaluation: list[Callable[[bool], None]] = []
        self.on_call: list[Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], None]] = []
        self.on_loaded: list[Callable[[Any], None]] = []
        self.on_loss: list[Callable[[Any, Any], None]] = []
        self.on_classes: list[Callable[[Any, Any, Any], None]] = []
        self.on_tokens: list[Callable[[Any], None]] = []
        self.on_learnt: list[Callable[[dict[int, bool]], None]] = []
        self._parts: list[Part] = []
        self._told = 0.0

    @property
    def is_close(self) -> bool:
        """Return whether the values of this step are read."""
        return self.switch.is_close

    def start(self, parts: list[Part]) -> None:
        """Install all parts; torch must be imported."""
        self._parts = parts
        try:
            for part in parts:
                part.install(self)
        except Exception as error:
            self.switch.fail(error)
            self.patches.undo()
            return
        activate(self.switch)

    def stop(self) -> None:
        """Remove all wrappers, and read what was deferred."""
        was_on = self.switch.is_on
        self.phases.end()
        deactivate(self.switch)
        self.patches.undo()
        if was_on or self.switch.error:
            self.settle()

    def settle(self) -> None:
        """Read what was deferred: losses and norms on a device."""
        for part in self._parts:
            try:
                part.settle()
            except Exception as error:
                self.switch.fail(error)

    def next_step(self) -> None:
        """Count a step of the main optimizer, and decide whether the next one is inspected."""
        self.step += 1
        seen, switch = self.seen, self.switch
        seen.num_steps = switch.num_steps = self.step
        is_sampled = self.step % _TIME_EVERY == _TIME_EVERY // 2
        if self.rest.is_on and self.step % CLOSE_EVERY:
            switch.counts_for = _TIME_EVERY * is_sampled
            self.phases.step_ended()
            self.rest.count()
            if self.phases.ended - self._told > _TELL_EVERY_S:
                self._tell()
            return
        is_due = self.step < _FIRST_CLOSE or self.step % CLOSE_EVERY == 0
        is_owed = seen.num_looked < _MIN_CLOSE or self.step % _OWED_EVERY == 0
        self.is_following = self.step < _FOLLOW_FIRST or self.step % _FOLLOW_EVERY < _FOLLOW_NUM
        switch.is_close = is_due and (is_owed or switch.may_spend())
        seen.num_looked += switch.is_close
        switch.counts_for = 1 if switch.is_close else _TIME_EVERY * is_sampled
        phases = self.phases
        was_counting = phases.is_counting
        phases.step_ended()
        if not was_counting and phases.is_counting:
            phases.spent_before_s = switch.spent_s
        self.rest.step_ended(is_close=switch.is_close)
        phases.is_sampling = not self.rest.is_on
        phases.is_own = self.step % CLOSE_EVERY == 0
        if self.rest.is_on:
            phases.pause()
        self._tell()
        for listener in self.on_close if switch.is_close else ():
            listener()

    def _tell(self) -> None:
        self._told = self.phases.ended
        for listener in self.on_step:
            listener()

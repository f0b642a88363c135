"""A step on what workers send: wait until they have used its examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.config.choices import AgeRule, AsyncMethod
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.optim.table import spec_of
from stepladder.parallel.agreement import Wishes
from stepladder.parallel.asynchronous.flat import Flat
from stepladder.parallel.asynchronous.gate import Group, gate_of
from stepladder.parallel.asynchronous.shared import SharedWeights
from stepladder.training.asynchronous.contribution import Contribution, Trained, Work
from stepladder.training.asynchronous.crew import Crew
from stepladder.training.clock import Clock, Phase
from stepladder.training.step import Step, WindowMeans
from stepladder.training.update import Update


@dataclass
class Tally:
    """What happened since the last log line.

    Attributes:
        ages: of the gradients that were used.
        num_updates: of the weights.
        num_dropped: gradients that came too late.
        num_lost: workers that ended, and were started again.
        by_worker: examples that each worker has contributed.
    """

    ages: list[int] = field(default_factory=list)
    num_updates: int = 0
    num_dropped: int = 0
    num_lost: int = 0
    by_worker: dict[int, int] = field(default_factory=dict)


class AsynchronousStep(Step):
    """A `Step` whose gradients are computed by workers.

    One call lets as many examples be used as the batch has, which may be several updates, or a part
    of one: what is used too much or too little counts in the next call.

    Args:
        crew: the workers.
        trained: the tensors of the model that training changes.
        num_seen: examples that the run has used so far.
        num_train: examples of an epoch.
        shared: weights that the workers change themselves, which the model then uses, too; None:
            they send changes.

    Attributes:
        should_stop: asked while this process waits for workers; then a step ends early.
    """

    def __init__(
        self,
        recipe: Recipe,
        crew: Crew,
        *,
        task: Any,
        model: nn.Module,
        update: Update,
        trained: Trained,
        device: torch.device,
        clock: Clock,
        num_seen: int,
        num_train: int,
        shared: SharedWeights | None = None,
    ) -> None:
        super().__init__(
            task=task,
            model=model,
            update=update,
            precision=recipe.device.precision,
            device=device,
            clock=clock,
            micro_batch_size=None,
            seed=recipe.seed,
            is_random=False,
        )
        self.crew = crew
        self.should_stop: Callable[[], bool] = lambda: False
        self._last: WindowMeans | None = None
        self._recipe, self._config = recipe, recipe.asynchronous
        self._gate = gate_of(recipe.asynchronous)
        self._trained = trained
        self._flat, self._flat_buffers = Flat(trained.params), Flat(trained.buffers)
        self._weights, self._statistics = self._flat.empty(), self._flat_buffers.empty()
        self._num_train = num_train
        self._num_counted = self._num_used = num_seen
        self._num_works = num_seen
        self._lr = 0.0
        self._number, self._wants_norm = 0, False
        self._arrived: dict[int, Contribution] = {}
        self._tally = Tally()
        self._at_s = 0.0
        self._idle: set[int] = set(range(crew.num))
        self._shared = shared
        self._is_shared = False

    def __call__(
        self,
        batch: Batch,
        *,
        step: int,
        lr: float,
        wants_norm: bool = False,
        num_global: int | None = None,  # noqa: ARG002
        is_stand_in: bool = False,  # noqa: ARG002
        wishes: Wishes | None = None,  # noqa: ARG002
    ) -> None:
        """Take updates until the workers have used as many examples as a step has; see `Step`."""
        self._lr, self._number, self._wants_norm = lr, step, wants_norm
        self._num_counted += batch.ids.numel()
        while self._num_used < self._num_counted and not self.should_stop():
            self._begin()
            self._wait()
        if not self._config.is_local:  # a round of local steps is a whole one
            self._begin()

    def close(self) -> None:
        """End the workers."""
        self.crew.close()

    def take_window(self) -> WindowMeans:
        """Return the means since the last call; the ones before if no worker sent anything."""
        found = super().take_window()
        if found.num_examples or self._last is None:
            self._last = found
            return found
        return replace(self._last, num_examples=0)

    def take_worker_stats(self) -> Mapping[str, Any]:
        """Return what the workers did since the last call, for the log."""
        tally, self._tally = self._tally, Tally()
        ages = tally.ages
        return {
            "updates": tally.num_updates,
            "gradient_age": sum(ages) / len(ages) if ages else 0.0,
            "max_gradient_age": max(ages, default=0),
            "dropped_gradients": tally.num_dropped,
            "lost_workers": tally.num_lost,
            "examples_by_worker": [tally.by_worker.get(one, 0) for one in range(self.crew.num)],
            **({"simulated_s": self._at_s} if self._config.simulate else {}),
        }

    def settle(self) -> None:
        """Wait for all workers if they change the weights themselves; they rest afterwards."""
        if self._is_shared:
            while len(self._idle) < self.crew.num:
                self._wait()

    def _wait(self) -> None:
        """Wait for a worker, and take what may be taken now."""
        with self._clock.phase(Phase.FORWARD):  # the workers compute
            arrival = self.crew.next(self._num_used)
        if arrival is None:
            return
        self._at_s, worker = arrival.at_s, arrival.worker
        with self._clock.phase(Phase.OPTIMIZER):
            if arrival.contribution is None:
                self._tally.num_lost += 1
                self._arrived.pop(worker, None)
                self._take(self._gate.leave(worker))
                self._idle.add(worker)
            else:
                self._arrived[worker] = arrival.contribution
                self._take(self._gate.arrive(worker))

    def _put_into_shared(self) -> None:
        """Put the weights into the memory that all workers change, and use them there."""
        if self._shared is None or self._is_shared:
            return
        self._flat.gather(self._trained.params, self._shared.weights)
        views = self._flat.views(self._shared.weights)
        for param, view in zip(self._trained.params, views, strict=True):
            param.data = view
        self._is_shared = True

    def _begin(self) -> None:
        """Let all workers that are idle begin, from the current weights."""
        if not self._idle:
            return
        self._put_into_shared()
        self._flat.gather(self._trained.params, self._weights)
        self._flat_buffers.gather(self._trained.buffers, self._statistics)
        workers, self._idle = sorted(self._idle), set()
        for worker in workers:
            self._gate.begin(worker)
            self._num_works += 1
            work = Work(self._num_works, self._lr_of_worker(), self._num_steps())
            self.crew.begin(worker, work, self._weights, self._statistics)

    def _num_steps(self) -> int:
        """Return the steps that a worker takes by itself: no more than are left of the epoch."""
        if not self._config.is_local:
            return 1
        left = self._num_train - self._num_used % self._num_train
        return min(self._config.local_steps, -(-left // self._recipe.batch.global_batch_size))

    def _take(self, group: Group) -> None:
        """Apply the contributions of a group, whose workers may begin again."""
        for worker in group.dropped:
            del self._arrived[worker]
            self._tally.num_dropped += 1
        found = [self._arrived.pop(worker) for worker in group.workers]
        num = sum(one.num_examples for one in found)
        if num:
            self._apply(found, group.ages, num)
        for worker, one in zip(group.workers, found, strict=True):
            by_worker = self._tally.by_worker
            by_worker[worker] = by_worker.get(worker, 0) + one.num_examples
        self._idle.update(group.workers, group.dropped)

    def _apply(self, found: list[Contribution], ages: tuple[int, ...], num: int) -> None:
        """Apply contributions of `num` examples in total, weighted by their examples."""
        total = torch.zeros(0 if self._is_shared else self._flat.num)
        buffers = self._flat_buffers.empty()
        loss_sum = 0.0
        for one in found:
            total.add_(one.change, alpha=one.num_examples / num)
            buffers.add_(one.buffers, alpha=one.num_examples / num)
            loss_sum += one.loss_sum
            for name, value in one.logs.items():
                self._log_sums[name] = self._log_sums.get(name, 0.0) + value
        self._add_to_buffers(buffers, self._share(found))
        unused = frozenset.intersection(*(frozenset(one.unused) for one in found))
        self._update_weights(total, loss_sum, self._lr_of(ages), unused)
        self._loss_sum += loss_sum
        self._num_examples += num
        self._num_used += num
        self._tally.num_updates += 1
        self._tally.ages += [one.age for one in found] if self._is_shared else ages

    def _share(self, found: Sequence[Contribution]) -> float:
        """Return how much of a global batch some contributions are."""
        return 1.0 if self._config.is_local else min(1.0, len(found) / self._config.num_in_batch)

    @torch.no_grad()
    def _add_to_buffers(self, change: Tensor, share: float) -> None:
        """Move running statistics by the mean change of some workers; counters count updates."""
        views = self._flat_buffers.views(change)
        for buffer, view in zip(self._trained.buffers, views, strict=True):
            if buffer.is_floating_point():
                buffer.add_((share * view).to(buffer.device, buffer.dtype))
            else:
                buffer.add_(view.round().to(buffer.device, buffer.dtype))

    def _update_weights(
        self, change: Tensor, loss_sum: float, lr: float, unused: frozenset[int]
    ) -> None:
        """Apply a change; with shared weights, only check that the loss is finite.

        Args:
            unused: indices of the weights to which no worker has a gradient.
        """
        if self._is_shared and math.isfinite(loss_sum):
            return
        if not self._is_shared:
            views = self._flat.views(change)
            for idx, (param, view) in enumerate(zip(self._trained.params, views, strict=True)):
                if idx in unused:
                    param.grad = None
                    continue
                param.grad = torch.empty_like(param).copy_(view)  # fused kernels need its strides
        judged = torch.tensor(loss_sum, device=self._device)
        wants_norm = self._wants_norm and not self._config.is_local  # of a gradient
        self._update(judged, step=self._number, lr=lr, wants_norm=wants_norm)

    def _lr_of(self, ages: tuple[int, ...]) -> float:
        """Return the learning rate of an update.

        The gradients of some workers are those of a part of the batch, and move the weights by
        their part of a step, as the rule for the optimizer's batch says.
        """
        config = self._config
        if config.is_local:
            return 1.0 if config.method is AsyncMethod.LOCAL_SGD else config.outer_lr
        lr = self._lr * self._growth(len(ages))
        if config.age_rule is AgeRule.INVERSE:
            lr *= sum(1 / max(1, age) for age in ages) / len(ages)
        return lr

    def _lr_of_worker(self) -> float:
        """Return the learning rate of the steps that a worker takes by itself.

        Workers whose weights are averaged move as one; those that share weights add up.
        """
        return self._lr * (1.0 if self._config.is_local else self._growth(1))

    def _growth(self, num_workers: int) -> float:
        """Return the factor of the learning rate for the examples of some of the workers."""
        power = spec_of(self._recipe.optimizer.name).batch_rule.lr_powers[0]
        growth: float = min(1.0, num_workers / self._config.num_in_batch) ** power
        return growth

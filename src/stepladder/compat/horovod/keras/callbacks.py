"""Horovod's callbacks for Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepladder.compat.horovod.collectives import broadcast_
from stepladder.compat.horovod.keras.backend import import_keras
from stepladder.compat.horovod.keras.optimizer import require_agreed_scaling
from stepladder.compat.horovod.objects import allgather_object
from stepladder.compat.horovod.session import rank, size
from stepladder.errors import UsageError

import_keras()
import keras  # noqa: E402


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Overwrites weights and the optimizer's state of all ranks with those of one, once.

    Random states stay: dropout differs between ranks.

    Args:
        root_rank: rank whose variables count.
        device: has no effect.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:  # noqa: ARG002
        super().__init__()
        self.root_rank = root_rank
        self.is_done = False

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast before the first step."""
        require_agreed_scaling(self.model.optimizer)
        all_built = [self.model.built and self.model.optimizer.built]
        if all(all(built) for built in allgather_object(all_built)):
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Broadcast after the first step if variables did not exist before."""
        self._broadcast()

    def _broadcast(self) -> None:
        if self.is_done:
            return
        self.is_done = True
        with torch.no_grad():
            for variable in [*self.model.weights, *self.model.optimizer.variables]:
                broadcast_(variable.value.detach(), self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their averages over ranks, for the callbacks after it.

    Args:
        device: has no effect.
    """

    def __init__(self, device: str = "") -> None:  # noqa: ARG002
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Average; a metric that some ranks do not have is averaged over the others."""
        own = {name: float(value) for name, value in (logs or {}).items()}
        told = allgather_object(own)
        for name in own:
            values = [one[name] for one in told if name in one]
            logs[name] = sum(values) / len(values)  # type: ignore[index]


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Multiplies the initial learning rate by a factor of the epoch.

    Args:
        initial_lr: None: that of the optimizer when training begins.
        multiplier: a function of the epoch, or a constant, which is raised to the epoch.
        start_epoch, end_epoch: the first epoch, and the one before which it ends.
        staircase: once an epoch; if not, each batch, at a fraction of an epoch.
        momentum_correction: momentum is multiplied by the ratio of the rates for the batch in which
            the rate changes.
        steps_per_epoch: None: from Keras.

    Source: Goyal et al. 2017, "Accurate, Large Minibatch SGD", arXiv:1706.02677.
    """

    def __init__(  # noqa: PLR0917  (the arguments are Horovod's)
        self,
        initial_lr: float | None,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.multiplier = multiplier
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.kept_momentum: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Read the learning rate, and the number of batches.

        Raises:
            UsageError: if the optimizer has a schedule, or the number of batches is unknown.
        """
        inner = self._optimizer()
        if isinstance(inner._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise UsageError(
                "the optimizer has a learning rate schedule, which a callback cannot change",
                where=type(self).__name__,
                fix="Use a number as learning_rate, or leave out the callback.",
            )
        if self.initial_lr is None:
            self.initial_lr = float(inner.learning_rate)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise UsageError(
                    "Keras does not know the number of batches in an epoch",
                    where=type(self).__name__,
                    fix="Pass steps_per_epoch to the callback.",
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Note the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Set the rate."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._set(float(epoch))
        elif not self.staircase:
            self._set(epoch + batch / (self.steps_per_epoch or 1))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Restore the momentum."""
        if self.kept_momentum is not None:
            self._optimizer().momentum = self.kept_momentum
            self.kept_momentum = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Add the rate to the metrics."""
        if logs is not None:
            logs["lr"] = float(self._optimizer().learning_rate)

    def factor(self, epoch: float) -> float:
        """Return the factor at a time in epochs."""
        if callable(self.multiplier):
            return float(self.multiplier(epoch))
        return float(self.multiplier**epoch)

    def _optimizer(self) -> Any:
        return getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)

    def _set(self, epoch: float) -> None:
        optimizer = self._optimizer()
        old, new = float(optimizer.learning_rate), (self.initial_lr or 0.0) * self.factor(epoch)
        optimizer.learning_rate = new
        if self.momentum_correction and old and getattr(optimizer, "momentum", None):
            self.kept_momentum = optimizer.momentum
            optimizer.momentum = self.kept_momentum * new / old


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate batch by batch, from 1 / size of the initial one to the whole.

    The initial one is scaled by the number of ranks: lr * hvd.size().

    Args:
        initial_lr: after the warmup; None: that of the optimizer when training begins.
        warmup_epochs: in which it is reached.
        momentum_correction, steps_per_epoch: as in `LearningRateScheduleCallback`.
        verbose: 1: rank 0 prints a line at the end.
    """

    def __init__(
        self,
        initial_lr: float | None = None,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._ramp,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _ramp(self, epoch: float) -> float:
        done = (epoch + 1 / (self.steps_per_epoch or 1)) / self.warmup_epochs  # after this batch
        return (1 + done * (size() - 1)) / size()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Add the rate to the metrics, and print it when the warmup is complete."""
        super().on_epoch_end(epoch, logs)
        if self.verbose and rank() == 0 and epoch == self.warmup_epochs - 1:
            lr = float(self._optimizer().learning_rate)
            print(f"\nEpoch {epoch + 1}: the learning rate is {lr:g} after its warmup")

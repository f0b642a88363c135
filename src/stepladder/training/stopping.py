"""Decisions after a validation: whether it improved, whether to stop, which weights to keep.

Early stopping takes the noise of the validation set into account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stepladder.config.recipe import StoppingConfig
from stepladder.stats import paired_improvement
from stepladder.training.evaluate import Evaluation

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The decision after one validation.

    Attributes:
        is_best: the mean is lower than at any validation before.
        improvement, improvement_sem: mean decrease of the per-example values since the best, and
            its standard error; None at the first validation.
        num_without_improvement: validations in a row that count against patience, including this
            one.
    """

    is_best: bool
    improvement: float | None
    improvement_sem: float | None
    num_without_improvement: int


class EarlyStopping:
    """Counts validations without a clear improvement over the best.

    A validation counts against patience if the mean improvement of the paired per-example values
    over the best, plus one standard error, is below a fraction of the best value: even with
    favourable noise, the improvement is too small. With allow_noise off, it counts if the mean has
    not decreased by more than that fraction. Either way, an unchanged value counts. The best is the
    lowest mean. A non-finite value is the worst possible.

    Source: with allow_noise off and a fraction of 0, `EarlyStopping` of Keras and of Lightning with
    their min_delta of 0.
    """

    def __init__(self, config: StoppingConfig) -> None:
        self.config = config
        self.best = math.inf
        self.num_without_improvement = 0
        self._best_values: NDArray[np.float32] = np.empty(0, np.float32)

    def judge(self, values: NDArray[np.float32]) -> Judgement:
        """Judge one validation.

        Args:
            values: loss (or error) of each validation example, lower is better, always in the same
                order. Shape (n,).
        """
        mean = float(values.mean(dtype=np.float64)) if values.size else math.inf
        mean = mean if math.isfinite(mean) else math.inf
        if not self._best_values.size or not math.isfinite(self.best):
            improvement, sem, is_clear = None, None, True
        elif not math.isfinite(mean):
            improvement, sem, is_clear = None, None, False
        else:
            estimate = paired_improvement(self._best_values, values)
            improvement, sem = estimate.mean, estimate.sem if math.isfinite(estimate.sem) else 0.0
            is_clear = self._is_clear(self.best - mean, improvement + sem)
        self.num_without_improvement = 0 if is_clear else self.num_without_improvement + 1
        is_best = mean < self.best
        if is_best or not self._best_values.size:
            self.best = mean
            self._best_values = values.astype(np.float32, copy=True)
        return Judgement(
            is_best=is_best,
            improvement=improvement,
            improvement_sem=sem,
            num_without_improvement=self.num_without_improvement,
        )

    def _is_clear(self, fall: float, hopeful_fall: float) -> bool:
        """Return True if the mean decreased enough, or may have if noise is allowed."""
        least = self.config.min_improvement_frac * abs(self.best)
        if not self.config.allow_noise:
            return fall > least
        return hopeful_fall > 0 and hopeful_fall >= least  # of a best of 0, any fraction is 0

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.config.early and self.num_without_improvement >= self.config.patience

    def reset_patience(self) -> None:
        """Reset the count for a new stage, and keep the best."""
        self.num_without_improvement = 0

    def state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Return the arrays and JSON values that restore this object."""
        return (
            {"best_values": self._best_values},
            {"best": self.best, "num_without_improvement": self.num_without_improvement},
        )

    def restore(self, arrays: Mapping[str, NDArray[np.float32]], values: Mapping[str, Any]) -> None:
        """Restore a saved state."""
        self._best_values = np.array(arrays["best_values"], np.float32)
        self.best = float(values["best"])
        self.num_without_improvement = int(values["num_without_improvement"])


@dataclass
class Kept:
    """One of the best weights.

    Attributes:
        value: the monitored value, lower is better.
        weights: a copy in memory; None once it is on disk and another one is better.
    """

    name: str
    step: int
    epoch: int
    value: float
    is_committed: bool = False
    weights: Weights | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """Return the JSON values."""
        return {"name": self.name, "step": self.step, "epoch": self.epoch, "value": self.value}


class BestWeights:
    """Keeps the k best weights, best first; the earlier of two equal ones.

    Args:
        k: number of weights to keep.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._kept: list[Kept] = []

    @property
    def best(self) -> Kept | None:
        """The best so far."""
        return self._kept[0] if self._kept else None

    def names(self) -> list[str]:
        """Return the names of the kept weights, best first."""
        return [kept.name for kept in self._kept]

    def offer(self, value: float, *, step: int, epoch: int, weights: Callable[[], Weights]) -> None:
        """Keep the weights if they are among the k best.

        Args:
            value: lower is better.
            weights: returns a copy that nothing else changes; called only if it is kept.
        """
        if len(self._kept) == self._k and value >= self._kept[-1].value:
            return
        self._kept.append(Kept(f"best-{step:09d}", step, epoch, value, weights=weights()))
        self._kept.sort(key=lambda kept: (kept.value, kept.step))
        del self._kept[self._k :]

    def uncommitted(self) -> Iterable[Kept]:
        """Return the weights that are only in memory."""
        return [kept for kept in self._kept if not kept.is_committed]

    def mark_committed(self) -> None:
        """Mark all as saved on disk, and free the memory of all but the best."""
        for rank, kept in enumerate(self._kept):
            kept.is_committed = True
            if rank:
                kept.weights = None

    def forget_weights(self) -> None:
        """Free the memory of those on disk; they are read from there from now on."""
        for kept in self._kept:
            if kept.is_committed:
                kept.weights = None

    def state(self) -> list[dict[str, Any]]:
        """Return the JSON values that restore this object (the weights are on disk)."""
        return [kept.record() for kept in self._kept]

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Restore saved values."""
        self._kept = [
            Kept(
                str(record["name"]),
                int(record["step"]),
                int(record["epoch"]),
                float(record["value"]),
                is_committed=True,
            )
            for record in records
        ]


class ValidationRule:
    """Decides after each validation whether it improved, whether to stop, and what to keep.

    Args:
        config: monitor, patience, and whether training ends with the best weights.
        num_kept: number of best weights to keep.

    Attributes:
        num_validations: judged or skipped so far.
    """

    def __init__(self, config: StoppingConfig, *, num_kept: int = 1) -> None:
        self.config = config
        self._num_kept = num_kept
        self.reset()

    def reset(self) -> None:
        """Forget all validations, for new data."""
        self.stopping = EarlyStopping(self.config)
        self.best = BestWeights(self._num_kept)
        self.num_validations = 0

    def judge(
        self, result: Evaluation, *, step: int, epoch: int, weights: Callable[[], Weights]
    ) -> Judgement:
        """Judge one validation, and keep the weights if they are among the best.

        Args:
            step, epoch: the position of the validation.
            weights: returns a copy of the validated weights; called only if it is kept.
        """
        self.num_validations += 1
        values = result.monitored(self.config.monitor)
        judgement = self.stopping.judge(values)
        mean = float(values.mean(dtype="float64"))
        value = mean if math.isfinite(mean) else math.inf
        self.best.offer(value, step=step, epoch=epoch, weights=weights)
        return judgement

    def pass_over(self) -> None:
        """Count a validation that was not computed, because it would decide nothing."""
        self.num_validations += 1

    @property
    def decides(self) -> bool:
        """Whether validations affect the final weights."""
        return self.config.early or self.config.restore_best

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.stopping.is_exhausted

    @property
    def chosen(self) -> Kept | None:
        """The weights to end with; None: the last ones."""
        return self.best.best if self.config.restore_best else None

"""What a validation decides: whether it is better, whether to stop, and which weights to keep.

Early stopping knows the noise of its own validation set.
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
    """What one validation says.

    Attributes:
        is_best: the mean is lower than any before.
        improvement, improvement_sem: mean fall of the per-example values since the best, and its
            standard error; None at the first validation.
        num_without_improvement: validations in a row that count against patience, with this one.
    """

    is_best: bool
    improvement: float | None
    improvement_sem: float | None
    num_without_improvement: int


class EarlyStopping:
    """Counts validations that show no clear improvement over the best.

    A validation counts against patience when the mean improvement of the paired per-example values
    over the best, plus one standard error, is below a share of the best value: when even a
    favourable reading of the noise shows nothing worth waiting for. Without noise allowed, when the
    mean has not fallen by more than that share. Either way, what stays as it was counts. The best
    itself is the lowest mean. A value that is not finite is the worst possible.

    Source: without noise allowed, and a share of 0, `EarlyStopping` of Keras and of Lightning with
    their min_delta of 0.
    """

    def __init__(self, config: StoppingConfig) -> None:
        self.config = config
        self.best = math.inf
        self.num_without_improvement = 0
        self._best_values: NDArray[np.float32] = np.empty(0, np.float32)

    def judge(self, values: NDArray[np.float32]) -> Judgement:
        """Take one validation into account.

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
        """Return True if the mean fell by enough, or with noise allowed may have."""
        least = self.config.min_improvement_frac * abs(self.best)
        if not self.config.allow_noise:
            return fall > least
        return hopeful_fall > 0 and hopeful_fall >= least  # of a best of 0, any share is 0

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.config.early and self.num_without_improvement >= self.config.patience

    def reset_patience(self) -> None:
        """Start counting afresh, against the same best: a new stage begins."""
        self.num_without_improvement = 0

    def state(self) -> tuple[dict[str, NDArray[np.float32]], dict[str, Any]]:
        """Return (arrays, JSON values) that restore this object."""
        return (
            {"best_values": self._best_values},
            {"best": self.best, "num_without_improvement": self.num_without_improvement},
        )

    def restore(self, arrays: Mapping[str, NDArray[np.float32]], values: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._best_values = np.array(arrays["best_values"], np.float32)
        self.best = float(values["best"])
        self.num_without_improvement = int(values["num_without_improvement"])


@dataclass
class Kept:
    """One of the best weights.

    Attributes:
        value: what it was judged by, lower is better.
        weights: a copy in memory until it is on disk and some other is better; then None.
    """

    name: str
    step: int
    epoch: int
    value: float
    is_committed: bool = False
    weights: Weights | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """Return its JSON values."""
        return {"name": self.name, "step": self.step, "epoch": self.epoch, "value": self.value}


class BestWeights:
    """Keeps the k best weights, the best first; of equal ones the earlier.

    Args:
        k: how many.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._kept: list[Kept] = []

    @property
    def best(self) -> Kept | None:
        """The best so far."""
        return self._kept[0] if self._kept else None

    def names(self) -> list[str]:
        """Names of the kept ones, best first."""
        return [kept.name for kept in self._kept]

    def offer(self, value: float, *, step: int, epoch: int, weights: Callable[[], Weights]) -> None:
        """Keep the weights if they are among the k best.

        Args:
            value: lower is better.
            weights: gives a copy that nothing else changes; called only if it is kept.
        """
        if len(self._kept) == self._k and value >= self._kept[-1].value:
            return
        self._kept.append(Kept(f"best-{step:09d}", step, epoch, value, weights=weights()))
        self._kept.sort(key=lambda kept: (kept.value, kept.step))
        del self._kept[self._k :]

    def uncommitted(self) -> Iterable[Kept]:
        """Return those that are in memory only."""
        return [kept for kept in self._kept if not kept.is_committed]

    def mark_committed(self) -> None:
        """Note that all are on disk, and free the memory of all but the best."""
        for rank, kept in enumerate(self._kept):
            kept.is_committed = True
            if rank:
                kept.weights = None

    def forget_weights(self) -> None:
        """Free the memory of all that are on disk; from now on they are read from there."""
        for kept in self._kept:
            if kept.is_committed:
                kept.weights = None

    def state(self) -> list[dict[str, Any]]:
        """Return the JSON values that restore this object (the weights are on disk by then)."""
        return [kept.record() for kept in self._kept]

    def restore(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Go on from saved values."""
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
        num_kept: how many of the best weights are kept.

    Attributes:
        num_validations: judged or passed over so far.
    """

    def __init__(self, config: StoppingConfig, *, num_kept: int = 1) -> None:
        self.config = config
        self._num_kept = num_kept
        self.reset()

    def reset(self) -> None:
        """Forget all validations: they were of other data."""
        self.stopping = EarlyStopping(self.config)
        self.best = BestWeights(self._num_kept)
        self.num_validations = 0

    def judge(
        self, result: Evaluation, *, step: int, epoch: int, weights: Callable[[], Weights]
    ) -> Judgement:
        """Take one validation into account, and keep the weights if they are among the best.

        Args:
            step, epoch: where it was made.
            weights: gives a copy of those that were validated; called only if it is kept.
        """
        self.num_validations += 1
        values = result.monitored(self.config.monitor)
        judgement = self.stopping.judge(values)
        mean = float(values.mean(dtype="float64"))
        value = mean if math.isfinite(mean) else math.inf
        self.best.offer(value, step=step, epoch=epoch, weights=weights)
        return judgement

    def pass_over(self) -> None:
        """Count a validation whose result was not computed, as it would decide nothing."""
        self.num_validations += 1

    @property
    def decides(self) -> bool:
        """Whether the result of a validation has any influence on the weights that result."""
        return self.config.early or self.config.restore_best

    @property
    def is_exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.stopping.is_exhausted

    @property
    def chosen(self) -> Kept | None:
        """The weights to end with; None: the last ones."""
        return self.best.best if self.config.restore_best else None

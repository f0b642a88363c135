"""Early stopping that knows the noise of its own validation set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepladder.config.recipe import StoppingConfig
from stepladder.stats import paired_improvement


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
        """Say whether the mean fell by enough, or with noise allowed may have."""
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
        """Give (arrays, JSON values) that restore this object."""
        return (
            {"best_values": self._best_values},
            {"best": self.best, "num_without_improvement": self.num_without_improvement},
        )

    def restore(self, arrays: Mapping[str, NDArray[np.float32]], values: Mapping[str, Any]) -> None:
        """Go on from a saved state."""
        self._best_values = np.array(arrays["best_values"], np.float32)
        self.best = float(values["best"])
        self.num_without_improvement = int(values["num_without_improvement"])

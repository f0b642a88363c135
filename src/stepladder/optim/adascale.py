"""AdaScale: the gain of a larger batch, measured by how much the gradients of its parts differ."""

from __future__ import annotations

import math
from collections.abc import Mapping


class AdaScale:
    """The factor r by which the learning rate grows with the batch, between 1 and their ratio S.

    With the mean gradient G, the covariance C of the gradients of single examples, the batch B and
    the batch b for which the rate was chosen,

        r = (tr(C) / b + |G|^2) / (tr(C) / B + |G|^2),   S = B / b.

    Where noise dominates, r is S, and a step of the larger batch is worth S steps; where it does
    not, r is nearly 1. Schedules and the end of training count r for each step. Both terms are
    means over steps, in which a step counts max(1 - S / 1000, 0) times what the next one does.

    Args:
        batch, base: B and b, in examples.

    Attributes:
        value: r; 1 until a step was measured. Below 1 if the batch is smaller.

    Source: Johnson et al. 2020, "AdaScale SGD", arXiv:2007.05105, section 3 and appendix B.
    """

    def __init__(self, *, batch: int, base: int) -> None:
        self._batch, self._base = batch, base
        self._keep = max(1 - batch / base / 1000, 0.0)
        self._noise = self._signal = self._weight = 0.0
        self.value = 1.0

    def observe(self, *, parts_sq: float, whole_sq: float, num_parts: int, num: int) -> None:
        """Take the gradients of a step into account; those of a single part say nothing.

        E |g_i|^2 is |G|^2 + tr(C) / n_i for a part of n_i examples.

        Args:
            parts_sq: mean of |g_i|^2 over examples, with g_i the mean gradient of its part.
            whole_sq: |g|^2 of the mean gradient of all parts.
            num: examples of all parts.
        """
        if num_parts < 2 or not math.isfinite(parts_sq + whole_sq):
            return
        noise = (parts_sq - whole_sq) * num / (num_parts - 1)
        signal = whole_sq - noise / num
        keep = self._keep
        self._noise = keep * self._noise + (1 - keep) * noise
        self._signal = keep * self._signal + (1 - keep) * signal
        self._weight = keep * self._weight + (1 - keep)
        noise, signal = (max(one / self._weight, 0.0) for one in (self._noise, self._signal))
        if noise + signal > 0:
            self.value = (noise / self._base + signal) / (noise / self._batch + signal)

    def state(self) -> dict[str, float]:
        """Return the means as JSON values."""
        means = {"noise": self._noise, "signal": self._signal, "weight": self._weight}
        return {**means, "value": self.value}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore saved means."""
        self._noise, self._signal = float(state["noise"]), float(state["signal"])
        self._weight, self.value = float(state["weight"]), float(state["value"])

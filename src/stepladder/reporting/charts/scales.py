"""Axes: positions of values on a chart, and values of ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LOG_FROM_RATIO = 20.0  # on a linear axis, the smaller values would be indistinguishable


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A map from [low, high] to [start, end] in drawing units.

    Attributes:
        is_log: logarithmic; low is above 0.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value; values outside are clipped."""
        low, high = self._bend(self.low), self._bend(self.high)
        share = (self._bend(value) - low) / (high - low) if high > low else 0.5
        return self.start + (self.end - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self, num: int = 5) -> list[float]:
        """Return about `num` round values within the scale."""
        return (
            log_ticks(self.low, self.high) if self.is_log else nice_ticks(self.low, self.high, num)
        )

    def _bend(self, value: float) -> float:
        return math.log(max(value, self.low)) if self.is_log else value


def nice_ticks(low: float, high: float, num: int = 5) -> list[float]:
    """Return about `num` multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    if not high > low:
        return [low]
    step = _nice_step((high - low) / max(num - 1, 1))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(idx * step, 12) for idx in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten within [low, high]; if there are few, also 2 and 5 times them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        ticks = [
            f * 10.0**power for power in powers for f in factors if low <= f * 10.0**power <= high
        ]
        if len(ticks) >= 3:
            return ticks[:: math.ceil(len(ticks) / 7)]
    return ticks


def fit_scale(
    values: Sequence[float], *, start: float, end: float, may_be_log: bool = False
) -> Scale:
    """Return a scale that includes all values with a small margin.

    Args:
        values: one or more finite numbers.
        start: drawing coordinate of the lowest value.
        end: drawing coordinate of the highest value.
        may_be_log: use a logarithmic scale if the values span more than a factor of 20.
    """
    low, high = min(values), max(values)
    if may_be_log and low > 0 and high / low > LOG_FROM_RATIO:
        return Scale(low=low / 1.15, high=high * 1.15, start=start, end=end, is_log=True)
    air = 0.06 * (high - low) or max(abs(high), 1e-9) * 0.1
    floor = 0.0 if low >= 0 and low < 0.35 * high else low - air
    return Scale(low=floor, high=high + air, start=start, end=end)


def tick_label(value: float) -> str:
    """Format a tick: `0.05`, `1,200`, `3.2M`."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1000:
        return f"{value:,.0f}"
    if size and size < 1e-4 * 0.999:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.4g}"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit of an axis: a value is shown as `factor * value`, followed by the suffix."""

    factor: float = 1.0
    suffix: str = ""

    def label(self, value: float) -> str:
        """Format a value of the axis: `0.05`, `62.5 %`, `1.2 GiB`."""
        return f"{tick_label(self.factor * value)}{self.suffix}"


NUMBER = Unit()
SHARE = Unit(factor=100.0, suffix=" %")  # of a fraction


def _nice_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next((f * power for f in (1, 2, 5) if raw <= 1.2 * f * power), 10 * power)

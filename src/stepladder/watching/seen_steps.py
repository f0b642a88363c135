"""What was seen of a step's making: optimisers, schedules, precision, clipping."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(kw_only=True)
class OptimizerSeen:
    """One optimiser.

    Attributes:
        kind: its class.
        built_at, stepped_at: the script's lines.
        num_params: tensors that it was given, frozen ones apart.
        num_looked: steps that were looked at closely.
        num_empty: of these, those at which no weight of it had a gradient.
        num_cleared_late: of these, those where gradients were cleared after the last backward.
        cleared_late_at: the line that cleared them.
        num_uncleared, num_cleared: steps whose gradients held, or did not hold, those of the step
            before.
        is_uncleared_proven: bit by bit, twice.
        without_grad: names of weights that had a gradient at no step that was looked at.
        ratios: by step, the median over matrices of |update| / |weights|.
        rates: by step, the first group's learning rate.
        losses: by step, the mean of what backward was called on.
        decayed: weights of one dimension that are decayed, by name.
        has_closure: its step calls backward itself, as often as it likes.
        num_waiting: looks at which it had not stepped, and weights that it alone holds had a
            gradient.
        num_spared: weights of one dimension in groups without decay, where others are decayed.
        climbs: by step looked at, the median over matrices of the cosine of update and gradient.
        twice: weights that it was given more than once, by name.
        shared: weights that another optimiser had stepped just before, on the same gradients.
        num_shared: looks at which that was so.
        num_outside_scaler: steps on gradients that a scaler had scaled and nobody unscaled.
    """

    kind: str
    built_at: str | None = None
    stepped_at: str | None = None
    num_params: int = 0
    num_steps: int = 0
    num_looked: int = 0
    num_empty: int = 0
    num_cleared_late: int = 0
    cleared_late_at: str | None = None
    num_uncleared: int = 0
    num_cleared: int = 0
    is_uncleared_proven: bool = False
    without_grad: tuple[str, ...] = ()
    ratios: list[tuple[int, float]] = field(default_factory=list)
    rates: list[tuple[int, float]] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)
    backwards: dict[int, int] = field(default_factory=dict)
    decayed: tuple[str, ...] = ()
    decay: float = 0.0
    num_spared: int = 0
    climbs: list[tuple[int, float]] = field(default_factory=list)
    decays_by_l2: bool = False
    maximises: bool = False
    owns_modules: bool = False
    twice: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    num_shared: int = 0
    num_outside_scaler: int = 0
    has_closure: bool = False
    num_waiting: int = 0


@dataclass(kw_only=True)
class ScheduleSeen:
    """One learning-rate scheduler.

    Attributes:
        num_stepped: how far it has come.
        num_idle: times that it stepped again although its optimiser had not, once that had begun.
        longest_idle: so many of these in a row.
        horizon: steps after which it is done, where it says so.
        is_optional: it never stepped, and the script has a line that would step it.
        is_early: it was stepped before its optimiser's first step.
        is_for_max: it waits for a number to rise, as ReduceLROnPlateau in mode "max".
        metrics: the numbers that it was given.
    """

    kind: str
    is_for_max: bool = False
    metrics: list[float] = field(default_factory=list)
    built_at: str | None = None
    stepped_at: str | None = None
    num_stepped: int = 0
    num_idle: int = 0
    longest_idle: int = 0
    horizon: int | None = None
    period: int | None = None
    gamma: float | None = None
    is_early: bool = False
    is_optional: bool = False
    base_rate: float | None = None
    least_rate: float | None = None


@dataclass(kw_only=True)
class PrecisionSeen:
    """Mixed precision."""

    num_half: int = 0
    half_at: str | None = None
    num_scaled: int = 0
    scaler_steps: int = 0
    num_skipped: int = 0
    num_updates: int = 0
    num_clipped_scaled: int = 0
    clipped_scaled_at: str | None = None


@dataclass(kw_only=True)
class ClippingSeen:
    """Clipping of gradients, from one line.

    Attributes:
        is_own: the script's call, not a library's.
        norms: by norm: those that clipping found.
        shares: by value: of some of the gradient's numbers, those beyond the limit.
    """

    where: str | None
    limit: float
    is_own: bool = True
    shares: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)

"""What was seen of optimizers, schedules and backward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stepladder.watching.seen.losses import (
    GaussianSeen,
    RatesSeen,
    SummedDivergenceSeen,
    SummedTermSeen,
)
from stepladder.watching.seen.weights import RoundingSeen, WithoutSeen


@dataclass(kw_only=True)
class WindowSeen:
    """The backwards between two steps of an optimizer.

    Attributes:
        num_backwards: those that reached its weights.
        num_lost: of these, those whose gradients were cleared before any optimizer stepped.
        num_batches: batches returned by loaders, or different inputs of models; None if unknown.
        is_checked: values were compared, because earlier gradients seemed lost.
        is_own: the script has moved weights or written gradients itself.
        has_tail: a pass over a loader began meanwhile, on gradients of the previous one.
    """

    step: int
    num_backwards: int
    num_lost: int
    num_batches: int | None
    is_checked: bool
    is_own: bool
    has_tail: bool


@dataclass(kw_only=True)
class OptimizerSeen:
    """One optimizer.

    Attributes:
        kind: its class.
        built_at, stepped_at: the script's lines.
        num_params: tensors that it was given, without frozen ones.
        is_fused: it runs one kernel for all weights; None if it has no such kernel.
        shapes: of these tensors, if it has few.
        first_step, last_step: of the watched steps.
        num_looked: steps that were inspected.
        num_empty: of these, those at which no weight of it had a gradient.
        num_cleared_late: of these, those where gradients were cleared after the last backward.
        cleared_late_at: the line that cleared them.
        num_uncleared, num_cleared: steps whose gradients still contained, or did not contain, those
            of the previous step.
        is_uncleared_proven: bit for bit, twice.
        without_grad: names of weights that had no gradient at any inspected step.
        zero_grad, num_zero_looks: names of weights whose gradient was exactly zero at all of so
            many inspected steps, the first ones left out.
        num_zero_weights: how many of these were zero themselves.
        ratios: by step, the median over matrices of |update| / |weights|.
        rates: by step, the first group's learning rate.
        schedule: the rates of all steps.
        losses: by step, the mean of what backward was called on.
        decayed: weights of one dimension that are decayed, by name.
        has_closure: its step calls backward itself, any number of times.
        num_waiting: inspections at which it had not stepped although weights in no other optimizer
            had a gradient.
        num_spared: one-dimensional weights in groups without decay, if others are decayed.
        climbs: by inspected step, the median over matrices of the cosine of update and gradient.
        twice: weights that it was given more than once, by name.
        shared: weights that another optimizer had stepped just before, on the same gradients.
        num_shared: inspections at which that was so.
        num_compared, num_rewritten: inspected steps whose gradients were compared with those that
            backward left, and those in which the script had changed them.
        num_outside_scaler: steps on gradients that a GradScaler had scaled and not unscaled.
        lost_after: how often the same line created it again for the same weights, without the state
            that it had, by the number of steps since it was last created.
        is_resumed: one that had been replaced in this way took steps again later.
        windows: the backwards of the steps that were followed.
        tails: by pass over a loader, the backwards at its end whose gradients were cleared before
            a step.
        rounding: of weights with few bits; None if it has none.
        causes: why weights never had a gradient, as far as that is proven.
    """

    kind: str
    built_at: str | None = None
    stepped_at: str | None = None
    num_params: int = 0
    is_fused: bool | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0
    num_looked: int = 0
    num_empty: int = 0
    num_cleared_late: int = 0
    cleared_late_at: str | None = None
    num_uncleared: int = 0
    num_cleared: int = 0
    is_uncleared_proven: bool = False
    without_grad: tuple[str, ...] = ()
    zero_grad: tuple[str, ...] = ()
    num_zero_looks: int = 0
    num_zero_weights: int = 0
    ratios: list[tuple[int, float]] = field(default_factory=list)
    rates: list[tuple[int, float]] = field(default_factory=list)
    schedule: RatesSeen = field(default_factory=RatesSeen)
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
    num_compared: int = 0
    num_rewritten: int = 0
    num_outside_scaler: int = 0
    lost_after: dict[int, int] = field(default_factory=dict)
    is_resumed: bool = False
    has_closure: bool = False
    num_waiting: int = 0
    windows: list[WindowSeen] = field(default_factory=list)
    tails: list[int] = field(default_factory=list)
    rounding: RoundingSeen | None = None
    causes: tuple[WithoutSeen, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OptionSeen:
    """An optimizer that got another option of the script as its learning rate.

    Attributes:
        where: the line of that argument.
        kind: the optimizer.
        passed, value: the option that it got.
        meant, rate: the one that is a learning rate by its name, and is read nowhere else.
    """

    where: str
    kind: str
    passed: str
    value: float
    meant: str
    rate: float


@dataclass(kw_only=True)
class ScheduleSeen:
    """One learning-rate scheduler.

    Attributes:
        num_stepped: number of its steps.
        num_idle: steps without a step of its optimizer in between, after training had begun.
        longest_idle: the most of these in a row.
        horizon: steps after which it ends, if it has such a number.
        is_optional: it never stepped, but the script has a line that would step it.
        is_early: it stepped before its optimizer's first step.
        is_for_max: it waits for a metric to rise, like ReduceLROnPlateau in mode "max".
        metrics: the metrics that it received.
        metric_code: the line that passes them.
        counts: whole numbers in the function that computes its factor.
        peak_rate: the highest learning rate that it is set to; None if it has no such value.
        num_rebuilt: how often the same line created it again for the same optimizer.
        num_cut: of these, those that came before it had followed much of its schedule.
        longest_life: the most steps that one of the replaced schedulers took.
    """

    kind: str
    is_for_max: bool = False
    metrics: list[float] = field(default_factory=list)
    metric_code: str = ""
    counts: tuple[int, ...] = ()
    peak_rate: float | None = None
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
    num_rebuilt: int = 0
    num_cut: int = 0
    longest_life: int = 0


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
    """Gradient clipping at one line of the script.

    Attributes:
        is_own: called by the script, not by a library.
        norms: for clipping by norm: the norms before clipping.
        shares: for clipping by value: the share of sampled gradient entries beyond the limit.
        num_late: of the followed calls, those that changed a gradient after a step had used it,
            which was cleared before the next backward.
        num_early: of these, those without any gradient, with backward before the next step.
        num_in_time: of these, those between backward and the step.
    """

    where: str | None
    limit: float
    is_own: bool = True
    shares: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    num_late: int = 0
    num_early: int = 0
    num_in_time: int = 0


@dataclass(kw_only=True)
class PatienceSeen:
    """A counter of evaluations without improvement, which ends the training at a limit.

    Attributes:
        name, limit: the code of both.
        is_reset: the source assigns it again, or may do so.
        num_read: times that it was read, with the best value.
        num_kept: of these, those at which the best value was another one, but it was not smaller.
        count, before, after: the counter and the best values, the first time.
    """

    where: str | None
    name: str
    limit: str
    is_reset: bool
    num_read: int = 0
    num_kept: int = 0
    count: int = 0
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PairWeightSeen:
    """Values of examples that a loss multiplies by the weights of all examples.

    Attributes:
        values: the shape of one factor, which is learned from.
        weights: that of the other one.
        is_matrix: the weights are a matrix of differences or sums of all pairs of two vectors.
    """

    values: tuple[int, ...]
    weights: tuple[int, ...]
    is_matrix: bool


@dataclass(kw_only=True)
class BackwardSeen:
    """A call of backward that was inspected.

    Attributes:
        terms: the terms of the loss: kind, factor, reduction, shape of the scores.
        num_new_batches: batches returned by loaders since the last step.
        num_inputs: different inputs that models received since then.
        sizes: the first two sizes of the last input of a model; empty if unknown.
        divergence: of a variational autoencoder, if it is summed over the batch.
        gaussian: its terms, however they are reduced.
        summed: a term that is summed over the batch, beside one that is a mean over it.
        pair_weights: a product that broadcasting has extended to all pairs of examples.
        averaged: a loss whose mean over a batch became a probability, and what it received.
        pixel_norm: the shape of images of whose gradient a norm by pixel was taken.
    """

    step: int
    where: str | None
    terms: tuple[Any, ...]
    value: float | None
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    num_new_batches: int = 0
    num_inputs: int = 0
    sizes: tuple[int, ...] = ()
    divergence: SummedDivergenceSeen | None = None
    gaussian: GaussianSeen | None = None
    summed: SummedTermSeen | None = None
    pair_weights: PairWeightSeen | None = None
    averaged: tuple[str, tuple[int, ...]] | None = None
    pixel_norm: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class CutSeen:
    """An operation whose output has no graph, although an input has one, and its line."""

    operation: str
    where: str | None


@dataclass(kw_only=True)
class StartSeen:
    """A call of backward after a step at which an optimizer had no gradients at all.

    Attributes:
        is_leaf: it was called on a tensor without a graph, which was made to require a gradient.
        num_weights: weights that its graph reaches.
        is_called: a model with weights of that optimizer was called before it.
        cut: where the graph ended, if it reaches no weights and that is known.
    """

    where: str | None
    is_leaf: bool
    num_weights: int
    is_called: bool
    cut: CutSeen | None = None

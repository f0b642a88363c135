"""What was seen, as plain data: written by the watchers, read by the detectors."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from stepladder.records.watch import Clearing
from stepladder.watching.hooks.tensors import Spread
from stepladder.watching.seen_costs import CostsSeen
from stepladder.watching.seen_inputs import PaddingSeen, SeedingSeen, ShiftSeen, StoredSeen
from stepladder.watching.seen_losses import (
    LossSeen,
    LostTermSeen,
    MarginSeen,
    OwnBackwardSeen,
    PredictionSeen,
    RatesSeen,
)
from stepladder.watching.seen_weights import (
    FrozenNormSeen,
    LoadSeen,
    MisnamedSeen,
    RoundingSeen,
    WithoutSeen,
)


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
        num_looked: steps that were inspected.
        num_empty: of these, those at which no weight of it had a gradient.
        num_cleared_late: of these, those where gradients were cleared after the last backward.
        cleared_late_at: the line that cleared them.
        num_uncleared, num_cleared: steps whose gradients still contained, or did not contain, those
            of the previous step.
        is_uncleared_proven: bit for bit, twice.
        without_grad: names of weights that had no gradient at any inspected step.
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
    """

    where: str | None
    limit: float
    is_own: bool = True
    shares: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class BackwardSeen:
    """A call of backward that was inspected.

    Attributes:
        terms: the terms of the loss: kind, factor, reduction, shape of the scores.
        num_new_batches: batches returned by loaders since the last step.
        num_inputs: different inputs that models received since then.
        sizes: the first two sizes of the last input of a model; empty if unknown.
    """

    step: int
    where: str | None
    terms: tuple[Any, ...]
    value: float | None
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    num_new_batches: int = 0
    num_inputs: int = 0
    sizes: tuple[int, ...] = ()


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


@dataclass(kw_only=True)
class PassSeen:
    """One pass over a loader, from its first batch to its last or to where it was stopped.

    Attributes:
        wait_s: seconds in which the script waited for it.
        start_s: of these, for the iterator, its first batch and its end.
    """

    loader: int
    num_batches: int = 0
    num_backwards: int = 0
    num_steps: int = 0
    began_at_step: int = 0
    is_whole: bool = False
    wait_s: float = 0.0
    start_s: float = 0.0
    span_s: float = 0.0
    num_forwards: int = 0
    num_train_mode: int = 0
    num_with_graph: int = 0
    first_checksum: float | None = None

    def count(self, *, is_training: bool, has_graph: bool) -> None:
        """Count a call of a model."""
        self.num_forwards += 1
        self.num_train_mode += is_training
        self.num_with_graph += has_graph

    @property
    def is_training(self) -> bool:
        """Return whether anything was learned in it."""
        return self.num_backwards + self.num_steps > 0

    @property
    def is_validation(self) -> bool:
        """Return whether a model ran on it after training had begun, without learning."""
        return not self.is_training and self.num_forwards > 0 and self.began_at_step > 0


@dataclass(kw_only=True)
class DrawsSeen:
    """The indices that the samplers of one dataset returned, in all of its loaders.

    Attributes:
        num_stored: length of the dataset; 0 if its keys are no positions.
        num_drawn, num_distinct: indices, and distinct ones; the latter are counted at the end.
        num_compared, num_apart: examples that it stores in an array and that were compared, and how
            many of them are distinct; 0 if it stores none.
        width: values of such an example.
    """

    num_stored: int
    num_drawn: int = 0
    num_distinct: int = 0
    num_compared: int = 0
    num_apart: int = 0
    width: int = 0


@dataclass(kw_only=True)
class LoaderSeen:
    """One loader.

    Attributes:
        where, line: the line that iterates it, as text, and as file and number.
        num_examples: examples of a whole pass; None if unknown, as of a stream.
        is_stacked: its batches are stacked by torch's default, along the first dimension.
        keeps_workers: its worker processes serve several passes.
        num_stored, num_distinct: inspected examples that its dataset stores in memory, and how many
            of them are distinct; 0 if it stores none.
        shared_draws: how its workers come to draw the same random numbers; None if they don't.
        epoch_sampler: it has a DistributedSampler that shuffles by epoch.
        num_set_epoch: number of set_epoch calls.
        num_dataset, num_repeated, num_replicas: for a DistributedSampler that drops nothing: the
            examples of its dataset, those that it repeats so that all ranks get as many, and the
            ranks.
        num_learnt, num_learnt_distinct: examples that a model learned from, as far as they were
            followed, and how many of them are distinct.
        least_width: values that the model received of such an example, at least.
        draws: what the samplers of its dataset returned; None if that is unknown.
        sampler_kind: the class of its sampler.
        num_weights, num_zero: weights of its sampler, and how many are 0; 0 if it has none.
    """

    where: str | None
    line: tuple[str, int] | None = None
    dataset: str = ""
    dataset_id: int = 0
    sampler: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    num_batches: int | None = None
    num_examples: int | None = None
    is_stacked: bool = False
    keeps_workers: bool = False
    is_iterable: bool = False
    shared_draws: str | None = None
    epoch_sampler: bool = False
    num_set_epoch: int = 0
    num_dataset: int = 0
    num_repeated: int = 0
    num_replicas: int = 1
    num_stored: int = 0
    num_distinct: int = 0
    num_learnt: int = 0
    num_learnt_distinct: int = 0
    least_width: int | None = None
    draws: DrawsSeen | None = None
    sampler_kind: str = ""
    num_weights: int = 0
    num_zero: int = 0
    passes: list[PassSeen] = field(default_factory=list)

    @property
    def training(self) -> list[PassSeen]:
        """Return the passes in which something was learned."""
        return [one for one in self.passes if one.is_training]

    @property
    def validation(self) -> list[PassSeen]:
        """Return the passes in which a model only ran."""
        return [one for one in self.passes if one.is_validation]


@dataclass(kw_only=True)
class StatisticsSeen:
    """BatchNorm statistics of a model that follows the weights of a trained one.

    Attributes:
        where: the line of the last evaluation.
        first_step, last_step, num_evaluations: steps at which it was evaluated, and their number.
        is_initial: they are those before any batch, although the weights have been updated.
        is_kept: they are the same at all evaluations, although the weights have changed.
        is_of_last_weights: those of the trained model, although the weights are an equal average.
        distance: the most by which a mean differs from the trained model's, in standard deviations.
    """

    where: str | None
    first_step: int
    last_step: int
    num_evaluations: int
    is_initial: bool
    is_kept: bool
    is_of_last_weights: bool
    distance: float


@dataclass(kw_only=True)
class EvaluatedSeen:
    """The examples that a model was evaluated on: those of a loader, or at a line of the script.

    Attributes:
        where: the line of the last evaluation.
        is_named: the variables in the lines that led to it are named after held-out examples.
        num_rows, num_calls: examples of the last evaluation, and calls of the model.
        num_new: of these examples, those in calls with none that was learned from before.
        num_distinct, num_known: distinct examples, and those that had been learned from.
        num_learnt, num_learnt_rows: distinct examples and all examples that were learned from, as
            far as they were followed.
        is_whole_batch: all steps learned from one and the same batch.
    """

    where: str | None
    is_of_loader: bool
    is_named: bool
    num_rows: int
    num_calls: int
    num_new: int
    num_distinct: int
    num_known: int
    num_learnt: int
    num_learnt_rows: int
    is_whole_batch: bool

    @property
    def share(self) -> float:
        """Return the share of its examples that were learned from."""
        return self.num_known / max(1, self.num_distinct)


@dataclass(kw_only=True)
class ModelSeen:
    """One outermost module that was called.

    Attributes:
        built: its class.
        has_dropout, has_batch_norm: it has such layers that are active in training mode.
        fresh_batch_norm: its BatchNorm has no statistics yet when training begins.
        num_train_mode, num_eval_mode: calls that were learned from, by mode.
        left_train_mode_at: the step at which it was first learned from in evaluation mode, after
            training mode.
        num_idle_graphs: calls in evaluation mode with an autograd graph that was never used.
        num_train_without_grad: calls in training mode without gradients, between steps.
        calls_of_a_step: the largest number of calls that one backward learned from.
        dropped: by step, calls in training mode whose graph was freed before any backward.
        not_in_optimizer: names of weights that got a gradient but are in no optimizer.
        num_unheld: inspections at which it was learned from, but no optimizer held its weights.
        constant_factors: weights with a constant initial value that are multiplied as matrices.
        num_live_dropout: calls of dropout that were active while it was in evaluation mode.
        wanted_pixels, given_pixels: pixels per image that it expects and that it received.
        alike_weights: weights with a constant initial value whose units stayed identical.
        batch_keys: by step, some values of a batch that did not come from a loader.
        statistics: of its BatchNorm layers, if it is evaluated but not trained by a gradient.
        bits: an estimate of the bits that distinguish its examples; 0 if unknown.
        is_continuous: most values of its inputs are distinct.
        num_learnt: distinct examples that it learned from, as far as they were followed.
        evaluated: the examples that it was evaluated on after it had begun to learn.
    """

    built: str
    num_params: int = 0
    has_dropout: bool = False
    has_batch_norm: bool = False
    fresh_batch_norm: bool = False
    is_optimised: bool = False
    num_train_mode: int = 0
    num_eval_mode: int = 0
    left_train_mode_at: int | None = None
    num_idle_graphs: int = 0
    idle_graph_at: str | None = None
    num_train_without_grad: int = 0
    without_grad_at: str | None = None
    calls_of_a_step: int = 1
    dropped: list[tuple[int, int]] = field(default_factory=list)
    dropped_at: str | None = None
    called_at: str | None = None
    not_in_optimizer: tuple[str, ...] = ()
    num_unheld: int = 0
    constant_factors: tuple[str, ...] = ()
    num_live_dropout: int = 0
    live_dropout_at: str | None = None
    num_weights: int = 0
    constant_weights: tuple[str, ...] = ()
    zero_weights: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    wanted_pixels: int | None = None
    given_pixels: int | None = None
    pooled_pixels: int | None = None
    window_offsets: list[int] = field(default_factory=list)
    alike_weights: tuple[str, ...] = ()
    batch_keys: dict[int, tuple[float, ...]] = field(default_factory=dict)
    statistics: StatisticsSeen | None = None
    bits: float = 0.0
    is_continuous: bool = False
    num_learnt: int = 0
    evaluated: list[EvaluatedSeen] = field(default_factory=list)


@dataclass(kw_only=True)
class InputSeen:
    """The input of the first layer with weights, at an inspected step.

    Attributes:
        given_means, given_stds: by channel, of the model's own input; empty if the layer receives
            that unchanged.
    """

    step: int
    layer: str
    spread: Spread
    shape: tuple[int, ...]
    channel_means: tuple[float, ...] = ()
    channel_stds: tuple[float, ...] = ()
    num_copies: int = 0
    num_constant: int = 0
    num_examples: int = 0
    worst_feature: float = 0.0
    given_means: tuple[float, ...] = ()
    given_stds: tuple[float, ...] = ()


class Told(StrEnum):
    """What columns of the inputs say about the target.

    EQUAL: they are the target. AFFINE: they are an affine function of it. ORDER: examples have the
    same order in them, or the opposite one. CLASS: each has another value for every class. CLASSES:
    each has one value per class, and together these distinguish all classes.
    """

    EQUAL = "equal"
    AFFINE = "affine"
    ORDER = "order"
    CLASS = "class"
    CLASSES = "classes"


@dataclass(kw_only=True)
class PairsSeen:
    """Rows of a table and their targets, of the inspected steps.

    Attributes:
        where: the line of the loss.
        num_distinct: distinct rows.
        num_values: distinct targets.
        told, columns: what the first of such columns say about the target; None if none does.
    """

    where: str | None
    num_rows: int
    num_columns: int
    num_distinct: int
    num_values: int = 0
    told: Told | None = None
    columns: tuple[int, ...] = ()


@dataclass(kw_only=True)
class LabelsSeen:
    """What some rows say about their class labels, if the loss of new examples did not fall.

    Attributes:
        where: the line of the loss.
        guess: the loss of the best constant guess.
        loss, num_steps: the mean of the last quarter of the losses, and their number.
        is_remembered: the loss fell later; then these are the losses of the first epoch.
        num_again, num_changed: rows that occurred before, and how many then had another label.
        chance: the share of these if labels have nothing to do with rows.
        nearest, linear: by how many deviations two probes beat permuted labels; None if unknown.
        is_noise: columns of the rows are independent of each other, as in random numbers.
    """

    where: str | None = None
    num_rows: int
    num_classes: int
    guess: float
    chance: float
    loss: float = 0.0
    num_steps: int = 0
    is_remembered: bool = False
    num_distinct: int = 0
    num_again: int = 0
    num_changed: int = 0
    nearest: float | None = None
    linear: float | None = None
    is_noise: bool = False


@dataclass(kw_only=True)
class IndependenceSeen:
    """A model of which a copy was called with a batch, and with other examples in half of it.

    Attributes:
        moved: the largest change of an output of the other half, in standard deviations.
        why_not: why that is unknown.
        num_without_statistics: its BatchNorm layers without running statistics.
        batch_second: a layer of it whose second dimension is the batch; None if it has none.
    """

    built: str
    where: str | None
    num_examples: int = 0
    moved: float = 0.0
    why_not: str | None = None
    num_without_statistics: int = 0
    batch_second: str | None = None


@dataclass(kw_only=True)
class SavedSeen:
    """One file that torch.save wrote.

    Attributes:
        keys: names in the outermost dict.
        has_model, has_optimizer: it contains the state of one.
        is_empty: it is a module's state without weights.
    """

    where: str | None
    step: int
    keys: tuple[str, ...] = ()
    has_model: bool = False
    has_optimizer: bool = False
    has_schedule: bool = False
    has_scaler: bool = False
    has_position: bool = False
    is_empty: bool = False


@dataclass(kw_only=True)
class StateSeen:
    """Weights that were loaded or saved, and had changed since they were taken without a copy.

    Attributes:
        where: the line that loaded or saved them.
        taken_at, taken_step: the line that called `state_dict`, and the step.
        is_loaded: they were loaded into the model that they share memory with; otherwise saved.
    """

    where: str | None
    taken_at: str | None
    taken_step: int
    step: int
    num_tensors: int
    is_loaded: bool


@dataclass(kw_only=True)
class Seen:
    """Everything that was seen.

    Attributes:
        is_over: the script ended, in whatever way.
        was_cut: it failed or was stopped early: what never happened might have happened later.
        num_loads: calls of `load_state_dict`.
    """

    num_steps: int = 0
    num_backwards: int = 0
    backward_at: str | None = None
    optimizers: list[OptimizerSeen] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    margins: list[MarginSeen] = field(default_factory=list)
    predictions: list[PredictionSeen] = field(default_factory=list)
    own_backwards: list[OwnBackwardSeen] = field(default_factory=list)
    lost_terms: list[LostTermSeen] = field(default_factory=list)
    backward_calls: list[BackwardSeen] = field(default_factory=list)
    starts: list[StartSeen] = field(default_factory=list)
    loaders: list[LoaderSeen] = field(default_factory=list)
    models: list[ModelSeen] = field(default_factory=list)
    inputs: list[InputSeen] = field(default_factory=list)
    schedules: list[ScheduleSeen] = field(default_factory=list)
    precision: PrecisionSeen = field(default_factory=PrecisionSeen)
    clippings: list[ClippingSeen] = field(default_factory=list)
    independence: IndependenceSeen | None = None
    labels: list[LabelsSeen] = field(default_factory=list)
    shifts: list[ShiftSeen] = field(default_factory=list)
    stored: list[StoredSeen] = field(default_factory=list)
    seedings: list[SeedingSeen] = field(default_factory=list)
    paddings: list[PaddingSeen] = field(default_factory=list)
    pairs: list[PairsSeen] = field(default_factory=list)
    saved: list[SavedSeen] = field(default_factory=list)
    stale_states: list[StateSeen] = field(default_factory=list)
    loads: list[LoadSeen] = field(default_factory=list)
    num_loads: int = 0
    frozen_norms: list[FrozenNormSeen] = field(default_factory=list)
    misnamed: list[MisnamedSeen] = field(default_factory=list)
    unregistered: dict[str, int] = field(default_factory=dict)
    norm_counts: dict[str, list[int]] = field(default_factory=dict)
    bad_tokens: tuple[int, int] | None = None
    bad_tokens_at: str | None = None
    padding: tuple[int, int] | None = None
    not_finite: str | None = None
    not_finite_at: str | None = None
    not_finite_step: int | None = None
    loss_not_finite_at: int | None = None
    num_graphs_alive: int = 0
    num_outputs_alive: int = 0
    has_seed: bool = False
    reseeded: dict[tuple[str | None, int], int] = field(default_factory=dict)
    is_compiled: bool = False
    modules_were_seen: bool = False
    world_size: int = 1
    num_processes: int = 0
    is_over: bool = False
    was_cut: bool = False
    num_looked: int = 0
    clearing: Clearing | None = None
    costs: CostsSeen = field(default_factory=CostsSeen)

"""What was seen, as plain data: the watchers write it, the detectors read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from stepladder.records.watch import Clearing
from stepladder.watching.hooks.graph import Activation
from stepladder.watching.hooks.tensors import Spread

OWN_LOSS: Final = "log_softmax"  # of which a script picks its labels' numbers itself


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


@dataclass(kw_only=True)
class LossSeen:
    """The calls of one loss function from one line.

    Attributes:
        where: the script's line that called it, or that called the layer which did.
        num_looked: calls that were looked at closely.
        num_classes: size of the class dimension; None: it has none.
        activation: softmax or sigmoid that its input comes from.
        is_log_probability: its input's exponentials add up to 1 over the classes; None: not looked
            at.
        is_probability: the numbers that it was given are at least 0 and add up to 1 over the
            classes; None: not looked at.
        step_classes: by step, the classes of its training batches of eight or more labels.
        classes: labels that were seen.
        num_labels: how many labels were looked at.
        bad_range: labels outside the classes: lowest and highest.
    """

    kind: str
    where: str | None
    num_looked: int = 0
    input_shape: tuple[int, ...] = ()
    reduction: str = "mean"
    ignore_index: int | None = None
    has_int_target: bool = False
    num_classes: int | None = None
    activation: Activation | None = None
    is_log_probability: bool | None = None
    is_probability: bool | None = None
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    target_low: float | None = None
    target_high: float | None = None
    input_low: float | None = None
    input_high: float | None = None
    step_classes: dict[int, set[int]] = field(default_factory=dict)
    classes: set[int] = field(default_factory=set)
    num_labels: int = 0
    label_counts: dict[int, int] = field(default_factory=dict)
    bad_range: tuple[int, int, int] | None = None

    @property
    def is_soft(self) -> bool:
        """Whether its input is a logarithm of a softmax, of which only the shape was changed."""
        one = self.activation
        return one is not None and one.is_bare and (one.kind == "LogSoftmax" or one.has_log)


@dataclass(kw_only=True)
class BackwardSeen:
    """A call of backward that was looked at closely.

    Attributes:
        terms: what the number is made of: kind, factor, reduction, shape of the scores.
        num_new_batches: batches that loaders gave since the last step.
        num_inputs: different inputs that models were given since then.
        sizes: of the last input of a model, its first two; empty: not known.
    """

    step: int
    where: str | None
    terms: tuple[Any, ...]
    value: float | None
    broadcast: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    num_new_batches: int = 0
    num_inputs: int = 0
    sizes: tuple[int, ...] = ()


@dataclass(kw_only=True)
class PassSeen:
    """One pass over a loader, from its first batch to its last or to where it was left."""

    loader: int
    num_batches: int = 0
    num_backwards: int = 0
    num_steps: int = 0
    began_at_step: int = 0
    is_whole: bool = False
    wait_s: float = 0.0
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
        """Whether something was learnt in it."""
        return self.num_backwards + self.num_steps > 0

    @property
    def is_validation(self) -> bool:
        """Whether a model was run over it once training had begun, and nothing learnt."""
        return not self.is_training and self.num_forwards > 0 and self.began_at_step > 0


@dataclass(kw_only=True)
class LoaderSeen:
    """One loader.

    Attributes:
        where: the line that iterates it.
        num_stored, num_distinct: examples that its data set holds in memory and that were looked
            at, and how many of them differ; 0: it holds none.
        shared_draws: how its workers come to draw the same numbers; None: they do not.
        epoch_sampler: it has a DistributedSampler that shuffles by epoch.
        num_set_epoch: how often its epoch was set.
    """

    where: str | None
    dataset: str = ""
    dataset_id: int = 0
    sampler: str = ""
    batch_size: int | None = None
    num_workers: int = 0
    num_batches: int | None = None
    is_iterable: bool = False
    shared_draws: str | None = None
    epoch_sampler: bool = False
    num_set_epoch: int = 0
    num_stored: int = 0
    num_distinct: int = 0
    passes: list[PassSeen] = field(default_factory=list)

    @property
    def training(self) -> list[PassSeen]:
        """Return the passes in which something was learnt."""
        return [one for one in self.passes if one.is_training]

    @property
    def validation(self) -> list[PassSeen]:
        """Return the passes in which a model was only run."""
        return [one for one in self.passes if one.is_validation]


@dataclass(kw_only=True)
class ModelSeen:
    """One outermost module that was called.

    Attributes:
        built: its class.
        has_dropout, has_batch_norm: it holds such layers that act in training mode.
        fresh_batch_norm: its BatchNorm has learnt no statistics when training begins.
        num_train_mode, num_eval_mode: calls that were learnt from, in either mode.
        left_train_mode_at: the step at which it was first learnt from in evaluation mode, after
            training mode.
        num_idle_graphs: calls in evaluation mode that kept a graph nobody used.
        num_train_without_grad: calls in training mode without gradients, between steps.
        calls_of_a_step: the most calls that were learnt from by one backward.
        dropped: by step, calls in training mode whose graph was let go before any backward.
        not_in_optimizer: weights that got a gradient and that no optimiser holds, by name.
        num_unheld: looks at which it was learnt from, and no optimiser held a weight of what was.
        constant_factors: weights that began constant, and are multiplied as matrices.
        num_live_dropout: calls of dropout that dropped while it was in evaluation mode.
        wanted_pixels, given_pixels: of a picture: what it was made for, and what it was given.
        alike_weights: weights that began constant, and whose units stayed alike when they moved.
        batch_keys: by step, some numbers of the batch that it was given, where no loader gave it.
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


@dataclass(kw_only=True)
class InputSeen:
    """What the first layer with weights was given, on a step that was looked at.

    Attributes:
        given_means, given_stds: by channel, of what the model was given in its place; empty: the
            layer gets it as it is.
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


@dataclass(kw_only=True)
class SavedSeen:
    """One file that torch.save wrote.

    Attributes:
        keys: names in the outermost dict.
        has_model, has_optimizer: a state of such is in it.
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
class Seen:
    """All of it.

    Attributes:
        is_over: the script ended, in whatever way.
        was_cut: it was ended before its own end, or failed: what never happened might have.
    """

    num_steps: int = 0
    num_backwards: int = 0
    backward_at: str | None = None
    optimizers: list[OptimizerSeen] = field(default_factory=list)
    losses: list[LossSeen] = field(default_factory=list)
    backward_calls: list[BackwardSeen] = field(default_factory=list)
    loaders: list[LoaderSeen] = field(default_factory=list)
    models: list[ModelSeen] = field(default_factory=list)
    inputs: list[InputSeen] = field(default_factory=list)
    schedules: list[ScheduleSeen] = field(default_factory=list)
    precision: PrecisionSeen = field(default_factory=PrecisionSeen)
    clippings: list[ClippingSeen] = field(default_factory=list)
    saved: list[SavedSeen] = field(default_factory=list)
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

"""What was seen of models: their calls, inputs, and the weights that were saved and loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.watching.hooks.tensors import Spread


class Mixed(StrEnum):
    """What a reshape mixes if it is used where dimensions are to be exchanged.

    FIRST_TWO: examples and time steps, or another dimension. CHANNELS: the last dimension of each
    example became its first, or the first its last. SPLIT_HEADS, MERGED_HEADS: those of attention.
    HEADS: positions and heads, both of which are dimensions already. LAYERS: examples and the
    layers of a recurrent state.
    """

    FIRST_TWO = "first_two"
    CHANNELS = "channels"
    SPLIT_HEADS = "split_heads"
    MERGED_HEADS = "merged_heads"
    HEADS = "heads"
    LAYERS = "layers"


@dataclass(kw_only=True)
class ReshapeSeen:
    """A line that reshapes what a model receives or computes, and mixes it.

    Attributes:
        before, after: both shapes, of its first call.
        num_steps: steps in which a model learned from what it returned.
    """

    where: str | None
    mixed: Mixed
    before: tuple[int, ...]
    after: tuple[int, ...]
    num_steps: int = 0


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
class UnreachedSeen:
    """Calls of layers in training mode that are in no model, during an evaluation of one.

    Attributes:
        layer: the first of them, such as `Dropout(p=0.5)`.
        is_norm: it is a BatchNorm layer.
        where: the line that called it.
        num_calls: calls of such layers.
        num_created: of these, those after which the layer of the last one no longer existed.
    """

    layer: str
    is_norm: bool
    where: str | None
    num_calls: int = 0
    num_created: int = 0


@dataclass(kw_only=True)
class SoftmaxSeen:
    """A line with a softmax over the last dimension.

    Attributes:
        shape: of its first result.
        num_steps: inspected steps in which this dimension had one value, so that all results are 1.
        num_others: results with more values.
    """

    where: str
    shape: tuple[int, ...]
    num_steps: int = 0
    num_others: int = 0


@dataclass(kw_only=True)
class ModelSeen:
    """One outermost module that was called.

    Attributes:
        built: its class.
        has_dropout, has_batch_norm: it has such layers that are active in training mode.
        norm_momentum: the largest weight of a new batch in the statistics of its BatchNorm layers.
        fresh_batch_norm: its BatchNorm has no statistics yet when training begins.
        num_train_mode, num_eval_mode: calls that were learned from, by mode.
        left_train_mode_at: the step at which it was first learned from in evaluation mode, after
            training mode.
        num_idle_graphs: calls in evaluation mode with an autograd graph that was never used.
        num_train_without_grad: calls in training mode without gradients, between steps.
        num_again: of these, calls on the input of the one before.
        calls_of_a_step: the largest number of calls that one backward learned from.
        dropped: by step, calls in training mode whose graph was freed before any backward.
        not_in_optimizer: names of weights that got a gradient but are in no optimizer.
        num_unheld: inspections at which it was learned from, but no optimizer held its weights.
        constant_factors: weights with a constant initial value that are multiplied as matrices.
        num_live_dropout: calls of dropout that were active while it was in evaluation mode.
        unreached: layers in training mode that it called in evaluation mode, and that are not its.
        wanted_pixels, given_pixels: pixels per image that it expects and that it received.
        alike_weights: weights with a constant initial value whose units stayed identical.
        carries_state: it received memory that it had returned for the batch before.
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
    norm_momentum: float = 0.0
    fresh_batch_norm: bool = False
    is_optimised: bool = False
    num_train_mode: int = 0
    num_eval_mode: int = 0
    left_train_mode_at: int | None = None
    num_idle_graphs: int = 0
    idle_graph_at: str | None = None
    num_train_without_grad: int = 0
    num_again: int = 0
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
    unreached: UnreachedSeen | None = None
    num_weights: int = 0
    constant_weights: tuple[str, ...] = ()
    zero_weights: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    wanted_pixels: int | None = None
    given_pixels: int | None = None
    pooled_pixels: int | None = None
    window_offsets: list[int] = field(default_factory=list)
    carries_state: bool = False
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
class IgnoredStateSeen:
    """A checkpoint from which training resumed without the state of its optimizer.

    Attributes:
        where: the line that loaded its weights.
        read_at, name: the line that read it, and the variable that has it.
        taken: the entries that the script takes from it.
        optimizer, schedule: the entries of an optimizer and of a scheduler that it does not take.
        kind, kept: the optimizer that steps instead, and what it keeps for each weight.
        rate, rate_now: the learning rate in the checkpoint, and at the first step afterwards.
    """

    where: str | None
    read_at: str | None
    name: str
    taken: tuple[str, ...]
    optimizer: str
    schedule: str | None
    kind: str
    kept: tuple[str, ...]
    rate: float
    rate_now: float


@dataclass(frozen=True, kw_only=True)
class IgnoredPlanSeen:
    """A checkpoint from which training resumed, with the state of a scheduler that nothing reads.

    Attributes:
        where, name: the line that read it, and the variable that has it.
        schedule: the entry of the scheduler.
        num_taken: steps that the scheduler had taken.
        step: of the watched training, at which it was read.
    """

    where: str | None
    name: str
    schedule: str
    num_taken: int
    step: int


@dataclass(kw_only=True)
class OwnStateSeen:
    """A line that loads the weights that a module has at that moment into the module itself.

    Attributes:
        model: its class.
        num_times: steps after which it did.
        last_step: the last one of them.
    """

    where: str | None
    model: str
    num_times: int = 0
    last_step: int = 0


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


@dataclass(frozen=True, kw_only=True)
class SlipSeen:
    """A line of the script that does nothing, or something else than it seems to.

    Attributes:
        kind: see `script/slips.py`.
        code: the expression.
        name: of the method or layer.
    """

    kind: str
    where: str
    code: str
    name: str

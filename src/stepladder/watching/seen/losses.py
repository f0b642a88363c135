"""What was seen of losses and of learning rates, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from stepladder.watching.hooks.graph import Activation

OWN_SQUARE: Final = "the squared difference"  # that a script computes itself
OWN_LOSS: Final = "log_softmax"  # from which a script picks the values of its labels itself


@dataclass(kw_only=True)
class WeightsSeen:
    """The weights of classes, or of positives, in one loss.

    Attributes:
        by_class: by class.
        positive: of the positives in a binary loss, by output; one number if there is one for all.
        num_positive, num_binary: by output, how many targets were positive, and how many were seen.
    """

    by_class: dict[int, float] = field(default_factory=dict)
    positive: tuple[float, ...] = ()
    num_positive: list[int] = field(default_factory=list)
    num_binary: list[int] = field(default_factory=list)


@dataclass(kw_only=True)
class ReachSeen:
    """Targets of a loss whose input comes directly from an activation with a limited range.

    Attributes:
        activation: its name, such as `relu`.
        low, high: limits of its output.
        num_beyond: targets outside of these by more than a tenth of their standard deviation.
        squares, missed: sum of the squared deviations of targets from their mean, and that of their
            squared distances from the nearest output.
        target_low, target_high: of the targets.
    """

    activation: str
    low: float
    high: float
    num_targets: int = 0
    num_beyond: int = 0
    squares: float = 0.0
    missed: float = 0.0
    target_low: float = 0.0
    target_high: float = 0.0


@dataclass(kw_only=True)
class RowsSeen:
    """Targets of a cross entropy that are numbers for each class.

    Attributes:
        num_rows: rows of only 0 and 1.
        num_several: of these, rows with several ones.
        num_empty: of these, rows without any.
        num_other: rows with other values.
        is_input: they have the shape of the model's input, as counts that are reconstructed.
    """

    num_rows: int = 0
    num_several: int = 0
    num_empty: int = 0
    num_other: int = 0
    is_input: bool = False


@dataclass(kw_only=True)
class DivergenceSeen:
    """Arguments of kl_div.

    Attributes:
        num_looked: calls that were inspected.
        num_shares: of these, those whose input has values of at least 0 that sum to 1.
        num_negative: those whose target has negative values, and is not declared as a logarithm.
        num_raw: those whose input is no logarithm of values that sum to 1, but whose target sums
            to 1.
    """

    num_looked: int = 0
    num_shares: int = 0
    num_negative: int = 0
    num_raw: int = 0


@dataclass(kw_only=True)
class PaddedSeen:
    """Targets of sequences whose ends are one value.

    Attributes:
        value: that value.
        num_targets, num_padded: targets that were inspected, and those in constant ends.
        num_inside: targets with that value elsewhere.
        others: other values that were seen, at most a few.
        num_looked: inspected batches whose targets end in it.
        num_aligned: of these, those whose constant ends begin where those of the token ids do.
        num_other: batches whose targets do not end like this.
    """

    value: int
    num_targets: int = 0
    num_padded: int = 0
    num_inside: int = 0
    others: set[int] = field(default_factory=set)
    num_looked: int = 0
    num_aligned: int = 0
    num_other: int = 0


@dataclass(kw_only=True)
class LossSeen:
    """The calls of one loss function from one line.

    Attributes:
        where: the line of the script that called it, or that called the layer that did.
        num_looked: calls that were inspected.
        num_classes: size of the class dimension, or None.
        num_single: calls with a single class and several examples.
        activation: softmax or sigmoid that its input comes from.
        is_log_probability: the exponentials of its input sum to 1 over the classes; None if not
            inspected.
        is_probability: the values of its input are at least 0 and sum to 1 over the classes; None
            if not inspected.
        step_classes: by step, the classes of its training batches of eight or more labels.
        classes: labels that were seen.
        num_labels: number of labels that were inspected.
        bad_range: lowest and highest label outside the classes.
        has_grad: it was called with gradients enabled.
        num_cut: calls whose integer targets were numbers of the loader's batch without fractions.
        cut: one of these numbers.
        num_whole, num_zero: targets that were integers in the loader's batch, and converted to
            floating-point numbers since; and those of them that are 0.
    """

    kind: str
    where: str | None
    num_looked: int = 0
    input_shape: tuple[int, ...] = ()
    reduction: str = "mean"
    ignore_index: int | None = None
    has_int_target: bool = False
    num_classes: int | None = None
    num_single: int = 0
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
    has_grad: bool = False
    num_cut: int = 0
    cut: float = 0.0
    num_whole: int = 0
    num_zero: int = 0
    weights: WeightsSeen | None = None
    reach: ReachSeen | None = None
    rows: RowsSeen | None = None
    divergence: DivergenceSeen | None = None
    padded: PaddedSeen | None = None

    @property
    def is_soft(self) -> bool:
        """Return whether its input is the log of a softmax, with at most its shape changed."""
        one = self.activation
        return one is not None and one.is_bare and (one.kind == "LogSoftmax" or one.has_log)


@dataclass
class Moments:
    """Number, sum and sum of squares of some values."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, values: Tensor) -> None:
        """Add values of one dimension."""
        self.num += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())

    @property
    def mean(self) -> float:
        """Return the mean; 0 without values."""
        return self.total / self.num if self.num else 0.0

    @property
    def variance(self) -> float:
        """Return the variance of the values; infinite if there are fewer than two."""
        if self.num < 2:
            return math.inf
        return max(0.0, (self.squares - self.num * self.mean**2) / (self.num - 1))


@dataclass(kw_only=True)
class MarginSeen:
    """The calls of one loss with pairs or triplets, from one line, with gradients.

    Attributes:
        num_zero, num_one, num_minus: targets of 0, 1 and -1.
        num_targets: targets that were inspected.
        is_mined: triplets were picked from the embeddings of a batch.
        near, far: in the first steps, distances that are to become small, and large.
        gap: their differences, of triplets.
        num_farther: triplets in which the first is larger.
        margin, last_step: of the last triplets that were inspected.
        late_near, late_gap, late_loss: after the first steps, the same of triplets, and what they
            add to the loss.
    """

    kind: str
    where: str | None
    num_zero: int = 0
    num_one: int = 0
    num_minus: int = 0
    num_targets: int = 0
    is_mined: bool = False
    near: Moments = field(default_factory=Moments)
    far: Moments = field(default_factory=Moments)
    gap: Moments = field(default_factory=Moments)
    num_farther: int = 0
    margin: float = 0.0
    last_step: int = 0
    late_near: Moments = field(default_factory=Moments)
    late_gap: Moments = field(default_factory=Moments)
    late_loss: Moments = field(default_factory=Moments)


@dataclass(kw_only=True)
class PredictionSeen:
    """Calls, from one line, that look for the largest of a model's outputs where there is one.

    Attributes:
        kind: "argmax" or "max".
        num_calls, num_rows: of such calls, and of examples in them.
    """

    kind: str
    where: str | None
    num_calls: int = 0
    num_rows: int = 0


@dataclass(kw_only=True)
class ComparisonSeen:
    """Comparisons, from one line, of predictions with labels that broadcast to all pairs.

    Attributes:
        predicted, label: the shapes of the first.
    """

    where: str | None
    predicted: tuple[int, ...]
    label: tuple[int, ...]
    num_calls: int = 0


@dataclass(kw_only=True)
class AverageSeen:
    """A sum of losses over a pass, each the mean of a batch, that is divided by a size.

    Attributes:
        where: the line of the division.
        name: the variable of the sum.
        kinds: the losses.
        num_losses, num_batches: how many were added up, and the batches of the pass.
        divisor: the number of examples.
    """

    where: str
    name: str
    kinds: tuple[str, ...]
    num_losses: int
    num_batches: int
    divisor: int


@dataclass(frozen=True, kw_only=True)
class UnevenAverageSeen:
    """A mean of batch means over a pass whose last batch is so small that it weighs too much.

    Attributes:
        where: the line of the division.
        name: the variable of the sum.
        num_batches, num_last, num_examples: batches, examples in the last one, and in all.
    """

    where: str
    name: str
    num_batches: int
    num_last: int
    num_examples: int

    @property
    def excess(self) -> float:
        """Return how much more the last batch weighs than its examples do, in [0, 1]."""
        return 1 / self.num_batches - self.num_last / self.num_examples


@dataclass(kw_only=True)
class OwnBackwardSeen:
    """A backward of the script's own, called with several gradients after the last step.

    Attributes:
        name: of its class.
        where: the line where it begins.
        num_values: of the gradients that it returns.
        is_constant: these were the same, and not 0, for a gradient, its negative, twice it and 0.
        why_not: why it was not tested.
    """

    name: str
    where: str | None
    num_values: int = 0
    is_constant: bool = False
    why_not: str = ""


@dataclass(kw_only=True)
class LostTermSeen:
    """A term of a loss that was turned into a number.

    Attributes:
        where: its line.
        term: its code.
        operation: what made it a number, such as `item()`.
        loss: the name of what backward is called on.
        is_direct: it was turned into a number within the sum, not before.
        num_seen: steps in which that was seen.
    """

    where: str
    term: str
    operation: str
    loss: str
    is_direct: bool = True
    num_seen: int = 0


@dataclass(kw_only=True)
class IgnoredEndSeen:
    """A target of Q-learning beside a variable with the ends of episodes that is never read.

    Attributes:
        where: its line.
        function: that computes it; empty outside of functions.
        name: that variable.
        target: the code.
        num_seen: inspected calls of backward that it leads to.
        num_transitions, num_ends: values of the variable that were read, until an end was found; 0
            if its values are unknown.
    """

    where: str
    function: str
    name: str
    target: str
    num_seen: int = 0
    num_transitions: int = 0
    num_ends: int = 0


@dataclass(kw_only=True)
class UnusedTermSeen:
    """A term of a loss that reaches no weight of the optimizer that steps next.

    Attributes:
        kind, code: the operation that computes it, and its source; empty if that is not known.
        where: the line of backward.
        num_weights: weights that it reaches, which another optimizer holds, and whose gradients
            were cleared before that one stepped.
        optimizer: the one that stepped.
        num_seen: such backwards.
    """

    kind: str
    code: str
    where: str | None
    num_weights: int
    optimizer: str
    num_seen: int = 0


@dataclass(kw_only=True)
class ConstantTermSeen:
    """A call of a loss whose value is a term of what backward is called on, but may be constant.

    Attributes:
        kind, term, loss: the loss function, the code of the call and that of the sum.
        is_added: there are other terms as well.
        is_weighted: what it is multiplied by are numbers other than 0.
        has_graph: an argument had a graph.
        has_others: in some calls, an argument had a graph, and they were not equal.
        num_calls, num_equal: other calls, and those whose arguments had equal values, so that the
            loss was 0.
        cut: the code that cut off the graph of an argument, such as `out.detach()`.
        without: the call of a model, under `torch.no_grad()`, whose output is an argument.
        num_unlearnt: steps in which that model had gradients, but not from here.
        steps: those in which it was a term.
    """

    kind: str
    where: str
    term: str = ""
    loss: str = ""
    is_added: bool = True
    is_weighted: bool = True
    has_graph: bool = False
    has_others: bool = False
    num_calls: int = 0
    num_equal: int = 0
    cut: str = ""
    without: str = ""
    num_unlearnt: int = 0
    steps: set[int] = field(default_factory=set)


@dataclass(slots=True)
class RatesSeen:
    """The learning rates of all steps of an optimizer, of its first group.

    Attributes:
        used_until: the last step with at least a thousandth of the highest rate before it.
        has_fallen: a rate was lower than the one before.
    """

    num: int = 0
    first: float = 0.0
    last: float = 0.0
    highest: float = 0.0
    used_until: int = 0
    has_fallen: bool = False

    def note(self, step: int, rate: float) -> None:
        """Add the rate of a step."""
        if self.num == 0:
            self.first = rate
        elif rate < self.last:
            self.has_fallen = True
        self.num += 1
        self.last = rate
        self.highest = max(self.highest, rate)
        if rate >= 1e-3 * self.highest:
            self.used_until = step


@dataclass(frozen=True, kw_only=True)
class SummedDivergenceSeen:
    """A Gaussian divergence that is summed over a whole batch.

    Attributes:
        shape: of the logarithms of variances.
        weight: its factor; 1 for the divergence itself, which has a factor of one half.
    """

    shape: tuple[int, ...]
    weight: float


@dataclass(frozen=True, kw_only=True)
class GaussianSeen:
    """Terms a u, b exp(k u) and c v squared of a loss, as of a Gaussian divergence.

    Attributes:
        shape: of u and v.
        linear, power, exponent, square: a, k, b and c.
    """

    shape: tuple[int, ...]
    linear: float
    power: float
    exponent: float
    square: float


@dataclass(frozen=True, kw_only=True)
class SummedTermSeen:
    """A term of a loss that is a sum over a batch, beside one that is a mean over it.

    Attributes:
        num: examples of the batch.
        shape: of the values that are summed.
        factor, mean_factor: what the sum and the mean are multiplied by, without sign.
    """

    num: int
    shape: tuple[int, ...]
    factor: float
    mean_factor: float


@dataclass(kw_only=True)
class BlankSeen:
    """A line with a CTC loss.

    Attributes:
        blank: index of its blank.
        num_labels, num_blank: labels, and those that are the blank.
        num_calls: inspected calls.
    """

    where: str | None
    blank: int
    num_labels: int = 0
    num_blank: int = 0
    num_calls: int = 0

"""What was seen of labels, and of examples that depend on each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
        is_last: the rows are the last positions of sequences.
    """

    where: str | None
    num_rows: int
    num_columns: int
    num_distinct: int
    num_values: int = 0
    told: Told | None = None
    columns: tuple[int, ...] = ()
    is_last: bool = False


@dataclass(kw_only=True)
class MirroredSeen:
    """Several reads of examples that are pictures with masks.

    Attributes:
        where: the function that returns examples.
        dataset: its kind.
        num_pairs: reads that were compared with the first one of the same example.
        num_apart: of these, those in which the mask was mirrored in another way than the picture.
        num_examples_apart: examples with such reads.
        why_not: what went wrong.
    """

    where: str | None
    dataset: str
    num_pairs: int = 0
    num_apart: int = 0
    num_examples_apart: int = 0
    why_not: str = ""


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
        moved_by_place: that of the outputs of a batch in reverse order; 0 if the model draws
            random numbers.
        table: the name of a table of positions, if the model has one and attention.
        moved_by_order: the largest change of an output if the positions of all inputs are reversed,
            in standard deviations; None if that was not tried.
        why_not: why that is unknown.
        num_without_statistics: its BatchNorm layers without running statistics.
        batch_second: a layer of it whose second dimension is the batch; None if it has none.
    """

    built: str
    where: str | None
    num_examples: int = 0
    moved: float = 0.0
    moved_by_place: float = 0.0
    table: str | None = None
    moved_by_order: float | None = None
    why_not: str | None = None
    num_without_statistics: int = 0
    batch_second: str | None = None


@dataclass(kw_only=True)
class CopiesSeen:
    """A model of tokens whose targets were its input in all inspected calls, and a copy of it.

    Attributes:
        where: the line of the loss.
        num_equal: such calls.
        num_classes: that it distinguishes.
        num_distinct: distinct tokens that the copy received in another order.
        num_tokens: such tokens, without the most frequent one.
        num_copied: of these, how many were the class with the largest score in their place.
        is_causal: scores do not depend on later tokens.
        why_not: why that is unknown.
    """

    where: str | None
    built: str
    num_classes: int
    num_equal: int = 1
    num_tokens: int = 0
    num_distinct: int = 0
    num_copied: int = 0
    is_causal: bool = False
    why_not: str | None = None


@dataclass(kw_only=True)
class AheadSeen:
    """A model of tokens whose targets were its input shifted by one, and a copy of it.

    Attributes:
        where: the line of the loss, or of the first operation that mixes in later tokens.
        num_shifted: inspected calls with such targets.
        num_other: calls with other targets.
        influence: of the tokens after a place on its scores, over that of the tokens up to there:
            the smallest ratio of the compared places.
        num_tokens: tokens that the copy received in another order, without the most frequent one.
        num_copied: of these, how many were the class with the largest score one place before.
        operation: the first one that mixes in later tokens; None if it is unknown.
        why_not: why the influence is unknown.
    """

    where: str | None
    built: str
    num_shifted: int = 1
    num_other: int = 0
    influence: float = 0.0
    num_tokens: int = 0
    num_copied: int = 0
    operation: str | None = None
    why_not: str | None = None

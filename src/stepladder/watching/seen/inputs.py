"""What was seen of the inputs of models, and of what datasets store, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.watching.hooks.tensors import Spread


@dataclass(kw_only=True)
class EvaluatedInputsSeen:
    """Inputs of a model in an evaluation: of a loader, or at a line of the script.

    Attributes:
        where: the line of the first evaluation.
        num_rows: examples that were measured.
    """

    where: str | None
    num_rows: int = 0
    spreads: list[Spread] = field(default_factory=list)


@dataclass(kw_only=True)
class ShiftSeen:
    """Inputs of a model that learns, in training and in evaluations with held-out examples.

    Attributes:
        num_rows: examples that were measured in training.
        is_picture: inputs have four dimensions.
    """

    built: str
    num_rows: int = 0
    is_picture: bool = False
    spreads: list[Spread] = field(default_factory=list)
    evaluated: list[EvaluatedInputsSeen] = field(default_factory=list)


@dataclass(kw_only=True)
class PixelsSeen:
    """Correlations of neighbouring values in images with three channels, by inspected batch.

    Attributes:
        size: height and width.
        downs: of values below each other.
        pixel_rights, pixel_downs: beside and below each other, if the values are read in the order
            (height, width, channels).
        withins, betweens: across the ends of the images' rows, where these are within a row of
            pixels in that order, and where they are between two.
    """

    built: str
    where: str | None
    size: tuple[int, int] = (0, 0)
    num_values: int = 0
    downs: list[float] = field(default_factory=list)
    pixel_rights: list[float] = field(default_factory=list)
    pixel_downs: list[float] = field(default_factory=list)
    withins: list[float] = field(default_factory=list)
    betweens: list[float] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class OwnScaleSeen:
    """Held-out inputs whose columns are exactly scaled, and a statement that scales held-out data.

    Attributes:
        where: the statement, which fits the scale to the data that it scales.
        code: its text.
        evaluated_at: the line of the evaluation.
        is_range: each column is in [0, 1] or [-1, 1] and has both ends, instead of mean 0 and
            standard deviation 1.
    """

    where: str
    code: str
    evaluated_at: str | None
    num_rows: int
    num_columns: int
    is_range: bool


@dataclass(kw_only=True)
class StoredSeen:
    """Examples that a dataset stores in memory, before and after it returned them.

    Attributes:
        dataset: its class.
        attribute: where it stores them.
        where: the first line of its `__getitem__`.
        num_looked: examples that were compared after the first whole pass.
        num_changed: of these, those that were different afterwards, but resemble what they were.
        first_std, last_std: standard deviation of the values of the first and last compared ones.
    """

    dataset: str
    attribute: str
    where: str | None
    num_looked: int = 0
    num_changed: int = 0
    first_std: float = 0.0
    last_std: float = 0.0


@dataclass(kw_only=True)
class SeedingSeen:
    """A line that seeds a generator while a dataset returns examples.

    Attributes:
        function: such as `np.random.seed`.
        loader: the one whose examples were fetched; -1 if that is unknown.
        values: the first different seeds.
        num_used: of the first calls, those after which random numbers were drawn.
    """

    function: str
    where: str | None
    loader: int
    values: list[int] = field(default_factory=list)
    num_calls: int = 0
    num_used: int = 0


class Misread(StrEnum):
    """How padding is read as if it were data.

    MASK: a key padding mask is True at the real tokens. ATTENDED: a mask of
    scaled_dot_product_attention is True at the padding. ADDED: a mask that is added to scores hides
    the real tokens. SCORES: the scores that a softmax receives hide them. LAST: the output of a
    recurrent layer is read at the last place, which is padding.
    """

    MASK = "mask"
    ATTENDED = "attended"
    ADDED = "added"
    SCORES = "scores"
    LAST = "last"


@dataclass(kw_only=True)
class PaddingSeen:
    """Padding at the inputs of attention or of a recurrent layer.

    Attributes:
        layer: its class.
        misread: None if it is not read as data.
        num_looked: inspected batches.
        num_misread: of these, those in which it is.
        num_real, num_padded: places with and without data in the last of these.
        num_rows, num_ended: rows in it, and those that end in padding.
        padding: the id of the padding, if it is known.
        axes: what brings a table of (rows, places) to the shape of the mask or the scores.
    """

    layer: str
    where: str | None
    misread: Misread | None = None
    num_looked: int = 0
    num_misread: int = 0
    num_real: int = 0
    num_padded: int = 0
    num_rows: int = 0
    num_ended: int = 0
    padding: int | None = None
    axes: str = ""


@dataclass(kw_only=True)
class PackedEndSeen:
    """A line that pads the output of a recurrent layer again.

    Attributes:
        num_rows, num_short: sequences, and those that are shorter than the longest of their batch.
        num_steps: losses that depend on the last place of such an output.
    """

    where: str | None
    num_rows: int = 0
    num_short: int = 0
    num_steps: int = 0

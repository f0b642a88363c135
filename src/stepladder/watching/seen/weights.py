"""What was seen of weights as such: loaded, rounded, cut off or frozen. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, kw_only=True)
class FitSeen:
    """Names that would fit a model if they were changed in one way.

    Attributes:
        drop, put: the beginning of each name, and what the model has instead; may be empty.
        entry: the entry of what was given that has these names; empty if that is not nested.
        num: weights of the model that would be loaded, with the same shape.
    """

    drop: str
    put: str
    entry: str
    num: int


class LoadKind(StrEnum):
    """How loading came to load nothing, or hardly anything.

    NAMES: no name of what was given is one of the model's.
    FEW: hardly any is.
    EMPTY: nothing was given, such as after a filter.
    OWN: the model was given its own weights, such as after an update with nothing.
    UNUSED: a file was read, but its weights are in no model.
    """

    NAMES = "names"
    FEW = "few"
    EMPTY = "empty"
    OWN = "own"
    UNUSED = "unused"


@dataclass(kw_only=True)
class LoadSeen:
    """Weights that were meant for a model, and that it does not have when training begins.

    Attributes:
        where: the line that called `load_state_dict`, or that read the file.
        model: its class.
        num_given: entries of the state dict.
        num_own, num_loaded: weights of the model, and those that were loaded.
        given, own: a name of each.
        fit: how the names would fit; None if no way is known.
        shapes: a name that both have, with two shapes, if that is why none was loaded.
    """

    where: str | None
    model: str
    kind: LoadKind
    num_given: int
    num_own: int
    num_loaded: int = 0
    given: str = ""
    own: str = ""
    fit: FitSeen | None = None
    shapes: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class MisnamedSeen:
    """An attribute that is False and does not freeze what has it, of weights that are trained.

    Attributes:
        name: of the weight or the module.
        attribute: such as "require_grad".
        is_module: a module has it, not a weight.
        num_weights: that it was meant to freeze.
    """

    name: str
    attribute: str
    is_module: bool
    num_weights: int


@dataclass(kw_only=True)
class RoundingSeen:
    """Weights with few bits, of which some were compared before and after the steps of one.

    Attributes:
        dtype: such as "bfloat16".
        num_looks: steps that were compared; without those at a learning rate of 0.
        first_step, last_step: the first and the last of them.
        num_values: values other than 0 that had a gradient at some of these steps.
        num_still: of these, those that did not change at any of them, nor in between.
        rate: the largest learning rate.
    """

    dtype: str
    num_looks: int = 0
    first_step: int = 0
    last_step: int = 0
    num_values: int = 0
    num_still: int = 0
    rate: float = 0.0


@dataclass(frozen=True, kw_only=True)
class CauseSeen:
    """Why a weight of an optimizer has no gradient.

    Attributes:
        kind: "cut": the loss depends on it, but an operation has cut the graph in between;
            "uncalled": its layer is not called; "replaced": it is of no model that is called, and
            one of its shape is trained instead, but in no optimizer; "late": a backward after the
            step computes its gradient, which is cleared before the next step; "cleared": so does
            one before the step.
        operation, where: for "cut": the operation and its line; otherwise the line of the backward.
        model: for "replaced": the class of the model that is trained.
        cleared_at: the line that clears the gradient; None if it is unknown.
    """

    kind: str
    operation: str = ""
    where: str | None = None
    model: str = ""
    cleared_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class WithoutSeen:
    """Weights of an optimizer that never had a gradient, for one reason."""

    cause: CauseSeen
    names: tuple[str, ...]


@dataclass(kw_only=True)
class FrozenNormSeen:
    """BatchNorm layers in training mode whose own weights and those before them are frozen.

    Attributes:
        model: the class of the outermost module that has them.
        name: the part of it that is frozen.
        where: the line that calls the first of them.
        num_layers: of such layers.
        num_looks: inspected steps at which that was so.
        first_step, last_step: the first and the last of these.
        was_fresh: the statistics were initial ones when it was first seen.
        shift: how far a mean moved in between, in standard deviations: the median over channels.
    """

    model: str
    name: str
    where: str | None
    num_layers: int = 1
    num_looks: int = 0
    first_step: int = 0
    last_step: int = 0
    was_fresh: bool = False
    shift: float = 0.0


@dataclass(kw_only=True)
class RepeatedSeen:
    """A layer that a container lists several times.

    Attributes:
        model: the class of the outermost module that has the container.
        container: its class and name.
        layer: its class.
        num, num_weights: how often it is listed, and the numbers in its weights.
        where: the line that made the container.
        num_steps: followed steps in which it was called so often in a row, each time on what was
            computed from its own output.
    """

    model: str
    container: str
    layer: str
    num: int
    num_weights: int
    where: str | None
    num_steps: int = 0

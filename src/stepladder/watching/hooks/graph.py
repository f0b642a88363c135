"""Read an autograd graph before it is used: which losses, with which factors, and their inputs.

Only nodes are inspected, and few of their saved values: the factors of a loss, if on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from stepladder.watching.hooks.tensors import is_plain, part

_LOSSES: Final = {
    "NllLossBackward": "cross_entropy",
    "NllLoss2DBackward": "cross_entropy",
    "MseLossBackward": "mse_loss",
    "SmoothL1LossBackward": "smooth_l1_loss",
    "HuberLossBackward": "huber_loss",
    "BinaryCrossEntropyBackward": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward": "binary_cross_entropy_with_logits",
}
_LIKE_LOSSES: Final = {"PowBackward": "a square", "AbsBackward": "an absolute value"}
_REDUCTIONS: Final = {0: "none", 1: "mean", 2: "sum"}
_SHAPES: Final = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select",
    "Slice", "Permute", "Transpose", "T", "Expand", "Alias", "ToCopy", "Clone", "Index",
    "Flatten", "Unbind", "Split", "MaskedSelect", "As", "Strided",
})  # fmt: skip
_NEAR: Final = frozenset({"Clamp", "ClampMin", "ClampMax", "Add", "Mul", "Log"})
_SOFT: Final = 1.5  # a larger factor is soft capping of scores, not probabilities
_ARITHMETIC: Final = frozenset({
    "Mean", "Sum", "Pow", "Mul", "Div", "Abs", "Add", "Neg", "Sqrt", "Exp", "Log", "Log1P",
    "Cosh", "Tanh", "Softplus", "Clamp", "ClampMin", "ClampMax", "Sub", "Rsub", "Maximum",
    "Minimum", "Where",
})  # fmt: skip
LIKELIHOOD: Final = "a log-likelihood"  # computed by the script, which picks it by class
_PICKS: Final = frozenset({"Index", "Gather"})
_MAX_TERMS = 16
_MAX_NODES = 200
_MAX_WALK = 40  # nodes of a loss that a script computes itself


@dataclass(frozen=True, kw_only=True)
class Term:
    """A loss within the value that backward is called on.

    Attributes:
        kind: such as cross_entropy; `other` if it is unknown.
        factor: what it is multiplied by; None if unknown.
        sign: 1 or -1, known even if it is divided by tensors; 0 if unknown.
        reduction: mean, sum or none, by the loss itself or by a sum or mean of it.
        shape: of the scores that the loss received, or of the square.
    """

    kind: str
    factor: float | None
    sign: int
    reduction: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Path:
    """The path from the value down to a node."""

    node: Any
    factor: float | None = 1.0
    sign: int = 1
    reduction: str = ""

    def to(self, node: Any, by: float | None = 1.0, sign: int | None = None) -> _Path:
        """Go down to a node, through a multiplication."""
        known = (0 if by is None else (by > 0) - (by < 0)) if sign is None else sign
        factor = None if self.factor is None or by is None else self.factor * by
        return replace(self, node=node, factor=factor, sign=self.sign * known)


def kind_of(node: Any) -> str:
    """Return the operation of a node, such as `Softmax` for SoftmaxBackward0."""
    return str(node.name()).rpartition("::")[2].partition("Backward")[0]


def shape_of(node: Any, idx: int = 0) -> tuple[int, ...]:
    """Return the shape of a node's output, or () if unknown."""
    try:
        return tuple(int(size) for size in node._input_metadata[idx].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return ()


def terms(root: Any) -> list[Term]:
    """Return the losses that a value is composed of, each with its factor."""
    found: list[Term] = []
    stack = [_Path(root)]
    visits = 0
    while stack and len(found) < _MAX_TERMS and visits < _MAX_NODES:
        path = stack.pop()
        visits += 1
        if path.node is None:
            continue
        term = _term(path)
        below = [] if term is not None else list(_below(path))
        stack.extend(below)
        if term is not None or not below:
            found.append(term or _named(path, "other", path.reduction, shape_of(path.node)))
    return found


def _named(path: _Path, kind: str, reduction: str, shape: tuple[int, ...]) -> Term:
    return Term(
        kind=kind, factor=path.factor, sign=path.sign, reduction=reduction or "none", shape=shape
    )


def _term(path: _Path) -> Term | None:
    """Return the loss that a node computes; None if it is not a loss."""
    node, kind = path.node, f"{kind_of(path.node)}Backward"
    if kind in _LOSSES:
        own = _REDUCTIONS.get(int(getattr(node, "_saved_reduction", 1)), "mean")
        before = node.next_functions[0][0]
        shape = shape_of(before) if before is not None else ()
        return _named(path, _LOSSES[kind], own if own != "none" else path.reduction, shape)
    if kind in _LIKE_LOSSES:
        is_even = kind == "AbsBackward" or getattr(node, "_saved_exponent", 1) in (2, 4)
        name = _LIKE_LOSSES[kind] if is_even else "other"
        return _named(path, name, path.reduction, shape_of(node))
    if _is_picked(node) and _is_by_example(shape_of(node)):
        return replace(_named(path, LIKELIHOOD, path.reduction, shape_of(node)), sign=0)
    return None


def _below(path: _Path) -> Iterator[_Path]:
    """Yield the inputs of an arithmetic node; nothing for other nodes."""
    node, kind = path.node, kind_of(path.node)
    inputs = [parent for parent, _ in node.next_functions]
    if kind in ("Neg", "Rsub"):
        yield path.to(inputs[0], -1.0)
    elif kind in ("Mul", "Div"):
        others = [parent for parent in inputs if parent is not None]
        if len(others) == 1:
            by = scale_of(node, kind)
            yield path.to(others[0], by, None if by is not None else _common_sign(node))
        elif kind == "Div" and others:
            yield path.to(inputs[0], None, _common_sign(node))
    elif kind in ("Add", "Sub"):
        alpha = _number(getattr(node, "_saved_alpha", 1.0))
        second = (alpha if alpha is not None else 1.0) * (-1.0 if kind == "Sub" else 1.0)
        for parent, by in zip(inputs, (1.0, second), strict=False):
            if parent is not None:
                yield path.to(parent, by)
    elif kind in ("Mean", "Sum"):
        is_whole = math.prod(shape_of(node)) <= 1
        reduction = path.reduction or (kind.lower() if is_whole else "")
        yield replace(path.to(inputs[0]), reduction=reduction)
    elif kind in _SHAPES:
        yield path.to(inputs[0])


def _common_sign(node: Any) -> int:
    """Return the common sign of all values of a product's or quotient's other operand, or 0."""
    other: Any = getattr(node, "_saved_other", None)
    if not is_plain(other) or other.device.type != "cpu" or not other.numel():
        return 0
    numbers = part(other, 4096)
    return int(bool((numbers > 0).all())) - int(bool((numbers < 0).all()))


@dataclass(frozen=True)
class Activation:
    """The softmax or sigmoid that scores come from.

    Attributes:
        kind: Softmax, LogSoftmax, Sigmoid or LogSigmoid.
        dim: of a softmax; None if unknown, or for other kinds.
        shape: of its output.
        has_log: it is followed by a logarithm.
        inner: the kind of activation before a LogSoftmax, or None.
        is_bare: only changes of shape and that logarithm follow it.
    """

    kind: str
    dim: int | None
    shape: tuple[int, ...]
    has_log: bool = False
    inner: str | None = None
    is_bare: bool = True


def activation_before(node: Any) -> Activation | None:
    """Find the activation that scores come from, through changes of shape and small ones of value.

    Returns:
        None if something else comes first, such as a factor that makes scores of probabilities.
    """
    has_log, is_bare = False, True
    for _ in range(12):
        if node is None:
            return None
        kind = kind_of(node)
        if kind in ("Softmax", "LogSoftmax", "Sigmoid", "LogSigmoid"):
            shape = shape_of(node)
            dim = _dim(getattr(node, "_saved_dim", None), len(shape))
            before = node.next_functions[0][0] if kind == "LogSoftmax" else None
            inner = activation_before(before) if before is not None else None
            twice = inner.kind if inner is not None and not inner.has_log else None
            return Activation(kind, dim, shape, has_log, twice, is_bare)
        if kind not in _SHAPES and kind not in _NEAR:
            return None
        if kind == "Mul":
            factor = _number(getattr(node, "_saved_other", None))
            if factor is None or abs(factor) > _SOFT:
                return None
        has_log = has_log or kind == "Log"
        is_bare = is_bare and (kind in _SHAPES or kind == "Log")
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if len(parents) != 1:
            return None
        node = parents[0]
    return None


def broadcast_difference(root: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Find a difference of two vectors that broadcasting has turned into a square matrix.

    Returns:
        The shapes of the prediction and of the difference, or None.
    """
    for node in walk(root):
        shape = shape_of(node)
        if kind_of(node) not in ("Sub", "Rsub") or len(shape) != 2 or not shape[0] == shape[1] > 1:
            continue
        known = _parents(node)
        before = shape_of(known[0]) if len(known) == 1 else ()
        if before and math.prod(before) == shape[0]:
            return before, shape
    return None


@dataclass(frozen=True)
class Picked:
    """Log-probabilities of which one per example is picked, as by its label.

    Attributes:
        activation: the softmax that they come from.
        labels: the indices along the classes, as stored in the graph.
    """

    activation: Activation
    labels: torch.Tensor


def picked(root: Any) -> Picked | None:
    """Find the labels of a cross entropy that a script computes itself."""
    return next((found for node in walk(root) if (found := _picked(node)) is not None), None)


def _picked(node: Any) -> Picked | None:
    kind = kind_of(node)
    if kind not in _PICKS:
        return None
    before = node.next_functions[0][0]
    one = activation_before(before) if before is not None else None
    if one is None or not one.is_bare or not (one.kind == "LogSoftmax" or one.has_log):
        return None
    dim = len(shape_of(before)) - 1
    if one.dim != len(one.shape) - 1 or shape_of(before)[dim:] != one.shape[-1:]:
        return None  # along another dimension, or permuted: the class dimension is unknown
    if kind == "Gather":
        is_along = _dim(getattr(node, "_saved_dim", None), dim + 1) == dim
        labels: Any = getattr(node, "_saved_index", None) if is_along else None
    else:
        places = list(getattr(node, "_saved_indices", ()))
        labels = places[dim] if len(places) > dim else None
    is_whole = is_plain(labels) and not labels.is_floating_point() and labels.dtype != torch.bool
    return Picked(one, labels) if is_whole else None


def _is_picked(node: Any) -> bool:
    """Return whether it is a picked log-probability, or a product of those, as in a focal loss.

    A product with something else, such as an advantage, is not.
    """
    if kind_of(node) != "Mul" or len(_parents(node)) < 2:
        return _picked(node) is not None
    ends = [one for one in walk(node) if not _is_arithmetic(one) or kind_of(one) in _PICKS]
    return bool(ends) and all(_picked(one) is not None for one in ends)


def _is_by_example(shape: tuple[int, ...]) -> bool:
    """Return whether it is one number for each of several examples."""
    return len(shape) in (1, 2) and shape[0] == math.prod(shape) > 1


def walk(root: Any) -> Iterator[Any]:
    """Yield the nodes of a loss, down to and including the first that are not arithmetic."""
    stack, known = [root], set[Any]()
    while stack and len(known) < _MAX_WALK:
        node = stack.pop()
        if node is None or node in known:
            continue
        known.add(node)
        yield node
        if _is_arithmetic(node) and _picked(node) is None:
            stack.extend(_parents(node))


def reshaped(node: Any) -> Any:
    """Return the first node, from here towards the inputs, that does more than change a shape."""
    for _ in range(12):
        if node is None or kind_of(node) not in _SHAPES or kind_of(node) == "Index":
            return node
        parents = _parents(node)
        if len(parents) != 1:
            return None
        node = parents[0]
    return None


def _is_arithmetic(node: Any) -> bool:
    kind = kind_of(node)
    return kind in _ARITHMETIC or kind in _SHAPES


def _parents(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]


def scale_of(node: Any, kind: str) -> float | None:
    """Return the constant factor of a product or quotient with a number; None if unknown."""
    by = _number(getattr(node, "_saved_other", None))
    if by is None or kind == "Mul":
        return by
    return 1 / by if by else None


def _number(value: object) -> float | None:
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and value.device.type == "cpu":
        return float(value.detach())
    return None


def _dim(value: object, num_dims: int) -> int | None:
    """Read a saved dim, which torch returns as an unsigned number."""
    if not isinstance(value, int):
        return None
    signed = value - 2**64 if value >= 2**63 else value
    return signed % num_dims if num_dims else signed


def num_nodes(root: Any, most: int = 5000) -> int:
    """Return the number of nodes of a graph, counted up to a limit."""
    stack, known = [root], {root}
    while stack and len(known) < most:
        for parent, _ in stack.pop().next_functions:
            if parent is not None and parent not in known:
                known.add(parent)
                stack.append(parent)
    return len(known)

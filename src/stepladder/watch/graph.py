"""Reads an autograd graph before it is used: which losses, with which factor, and what before them.

Only nodes are looked at, and of their saved values few: what a loss is multiplied by, on the host.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from stepladder.watch.tensors import is_plain, part

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
_SHAPES: Final = frozenset(
    [
        "View",
        "UnsafeView",
        "Reshape",
        "ReshapeAlias",
        "Squeeze",
        "Unsqueeze",
        "Select",
        "Slice",
        "Permute",
        "Transpose",
        "T",
        "Expand",
        "Alias",
        "ToCopy",
        "Clone",
        "Index",
        "Flatten",
        "Unbind",
        "Split",
        "MaskedSelect",
        "As",
        "Strided",
    ]
)
_NEAR: Final = frozenset({"Clamp", "ClampMin", "ClampMax", "Add", "Mul", "Log"})
_SOFT: Final = 1.5  # scores that are stretched by more are capped softly, not made probabilities
_ARITHMETIC: Final = frozenset(
    [
        "Mean",
        "Sum",
        "Pow",
        "Mul",
        "Div",
        "Abs",
        "Add",
        "Neg",
        "Sqrt",
        "Exp",
        "Log",
        "Log1P",
        "Cosh",
        "Tanh",
        "Softplus",
        "Clamp",
        "ClampMin",
        "ClampMax",
    ]
)
_MAX_TERMS = 16
_MAX_NODES = 200


@dataclass(frozen=True, kw_only=True)
class Term:
    """A loss within the number that backward is called on.

    Attributes:
        kind: such as cross_entropy; `other` where the walk ends before it knows.
        factor: what it is multiplied by; None: not known.
        sign: 1 or -1 as it enters, known also where it is divided by tensors; 0: not known.
        reduction: mean, sum or none, by the loss itself or by a sum or mean above it.
        shape: of the scores that the loss was given, or of the square.
    """

    kind: str
    factor: float | None
    sign: int
    reduction: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Path:
    """The way from the number down to a node."""

    node: Any
    factor: float | None = 1.0
    sign: int = 1
    reduction: str = ""

    def to(self, node: Any, by: float | None = 1.0, sign: int | None = None) -> _Path:
        """Go one node down, past a multiplication."""
        known = (0 if by is None else (by > 0) - (by < 0)) if sign is None else sign
        factor = None if self.factor is None or by is None else self.factor * by
        return replace(self, node=node, factor=factor, sign=self.sign * known)


def kind_of(node: Any) -> str:
    """Give a node's operation, as `Softmax` of SoftmaxBackward0."""
    return str(node.name()).rpartition("::")[2].partition("Backward")[0]


def shape_of(node: Any, idx: int = 0) -> tuple[int, ...]:
    """Give the shape of a node's output, or () where torch does not say."""
    try:
        return tuple(int(size) for size in node._input_metadata[idx].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return ()


def terms(root: Any) -> list[Term]:
    """List the losses that a number is made of, each with the factor that it enters with."""
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
    """Give the loss that a node is; None: it is none."""
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
    return None


def _below(path: _Path) -> Iterator[_Path]:
    """Yield what a node of plain arithmetic is made of; nothing where it is none."""
    node, kind = path.node, kind_of(path.node)
    inputs = [parent for parent, _ in node.next_functions]
    if kind in ("Neg", "Rsub"):
        yield path.to(inputs[0], -1.0)
    elif kind in ("Mul", "Div"):
        others = [parent for parent in inputs if parent is not None]
        if len(others) == 1:
            by = _scale(node, kind)
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
    """Give the sign that all numbers of a product's or quotient's other side share, or 0."""
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
        dim: over which a softmax runs; None: torch does not say, or it is none.
        shape: of its output.
        has_log: a logarithm is taken after it.
        inner: the kind that comes before a LogSoftmax in turn; None: none does.
    """

    kind: str
    dim: int | None
    shape: tuple[int, ...]
    has_log: bool = False
    inner: str | None = None


def activation_before(node: Any) -> Activation | None:
    """Find the activation that scores come from, through changes of shape and small ones of size.

    Returns:
        None: something else comes first, such as a factor that makes scores of probabilities.
    """
    has_log = False
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
            return Activation(kind, dim, shape, has_log, twice)
        if kind not in _SHAPES and kind not in _NEAR:
            return None
        if kind == "Mul":
            factor = _number(getattr(node, "_saved_other", None))
            if factor is None or abs(factor) > _SOFT:
                return None
        has_log = has_log or kind == "Log"
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if len(parents) != 1:
            return None
        node = parents[0]
    return None


def broadcast_difference(root: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Find a difference of two vectors that broadcasting has made a square.

    Returns:
        The shape of the prediction and that of the difference; None: there is none.
    """
    node = root
    for _ in range(12):
        if node is None:
            return None
        kind, shape = kind_of(node), shape_of(node)
        known = [parent for parent, _ in node.next_functions if parent is not None]
        if kind in ("Sub", "Rsub") and len(shape) == 2 and shape[0] == shape[1] > 1:
            before = shape_of(known[0]) if len(known) == 1 else ()
            is_column = bool(before) and math.prod(before) == shape[0]
            return (before, shape) if is_column else None
        if kind not in _ARITHMETIC and kind not in _SHAPES:
            return None
        if not known or len({id(parent) for parent in known}) > 1:
            return None
        node = known[0]
    return None


def _scale(node: Any, kind: str) -> float | None:
    """Read the number that a product or quotient of one loss is taken with."""
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
    """Read a saved dim, which torch gives as an unsigned number."""
    if not isinstance(value, int):
        return None
    signed = value - 2**64 if value >= 2**63 else value
    return signed % num_dims if num_dims else signed

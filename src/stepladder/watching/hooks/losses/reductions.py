"""Find, in an autograd graph, a sum over a whole batch that is added to a mean over it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from stepladder.watching.hooks.graph import kind_of, scale_of, shape_of
from stepladder.watching.hooks.tensors import is_plain, part
from stepladder.watching.seen.losses import SummedTermSeen

_MAX_NODES: Final = 80
_MAX_VALUES: Final = 4096
_MIN_BATCH: Final = 8
_SUMS: Final = frozenset({"Add", "Sub", "Rsub", "Neg"})
_LOSSES: Final = frozenset({
    "NllLoss", "NllLoss2D", "MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
})  # fmt: skip
_MEAN_OF_LOSS, _SUM_OF_LOSS = 1, 2
_KEPT: Final = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "ToCopy", "Split",
    "SplitWithSizes", "Slice", "Select", "Alias",
})  # fmt: skip
_ELEMENTWISE: Final = _KEPT | _SUMS | frozenset({
    "Pow", "Abs", "Exp", "Expm1", "Log", "Log1P", "Sqrt", "Square", "Clamp", "ClampMin", "ClampMax",
    "Relu", "LeakyRelu", "Elu", "Gelu", "Silu", "Tanh", "Sigmoid", "Softplus", "NativeDropout",
    "Mean", "Sum",
})  # fmt: skip
_LAYERS: Final = frozenset({
    "Addmm", "Convolution", "NativeLayerNorm", "NativeBatchNorm", "CudnnBatchNorm", "Embedding",
})  # fmt: skip


class _Terms:
    """The terms of a loss that are means over a batch, and those that are sums over it."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.means: list[tuple[float, tuple[int, ...]]] = []
        self.sums: list[tuple[float, tuple[int, ...]]] = []

    def is_by_example(self, shape: tuple[int, ...]) -> bool:
        return bool(shape) and shape[0] == self.num

    def follow(self, root: Any) -> None:
        """Collect the terms of a single number."""
        left, num = [(root, 1.0)], 0
        while left and num < _MAX_NODES:
            node, by = left.pop()
            num += 1
            if node is None or math.prod(shape_of(node)) != 1:
                continue
            kind, inputs = kind_of(node), _inputs(node)
            if kind in _LOSSES and inputs:
                self._note_loss(node, by, shape_of(inputs[0]))
            elif kind in ("Mean", "Sum") and inputs:
                left += self._reduced(kind, inputs[0], by)
            elif kind in _SUMS or kind in _KEPT:
                left += [(one, by) for one in inputs]
            elif kind in ("Mul", "Div") and len(inputs) == 1:
                scale = scale_of(node, kind)
                left += [(inputs[0], by * scale)] if scale is not None else []

    def _note_loss(self, node: Any, by: float, shape: tuple[int, ...]) -> None:
        reduction = int(getattr(node, "_saved_reduction", 0))
        if not shape or shape[0] % self.num:
            return
        if reduction == _MEAN_OF_LOSS:
            self.means.append((by, shape))
        elif reduction == _SUM_OF_LOSS and shape[0] == self.num:
            self.sums.append((by, shape))

    def _reduced(self, kind: str, below: Any, by: float) -> list[tuple[Any, float]]:
        """Note a mean or a sum over everything; return numbers that are added to each value."""
        shape = shape_of(below)
        if math.prod(shape) == 1:
            return [(below, by)]
        if not self.is_by_example(shape):
            return []
        if kind == "Sum":
            if self._is_of_layers(below):
                self.sums.append((by, shape))
            return []
        scalars: list[tuple[Any, float]] = []
        for one, scale in _added(below, by):
            if math.prod(shape_of(one)) == 1:
                scalars.append((one, scale))
            else:
                self.means.append((scale, shape))
        return scalars

    def _is_of_layers(self, root: Any) -> bool:
        """Return whether values are computed for each example by itself, from outputs of layers.

        Not from weights alone, of pairs of examples, or with factors that differ by example.
        """
        left, known = [root], set[Any]()
        ends = 0
        while left:
            node = left.pop()
            if node in known:
                continue
            known.add(node)
            kind, inputs = kind_of(node), _inputs(node)
            if len(known) > _MAX_NODES or not self.is_by_example(shape_of(node)):
                return False
            if kind in ("Mean", "Sum") and _is_over_first(node):
                return False
            if kind in _LAYERS or (kind == "Mm" and any(map(_is_weight, inputs))):
                ends += 1
            elif kind in _ELEMENTWISE or (kind in ("Mul", "Div") and _is_free(node, kind)):
                left += inputs
            else:
                return False
        return ends > 0


def summed_term(root: Any, num: int | None) -> SummedTermSeen | None:
    """Find a sum over all examples of a batch that is added to a mean over them.

    Args:
        root: the node of the loss.
        num: examples of the batch; None if unknown.
    """
    if num is None or num < _MIN_BATCH:
        return None
    terms = _Terms(num)
    terms.follow(root)
    if not terms.sums or not terms.means:
        return None
    by, shape = max(terms.sums, key=lambda one: abs(one[0]))
    return SummedTermSeen(
        num=num,
        shape=shape,
        factor=abs(by),
        mean_factor=max(abs(one) for one, _ in terms.means),
    )


def _added(root: Any, by: float) -> Iterator[tuple[Any, float]]:
    """Yield the terms of a sum of values, each with its factor."""
    left, num = [(root, by)], 0
    while left and num < _MAX_NODES:
        node, scale = left.pop()
        num += 1
        kind, inputs = kind_of(node), _inputs(node)
        if math.prod(shape_of(node)) == 1:
            yield node, scale
        elif kind in _SUMS:
            left += [(one, scale) for one in inputs]
        elif kind in ("Mul", "Div") and len(inputs) == 1:
            factor = scale_of(node, kind)
            factor = _mean_factor(node, kind) if factor is None else factor
            if factor is not None:
                left.append((inputs[0], scale * factor))
        else:
            yield node, scale


def _mean_factor(node: Any, kind: str) -> float | None:
    """Return the mean of the factors of a product with a constant tensor; None if unknown."""
    other: Any = getattr(node, "_saved_other", None)
    if kind != "Mul" or not is_plain(other) or other.device.type != "cpu" or not other.numel():
        return None
    return float(part(other, _MAX_VALUES).float().mean())


def _is_over_first(node: Any) -> bool:
    """Return whether a mean or a sum is over the first dimension."""
    inputs = _inputs(node)
    num_dims = len(shape_of(inputs[0])) if inputs else 0
    dims = getattr(node, "_saved_dim", ())
    signed = (dim - 2**64 if dim >= 2**63 else dim for dim in dims)
    return not num_dims or any(dim % num_dims == 0 for dim in signed)


def _is_free(node: Any, kind: str) -> bool:
    """Return whether a product or quotient has no factors that differ by example, as of a mask."""
    parents = [parent for parent, _ in node.next_functions]
    if None not in parents or scale_of(node, kind) is not None:
        return True
    saved: Any = getattr(node, "_saved_other" if parents[0] is not None else "_saved_self", None)
    if not is_plain(saved) or saved.numel() > _MAX_VALUES:
        return False
    if saved.numel() == 1 or saved.dim() < len(shape_of(node)):
        return True
    return saved.device.type == "cpu" and bool((saved == saved[:1]).all())


def _is_weight(node: Any) -> bool:
    """Return whether a node is a weight, perhaps transposed."""
    while kind_of(node) in ("T", "Transpose") and _inputs(node):
        node = _inputs(node)[0]
    return kind_of(node) == "AccumulateGrad"


def _inputs(node: Any) -> list[Any]:
    return [parent for parent, _ in node.next_functions if parent is not None]

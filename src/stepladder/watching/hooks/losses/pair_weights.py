"""Find weights in the graph of a loss that broadcasting has multiplied with all examples."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.graph import kind_of, scale_of, shape_of
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.steps import PairWeightSeen

_LINEAR: Final = frozenset({"Mean", "Sum", "Neg", "Add", "Sub", "Rsub", "ToCopy"})
_PRODUCTS: Final = frozenset({"Mul", "Div"})
_CHOICES: Final = frozenset({"Minimum", "Maximum"})
_EXPLICIT: Final = frozenset({"Unsqueeze", "Index", "Slice", "Expand"})  # pairs on purpose
_MAX_NODES: Final = 60
_MIN_EXAMPLES: Final = 4
_MAX_PART: Final = 64  # rows and columns whose values are read
_EXACT: Final = 1e-5  # of the largest value


def pair_weights(root: Any) -> PairWeightSeen | None:
    """Find one number per example that is multiplied by the weights of all examples, and summed.

    Only sums, means and constant factors may follow: there, the sum over all pairs is a product
    of two sums, which no loss needs.
    """
    queue, known = deque([root]), set[Any]()
    while queue and len(known) < _MAX_NODES:  # level by level: a sum may have a term for each step
        node = queue.popleft()
        if node is None or node in known:
            continue
        known.add(node)
        kind, shape = kind_of(node), shape_of(node)
        parents = [parent for parent, _ in node.next_functions]
        if kind == "Mul" and _is_square(shape):
            found = _found(node, shape[0])
            if found is not None:
                return found
        is_factor = kind in _PRODUCTS and (not shape or scale_of(node, kind) is not None)
        if kind in _LINEAR or is_factor or _is_of_products(node):
            queue += parents
    return None


def _is_square(shape: tuple[int, ...]) -> bool:
    return len(shape) == 2 and shape[0] == shape[1] >= _MIN_EXAMPLES


def _is_of_products(node: Any) -> bool:
    """Return whether it is the smaller or larger one of two products, as in PPO."""
    parents = [parent for parent, _ in node.next_functions if parent is not None]
    is_choice = kind_of(node) in _CHOICES and len(parents) == 2
    return is_choice and all(kind_of(one) == "Mul" for one in parents)


def _found(node: Any, num: int) -> PairWeightSeen | None:
    """Return what a product of all pairs multiplies; None if it may be meant to."""
    names = ("_saved_self", "_saved_other")
    parents = [parent for parent, _ in node.next_functions]
    graphs = [parent for parent in parents if parent is not None]
    if len(parents) != 2 or any(kind_of(one) == "AccumulateGrad" for one in graphs):
        return None
    if len(graphs) == 2:
        return _both_learned([shape_of(one) for one in graphs], graphs, num)
    constant: Any = getattr(node, names[parents.index(None)], None) if None in parents else None
    if not graphs or not is_plain(constant):
        return None
    values, weights = shape_of(graphs[0]), tuple(constant.shape)
    is_matrix = weights == (num, num)
    if is_matrix:
        is_found = values in ((num,), (num, 1)) and _is_of_pairs(constant)
    else:
        is_vector = sorted([values, weights]) == [(num,), (num, 1)]
        is_found = is_vector and kind_of(graphs[0]) not in _EXPLICIT
    return PairWeightSeen(values=values, weights=weights, is_matrix=is_matrix) if is_found else None


def _both_learned(
    shapes: list[tuple[int, ...]], graphs: list[Any], num: int
) -> PairWeightSeen | None:
    """Return what a product of two outputs multiplies, unless the column was made on purpose."""
    column = next((one for one in graphs if len(shape_of(one)) == 2), None)
    is_meant = column is None or kind_of(column) in _EXPLICIT
    if is_meant or sorted(shapes) != [(num,), (num, 1)]:
        return None
    return PairWeightSeen(values=shapes[0], weights=shapes[1], is_matrix=False)


def _is_of_pairs(weights: Tensor) -> bool:
    """Return whether a matrix holds the differences, or sums, of all pairs of two vectors.

    Pairs of a vector with itself are left out: their sum over one side is a mean as a baseline.
    """
    if not weights.is_floating_point():
        return False
    some = weights.detach()[:_MAX_PART, :_MAX_PART].double()
    if not bool(torch.isfinite(some).all()):
        return False
    row, column = some[0] - some[0, 0], some[:, 0] - some[0, 0]
    least = 100 * _EXACT * float(some.abs().max())
    if min(float(row.abs().max()), float(column.abs().max())) <= least:
        return False  # the same for all examples of one side
    exact = _EXACT * float(some.abs().max()) * (1 if weights.dtype == torch.float32 else 300)
    if float((some - some[0, 0] - row - column[:, None]).abs().max()) > exact:
        return False
    return min(float((row - column).abs().max()), float((row + column).abs().max())) > least

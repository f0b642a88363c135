"""Find log-likelihoods in a graph whose softmax is over the batch, not over the classes."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor

from stepladder.watching.hooks.graph import Activation, kind_of, shape_of, walk
from stepladder.watching.hooks.tensors import is_plain

_SHAPES: Final = frozenset({"Squeeze", "Unsqueeze", "View", "UnsafeView", "Alias", "ToCopy"})
_NEAR: Final = frozenset({"Add", "Clamp", "ClampMin", "ClampMax", "Log"})
_PICKS: Final = frozenset({"Gather", "Index", "Mul"})
_MAX_DEPTH: Final = 10
_MAX_VALUES: Final = 65_536


def softmax_across(root: Any) -> Activation | None:
    """Find one log-probability for each row that a script picks from a softmax over the rows.

    Similarities are left out, as are square matrices: their rows and columns may be two views of
    the same examples. So are tables of parameters, whose rows are no examples.
    """
    for node in walk(root):
        if kind_of(node) == "Log":
            found = _below(node, has_log=True)
        elif kind_of(node) in _PICKS:
            found = _of_pick(node, has_log=False)
        else:
            continue
        if found is not None:
            return found
    return None


def _below(node: Any, *, has_log: bool) -> Activation | None:
    """Follow a logarithm down to what picks its values."""
    for _ in range(_MAX_DEPTH):
        kind = kind_of(node)
        if kind in _PICKS:
            return _of_pick(node, has_log=has_log)
        if kind == "Sum" and _dims_of(node) not in ([1], [-1]):
            return None  # of all rows
        if kind not in _SHAPES and kind not in _NEAR and kind != "Sum":
            return None
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if len(parents) != 1:
            return None
        node = parents[0]
    return None


def _of_pick(node: Any, *, has_log: bool) -> Activation | None:
    if not _is_by_row(node):
        return None
    before: Any = next((parent for parent, _ in node.next_functions if parent is not None), None)
    for _ in range(_MAX_DEPTH):
        if before is None:
            return None
        kind, shape = kind_of(before), shape_of(before)
        if kind in ("Softmax", "LogSoftmax"):
            is_log = has_log or kind == "LogSoftmax"
            is_over_rows = _signed(getattr(before, "_saved_dim", None)) in (0, -2)
            if len(shape) != 2 or shape[0] == shape[1] or min(shape) < 2:
                return None
            is_found = is_log and is_over_rows and _is_of_examples(before)
            return Activation(kind, 0, shape, has_log and kind == "Softmax") if is_found else None
        if kind == "Div":
            before = _normalised(before)
            continue
        if kind not in _NEAR and kind not in ("ToCopy", "Alias"):
            return None
        has_log = has_log or kind == "Log"
        parents = [parent for parent, _ in before.next_functions if parent is not None]
        before = parents[0] if len(parents) == 1 else None
    return None


def _is_of_examples(node: Any) -> bool:
    """Return whether the scores of a softmax are neither parameters nor similarities."""
    node = node.next_functions[0][0]
    for _ in range(_MAX_DEPTH):
        if node is None or kind_of(node) == "AccumulateGrad":
            return False
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if kind_of(node) in ("Mm", "Bmm"):
            return len(parents) < 2 or any(_is_weight(one) for one in parents)
        if kind_of(node) not in ("Mul", "Div", "Clamp", "ToCopy"):
            return True
        node = parents[0]
    return False


def _is_weight(node: Any) -> bool:
    while kind_of(node) in ("T", "Transpose", "ToCopy"):
        node = node.next_functions[0][0]
    return kind_of(node) == "AccumulateGrad"


def _normalised(node: Any) -> Any:
    """Return what is divided by its own sum, as in a Categorical; None if it is not."""
    parents = [parent for parent, _ in node.next_functions]
    if len(parents) != 2 or parents[0] is None or parents[1] is None:
        return None
    is_sum = kind_of(parents[1]) == "Sum" and parents[1].next_functions[0][0] is parents[0]
    return parents[0] if is_sum else None


def _is_by_row(node: Any) -> bool:
    """Return whether a node picks one value of each row of a matrix."""
    kind = kind_of(node)
    if kind == "Gather":
        index: Any = getattr(node, "_saved_index", None)
        dim = _signed(getattr(node, "_saved_dim", None))
        return isinstance(index, Tensor) and index.dim() == 2 and dim in (1, -1)
    if kind == "Index":
        places = list(getattr(node, "_saved_indices", ()))
        if len(places) != 2 or not all(is_plain(one) and one.dim() == 1 for one in places):
            return False
        rows, columns = places
        return _is_range(rows) and not _is_range(columns)
    masks = [getattr(node, name, None) for name in ("_saved_self", "_saved_other")]
    num_graphs = sum(parent is not None for parent, _ in node.next_functions)
    return num_graphs == 1 and any(_is_one_hot(mask) for mask in masks)


def _is_range(index: Tensor) -> bool:
    return 1 < len(index) <= _MAX_VALUES and index.tolist() == list(range(len(index)))


def _is_one_hot(mask: Any) -> bool:
    if not is_plain(mask) or mask.dim() != 2 or not 1 < mask.numel() <= _MAX_VALUES:
        return False
    is_binary = bool(((mask == 0) | (mask == 1)).all())
    return is_binary and bool((mask.sum(1) == 1).all()) and bool((mask.sum(0) != 1).any())


def _dims_of(node: Any) -> list[int]:
    dims: Any = getattr(node, "_saved_dim", ())
    return [_signed(one) for one in dims] if isinstance(dims, (tuple, list)) else []


def _signed(value: Any) -> int:
    """Read a saved dim, which torch returns as an unsigned number."""
    if not isinstance(value, int):
        return 99
    return value - 2**64 if value >= 2**63 else value

"""Find large matrices in a graph of which hardly any value counts, such as a graph's edges."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final, NamedTuple

from torch import Tensor

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.costs import MaskedSeen

_MIN_SIDE: Final = 256
_MIN_EMPTY: Final = 0.95
_MAX_NODES: Final = 5000
_MAX_LOOKS: Final = 16  # matrices whose values are read
_NUM_VALUES: Final = 20_000
_PER_VALUE: Final = 8  # products of a matrix multiplication that take as long as another operation
_SIZES: Final = ("_saved_self_sym_sizes", "_saved_mat1_sym_sizes")


class _Found(NamedTuple):
    """A matrix that is almost empty, of `size` values in all of its batch."""

    shape: tuple[int, int]
    empty: float
    size: int
    cost: float


def masked_scores(root: Any) -> MaskedSeen | None:
    """Return the largest scores of a softmax, or constant square matrix, that are almost empty.

    What belongs to scores are all results of at least half their size, and to matrices their
    products. Values are read that nodes have saved: not to be called if a script saves them in its
    own way.
    """
    costs: list[tuple[int, float]] = []
    found: dict[str, list[_Found]] = {"scores": [], "matrix": []}
    num_looks = 0
    for node in _nodes(root):
        size, cost = _cost(node)
        costs.append((size, cost))
        kind, value = _candidate(node, size) if num_looks < _MAX_LOOKS else ("", None)
        if value is None:
            continue
        num_looks += 1
        empty = _empty(value)
        if empty >= _MIN_EMPTY:
            shape = (int(value.shape[-2]), int(value.shape[-1]))
            found[kind].append(_Found(shape, empty, value.numel(), cost))
    total = sum(cost for _, cost in costs)
    best: MaskedSeen | None = None
    for kind, group in found.items():
        if not group or not total:
            continue
        largest = max(group, key=lambda one: one.size)
        own = sum(one.cost for one in group)
        if kind == "scores":
            own = sum(cost for size, cost in costs if size >= largest.size / 2)
        part = min(1.0, own / total)
        if best is None or part > best.part:
            best = MaskedSeen(kind=kind, shape=largest.shape, empty=largest.empty, part=part)
    return best


def _nodes(root: Any) -> Iterator[Any]:
    stack, known = [root], {root}
    while stack:
        node = stack.pop()
        yield node
        for parent, _ in node.next_functions:
            if parent is not None and parent not in known and len(known) < _MAX_NODES:
                known.add(parent)
                stack.append(parent)


def _cost(node: Any) -> tuple[int, float]:
    """Return the values that a node has computed, and what that takes, in values."""
    try:
        size = sum(prod(one.shape) for one in node._input_metadata)
    except (AttributeError, RuntimeError, TypeError):
        return 0, 0.0
    inner = next((sizes[-1] for name in _SIZES if (sizes := getattr(node, name, None))), None)
    is_product = isinstance(inner, int) and "mm" in node.name().lower()
    return size, float(size) * (max(1.0, inner / _PER_VALUE) if is_product and inner else 1.0)


def _candidate(node: Any, size: int) -> tuple[str, Tensor | None]:
    """Return a large matrix of a node: the scores of a softmax, or a constant factor.

    Args:
        size: of what the node has computed, in values.
    """
    name = node.name()
    if name == "SoftmaxBackward0" and size >= _MIN_SIDE**2:
        kind, value = "scores", node._saved_result
    elif name == "MmBackward0" and node.next_functions[0][0] is None:
        kind, value = "matrix", node._saved_self
    else:
        return "", None
    is_large = (
        isinstance(value, Tensor)
        and is_plain(value)
        and value.dim() >= 2
        and min(value.shape[-2:]) >= _MIN_SIDE
    )
    is_square = is_large and value.shape[-1] == value.shape[-2]
    return kind, value if is_large and (kind == "scores" or is_square) else None


def _empty(value: Tensor) -> float:
    """Return the part of values that are zero; of a large matrix, by some of them."""
    flat = value.detach().reshape(-1)
    stride = max(1, flat.numel() // _NUM_VALUES) | 1  # odd: not the same column all the time
    some = flat[::stride]
    return float((some == 0).float().mean())

"""Finds which weights an autograd graph multiplies as matrices."""

from __future__ import annotations

from typing import Any, Final

from stepladder.watching.hooks.graph import kind_of

_PRODUCTS: Final = frozenset({"Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "Mv"})
_TURNS: Final = frozenset(
    ["T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze"]
)
_MAX_NODES: Final = 5000


def multiplied(root: Any, weights: set[int]) -> set[int]:
    """Give those of some weights that enter a matrix product as they are, or turned.

    Args:
        root: the node of what backward is called on.
        weights: `id` of the weights in question.
    """
    found: set[int] = set()
    known: set[Any] = set()
    stack = [(root, False)]  # a node, and whether what it gives goes into a product
    while stack and len(known) < _MAX_NODES:
        node, is_factor = stack.pop()
        if node is None or (node, is_factor) in known:
            continue
        known.add((node, is_factor))
        variable = getattr(node, "variable", None)
        if variable is not None:
            found |= {id(variable)} & weights if is_factor else set()
            continue
        kind = kind_of(node)
        goes_in = kind in _PRODUCTS or (is_factor and kind in _TURNS)
        stack.extend((parent, goes_in) for parent, _ in node.next_functions)
    return found

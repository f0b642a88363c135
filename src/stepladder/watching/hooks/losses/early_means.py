"""Find, in the graph of a loss, what was averaged before or beside the place where it should be."""

from __future__ import annotations

import math
from typing import Any, Final

from stepladder.watching.hooks.graph import kind_of, shape_of, walk

_LOSSES: Final = {
    "NllLoss": "cross_entropy",
    "NllLoss2D": "cross_entropy",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits",
}
_NORMS: Final = frozenset({"LinalgVectorNorm", "Norm"})
_PASSING: Final = frozenset({"Neg", "View", "Squeeze", "Unsqueeze", "Clone", "Alias"})
_MAX_UP: Final = 4
_IMAGES: Final = 4  # dimensions of a batch of images
_CHANNELS: Final = 1


def averaged_probability(root: Any) -> tuple[str, tuple[int, ...]] | None:
    """Find exp(-loss) of a loss that is one number for a whole batch, as in a focal factor.

    Returns:
        The loss and the shape of what it received, or None.
    """
    for node in walk(root):
        if kind_of(node) != "Exp" or math.prod(shape_of(node)) != 1:
            continue
        below, has_sign = _only_input(node), False
        for _ in range(_MAX_UP):
            if below is None or kind_of(below) not in _PASSING:
                break
            has_sign = has_sign or kind_of(below) == "Neg"
            below = _only_input(below)
        if below is None or kind_of(below) not in _LOSSES or not has_sign:
            continue
        before = _only_input(below)
        shape = shape_of(before) if before is not None else ()
        if int(getattr(below, "_saved_reduction", 0)) and shape and shape[0] > 1:
            return _LOSSES[kind_of(below)], shape
    return None


def norm_by_pixel(root: Any) -> tuple[int, ...] | None:
    """Find norms over the channels of a batch of images, compared with a number and squared.

    Returns:
        The shape of the images, or None.
    """
    for node in walk(root):
        if kind_of(node) not in _NORMS:
            continue
        before = _only_input(node)
        shape = shape_of(before) if before is not None else ()
        dims = getattr(node, "_saved_dim", None)
        dims = [dims] if isinstance(dims, int) else list(dims or ())
        is_over_channels = [dim % _IMAGES for dim in dims] == [_CHANNELS]
        if len(shape) == _IMAGES and is_over_channels and math.prod(shape[2:]) > 1:
            return shape
    return None


def _only_input(node: Any) -> Any:
    inputs = [parent for parent, _ in node.next_functions if parent is not None]
    return inputs[0] if len(inputs) == 1 else None

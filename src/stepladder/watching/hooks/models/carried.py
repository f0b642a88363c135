"""Recognise models that continue from a state which they returned for the batch before."""

from __future__ import annotations

from typing import Any, Final

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in

_MAX_OUTPUTS: Final = 8
_MAX_CALLS: Final = 100


def note_carried(root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Note whether a model receives, beside its first input, memory that it returned before.

    `detach` keeps the memory: truncated backpropagation through time passes it on in this way.
    """
    if root.seen.carries_state or not root.returned:
        return
    others = list(tensors_in((args[1:], kwargs), 4))[:_MAX_OUTPUTS]
    root.seen.carries_state = any(
        is_plain(one) and one.numel() > 0 and one.data_ptr() in root.returned for one in others
    )


def note_returned(root: Root, output: Any) -> None:
    """Remember where the outputs of a model lie, in its first calls."""
    if root.seen.carries_state or root.num_returned >= _MAX_CALLS:
        root.returned = frozenset()
        return
    root.num_returned += 1
    outputs = list(tensors_in(output, 4))[:_MAX_OUTPUTS]
    root.returned = frozenset(
        one.data_ptr() for one in outputs if is_plain(one) and one.numel() > 0
    )

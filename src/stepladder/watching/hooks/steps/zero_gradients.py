"""Find weights whose gradient is exactly zero at every inspected step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from stepladder.watching.hooks.tensors import is_plain, part

_FIRST: Final = 2  # looks that are left out: a factor may be zero only at the start
_MAX_WEIGHTS: Final = 500  # the first ones
_MAX_VALUES: Final = 4_000_000  # of a weight that is read as a whole
_SAMPLE: Final = 64
_BIAS: Final = ".bias"


class ZeroGradients:
    """Keeps those weights of an optimizer that had no other gradient than zeros so far.

    Attributes:
        num_looks: steps at which they were inspected.
    """

    def __init__(self) -> None:
        self.num_looks = 0
        self._num_before = 0
        self._left: list[tuple[weakref.ref[Any], str, bool]] | None = None

    def look(self, params: Sequence[Any], name_of: Callable[[Any], str]) -> None:
        """Drop, before a step, the weights with another gradient; most at the first of these."""
        self._num_before += 1
        if self._num_before <= _FIRST or self._left == []:
            return
        if self._left is None:
            self._left = [
                (weakref.ref(param), name_of(param), not bool(param.detach().any()))
                for param in params[:_MAX_WEIGHTS]
                if _is_zero(param)
            ]
        else:
            self._left = [one for one in self._left if _is_zero(one[0]())]
        self.num_looks += 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of these weights."""
        return tuple(name for name, _ in self._found())

    @property
    def num_zero(self) -> int:
        """Return how many of them were zero themselves."""
        return sum(is_zero for _, is_zero in self._found())

    def _found(self) -> list[tuple[str, bool]]:
        """Return them, without biases of layers whose other weights have gradients.

        The gradient of a last bias cancels in a difference of scores, such as a critic's.
        """
        left = {name: is_zero for _, name, is_zero in self._left or ()}
        layers = {_layer(name) for name in left if not name.endswith(_BIAS)}
        return [
            (name, is_zero)
            for name, is_zero in left.items()
            if not name.endswith(_BIAS) or _layer(name) in layers
        ]


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _is_zero(param: Any) -> bool:
    grad: Any = getattr(param, "grad", None)
    if not is_plain(grad) or grad.is_sparse or not 0 < grad.numel() <= _MAX_VALUES:
        return False
    return not bool(part(grad, _SAMPLE).any()) and not bool(grad.any())

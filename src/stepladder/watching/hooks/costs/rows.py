"""Find modules that are called on one row of a tensor after another, in a Python loop."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from stepladder.watching.hooks.tensors import is_plain, tensors_in

_MIN_CALLS: Final = 8  # in a step
_MAX_MODULES: Final = 64
_CHECKED: Final = 3  # calls of a step whose graphs are searched for the output of the last one
_MAX_NODES: Final = 2000
_KEY: Final = "stepladder_row"


class _Mark:
    """Lives as long as a node of the graph."""


@dataclass(slots=True)
class _Loop:
    """The calls of a module in one step.

    Attributes:
        began, ended: of the first and the last of them.
        is_other: they are no rows of one tensor, or cannot be replaced by a single call.
        is_recurrent: a call depends on the output of the one before it, or moves statistics.
    """

    storage: int = 0
    shape: tuple[int, ...] = ()
    offset: int = 0
    weights: tuple[int, int] = (0, 0)
    num_backwards: int = 0
    num: int = 1
    began: float = 0.0
    ended: float = 0.0
    is_other: bool = False
    is_recurrent: bool = False
    last: weakref.ref[_Mark] | None = None


def next_row(given: Tensor) -> int:
    """Return how far the next row is in memory, in values; 0 if a tensor is no row of another one.

    A row is one example, with or without a first 1, or one position of all examples.
    """
    base: Any = given._base
    if is_plain(given) and isinstance(base, Tensor) and base.dim() == given.dim() + 1 > 2:
        is_position = base.shape[0] == given.shape[0] and base.shape[2:] == given.shape[1:]
        if (
            is_position
            and given.shape[0] > 1
            and given.stride() == (base.stride(0), *base.stride()[2:])
        ):
            return int(base.stride(1))
    return given.numel() if _is_example(given) else 0


def _is_example(given: Tensor) -> bool:
    if not is_plain(given) or not given.dim() or not given.is_contiguous():
        return False
    base: Any = given._base
    is_inside = given.untyped_storage().nbytes() > given.numel() * given.element_size()
    if not is_inside or given.numel() < 2:
        return False
    if given.dim() == 1 or given.shape[0] == 1:
        return True
    return isinstance(base, Tensor) and base.shape[1:] == given.shape


class RowCalls:
    """The modules of one step that are called on neighbouring rows of one tensor.

    A call that depends on the output of the previous one, other weights, or a backward in between
    are reasons for such a loop. If one module of a step is recurrent, none is reported.
    """

    def __init__(self) -> None:
        self._loops: dict[int, _Loop] = {}

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], num_backwards: int, *, is_possible: bool
    ) -> bool:
        """Register a call; return whether its input is the next row.

        Args:
            is_possible: the layers treat each example by itself.
        """
        given = next(iter(tensors_in(args, 2)), None)
        loop = self._loops.get(id(module))
        if loop is None and len(self._loops) >= _MAX_MODULES:
            return False
        is_alone = given is not None and len(args) == 1 and args[0] is given
        step = next_row(given) if given is not None and is_alone else 0
        if given is None or not step or not is_possible:
            loop = self._loops.setdefault(id(module), _Loop(num=0))
            loop.num, loop.is_other = loop.num + 1, True
            loop.is_recurrent = loop.is_recurrent or not is_possible
            return False
        now = _Loop(
            storage=given.untyped_storage().data_ptr(),
            shape=tuple(given.shape),
            offset=int(given.storage_offset()),
            weights=_weights(module),
            num_backwards=num_backwards,
        )
        if loop is None:
            self._loops[id(module)] = now
            return True
        loop.is_other = loop.is_other or not (
            now.storage == loop.storage
            and now.shape == loop.shape
            and now.offset == loop.offset + step
            and now.weights == loop.weights
            and now.num_backwards == loop.num_backwards
        )
        loop.offset = now.offset
        loop.num += 1
        return not loop.is_other

    def leave(self, module: nn.Module, output: Any, began: float, ended: float) -> None:
        """Register the end of a call, and whether it depends on the output of the last one."""
        loop = self._loops.get(id(module))
        if loop is None:
            return
        loop.began = loop.began or began
        loop.ended = ended
        if loop.num > _CHECKED or loop.is_recurrent:
            return
        first = next(iter(tensors_in(output, 2)), None)
        node: Any = None if first is None else first.grad_fn
        if node is None:
            loop.is_other = True
            return
        last = None if loop.last is None else loop.last()
        loop.is_recurrent = last is not None and _reaches(node, last)
        mark = node.metadata.setdefault(_KEY, _Mark())
        loop.last = weakref.ref(mark)

    def end(self) -> dict[int, tuple[int, float]]:
        """Return the calls of the step and the seconds of their loop by module, and forget them."""
        loops = [loop for loop in self._loops.values() if loop.num >= _MIN_CALLS]
        is_recurrent = any(loop.is_recurrent for loop in loops)
        found = {
            key: (loop.num, loop.ended - loop.began)
            for key, loop in self._loops.items()
            if loop.num >= _MIN_CALLS and not loop.is_other and not is_recurrent
        }
        self._loops.clear()
        return found


def _weights(module: nn.Module) -> tuple[int, int]:
    """Return what identifies the weights that a module has in this call, and their values."""
    first = next(module.parameters(), None)
    if first is None or first.is_inference():
        return 0, 0
    return id(first), first._version


def _reaches(node: Any, mark: _Mark) -> bool:
    """Return whether a graph contains a marked node, or is too large to be searched."""
    stack, known = [node], set[Any]()
    while stack:
        one: Any = stack.pop()
        if one is None or one in known:
            continue
        known.add(one)
        if len(known) > _MAX_NODES or one.metadata.get(_KEY) is mark:
            return True
        stack.extend(parent for parent, _ in one.next_functions)
    return False

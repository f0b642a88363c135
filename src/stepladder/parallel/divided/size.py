"""Measure what decides how a model is divided: one forward pass of an example, without a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stepladder.parallel.divided.cuts import Cut, anatomy_of, possible_cuts
from stepladder.parallel.divided.sharding import units_of
from stepladder.parallel.divided.tensor_plan import Pair, has_dropout, pairs_of
from stepladder.records.model_size import ModelSize


def model_size(
    model: nn.Module, run: Callable[[int], Any], *, state_numbers: Callable[[Tensor], int]
) -> ModelSize:
    """Return the bytes of a model and of its training; works on the meta device, too.

    Args:
        model: in evaluation mode, so that nothing of it changes.
        run: a forward pass of one or two examples.
        state_numbers: numbers of the optimizer's state for a weight.
    """
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    pairs = [pair for pair in pairs_of(model) if not has_dropout(model, pair)]
    modules = dict(model.named_modules())
    layers = [modules[name] for pair in pairs for name in (pair.columns, pair.rows)]
    (one, first), (two, second) = (_counted(model, pairs, run, num) for num in (1, 2))
    kept = two["kept"] - one["kept"]
    cuts, num_operations = _cuts(model, run)
    middle = min(cuts, key=lambda cut: abs(cut.at - num_operations / 2), default=None)
    return ModelSize(
        weights=_bytes(weights) + _bytes(model.buffers()),
        trained=_bytes(trained),
        states=sum(state_numbers(weight) * weight.element_size() for weight in trained),
        kept=kept,
        copies=max(0, one["kept"] - kept),
        unit=_largest_unit(model),
        divided=_bytes(weight for layer in layers for weight in layer.parameters()),
        shares=math.gcd(*(pair.num for pair in pairs)),
        inner=two["inner"] - one["inner"],
        summed=two["summed"] - one["summed"],
        num_sums=len(pairs),
        cut=None if middle is None else middle.num_bytes,
        num_cuts=len(cuts),
        peaks=_peaks(first, second, sum(weight.nbytes for weight in trained)),
    )


class _Saved(NamedTuple):
    """A tensor that a forward pass keeps: bytes of an activation, or of a weight's gradient."""

    kept: int
    gradient: int


def _counted(
    model: nn.Module, pairs: list[Pair], run: Callable[[int], Any], num: int
) -> tuple[dict[str, int], list[_Saved]]:
    with _counting(model, pairs) as (counts, saved), torch.enable_grad():
        run(num)
    return counts, saved


def _peaks(
    first: list[_Saved], second: list[_Saved], all_gradients: int
) -> tuple[tuple[int, int], ...]:
    """Return what a backward pass holds: activations of an example, and gradients so far.

    It takes what the forward pass has saved in reverse: activations are freed, and the gradients
    of weights appear. Only pairs are returned that are the largest for some number of examples.

    Args:
        first, second: what a pass of one, and of two examples has saved, in order.
        all_gradients: bytes, with those of weights that are not saved, such as biases.
    """
    if len(first) != len(second):
        return ()
    unseen = all_gradients - sum(one.gradient for one in first)
    kept = sum(two.kept - one.kept for one, two in zip(first, second, strict=True))
    gradients, found = 0, [(kept, 0)]
    for one, two in zip(reversed(first), reversed(second), strict=True):
        gradients += one.gradient
        found.append((kept, gradients))
        kept -= two.kept - one.kept
    found.append((0, gradients + max(0, unseen)))
    hull: list[tuple[int, int]] = []
    for pair in sorted(set(found), reverse=True):  # by activations, the most first
        if hull and pair[1] <= hull[-1][1]:
            continue
        while len(hull) > 1 and _is_below(hull[-1], hull[-2], pair):
            hull.pop()
        hull.append(pair)
    return tuple(hull)


def _is_below(middle: tuple[int, int], left: tuple[int, int], right: tuple[int, int]) -> bool:
    """Return True if a point is below the line between two others, so that it is never largest."""
    across = (right[0] - left[0]) * (middle[1] - left[1])
    return across <= (right[1] - left[1]) * (middle[0] - left[0])


@contextmanager
def _counting(model: nn.Module, pairs: list[Pair]) -> Iterator[tuple[dict[str, int], list[_Saved]]]:
    """Count what is kept for a backward pass, each tensor once; weights are not counted."""
    counts = {"kept": 0, "inner": 0, "summed": 0}
    saved: list[_Saved] = []
    trained = {_key(one): one.nbytes for one in model.parameters() if one.requires_grad}
    own = {_key(tensor) for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[Any, Any] = {}
    depth = 0

    def pack(tensor: Tensor) -> None:
        """Count a tensor; it is not kept, or its graph would refer to itself and never end."""
        key = _key(tensor)
        if key in trained:
            saved.append(_Saved(kept=0, gradient=trained.pop(key)))
        if key not in own and key not in seen:
            saved.append(_Saved(kept=tensor.nbytes, gradient=0))
            seen[key] = tensor.untyped_storage()  # so that its memory is not used again
            counts["kept"] += tensor.nbytes
            counts["inner"] += tensor.nbytes if depth else 0

    def enter(*_: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, args: Any, output: Tensor) -> None:  # noqa: ARG001
        nonlocal depth
        depth -= 1
        counts["summed"] += output.nbytes

    modules = dict(model.named_modules())
    handles = [modules[pair.columns].register_forward_hook(enter) for pair in pairs]
    handles += [modules[pair.rows].register_forward_hook(leave) for pair in pairs]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, _no_backward):
            yield counts, saved
    finally:
        for handle in handles:
            handle.remove()


def _no_backward(_: None) -> Tensor:
    raise NotImplementedError("a pass that counts has no backward pass")


def _key(tensor: Tensor) -> Any:
    """Return what tensors that share memory have in common."""
    return tensor.untyped_storage()._cdata


def _largest_unit(model: nn.Module) -> int:
    units = units_of(model)
    rest = _bytes(model.parameters()) - sum(_bytes(unit.parameters()) for unit in units)
    return max([rest, *(_bytes(unit.parameters()) for unit in units)])


def _cuts(model: nn.Module, run: Callable[[int], Any]) -> tuple[list[Cut], int]:
    """Return where the model can be cut, and the number of operations of a pass."""
    with torch.no_grad():
        anatomy = anatomy_of(model, lambda: run(2), num_examples=2)
    return possible_cuts(anatomy), anatomy.num_operations


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)

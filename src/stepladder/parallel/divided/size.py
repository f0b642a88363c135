"""Measure what decides how a model is divided: one forward pass of an example, without a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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
    one, two = (_counted(model, pairs, run, num) for num in (1, 2))
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
        cut=None if middle is None else middle.num_bytes,
        num_cuts=len(cuts),
    )


def _counted(
    model: nn.Module, pairs: list[Pair], run: Callable[[int], Any], num: int
) -> dict[str, int]:
    with _counting(model, pairs) as counts, torch.enable_grad():
        run(num)
    return counts


@contextmanager
def _counting(model: nn.Module, pairs: list[Pair]) -> Iterator[dict[str, int]]:
    """Count what is kept for a backward pass, each tensor once; weights are not counted."""
    counts = {"kept": 0, "inner": 0, "summed": 0}
    own = {_key(tensor) for tensor in (*model.parameters(), *model.buffers())}
    seen: dict[Any, Any] = {}
    depth = 0

    def pack(tensor: Tensor) -> None:
        """Count a tensor; it is not kept, or its graph would refer to itself and never end."""
        key = _key(tensor)
        if key not in own and key not in seen:
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
            yield counts
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

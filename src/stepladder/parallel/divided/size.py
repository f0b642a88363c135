"""Measure what decides how a model is divided: one forward pass of an example, without a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.parallel.divided.cuts import anatomy_of, possible_cuts
from stepladder.parallel.divided.sharding import units_of
from stepladder.parallel.divided.tensor_plan import Pair, pairs_of
from stepladder.records.model_size import ModelSize


def model_size(
    model: nn.Module,
    run: Callable[[], Any],
    *,
    num_examples: int,
    state_numbers: Callable[[Tensor], int],
) -> ModelSize:
    """Return the bytes of a model and of its training; works on the meta device, too.

    Args:
        model: in evaluation mode, so that nothing of it changes.
        run: a forward pass of a few examples.
        num_examples: that it computes.
        state_numbers: numbers of the optimizer's state for a weight.
    """
    weights = list(model.parameters())
    trained = [weight for weight in weights if weight.requires_grad]
    pairs = pairs_of(model)
    modules = dict(model.named_modules())
    layers = [modules[name] for pair in pairs for name in (pair.columns, pair.rows)]
    with _counting(model, pairs) as counts, torch.enable_grad():
        result = run()
    del result  # and with it what was kept
    return ModelSize(
        weights=_bytes(weights) + sum(buffer.nbytes for buffer in model.buffers()),
        trained=_bytes(trained),
        states=sum(state_numbers(weight) * weight.element_size() for weight in trained),
        kept=counts["kept"] // num_examples,
        unit=_largest_unit(model),
        divided=_bytes(weight for layer in layers for weight in layer.parameters()),
        inner=counts["inner"] // num_examples,
        summed=counts["summed"] // num_examples,
        cut=_middle_cut(model, run, num_examples),
    )


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


def _middle_cut(model: nn.Module, run: Callable[[], Any], num_examples: int) -> int | None:
    """Return the bytes that cross the cut next to half of the operations; None: no place to cut."""
    with torch.no_grad():
        anatomy = anatomy_of(model, run, num_examples=num_examples)
    cuts, half = possible_cuts(anatomy), anatomy.num_operations / 2
    return min(cuts, key=lambda cut: abs(cut.at - half)).num_bytes if cuts else None


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)

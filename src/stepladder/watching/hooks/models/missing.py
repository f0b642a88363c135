"""Find out why weights of an optimizer have no gradient, from a step that was followed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from stepladder.watching.seen.steps import CutSeen
from stepladder.watching.seen.weights import CauseSeen

_OPAQUE = (torch.jit.ScriptModule, nn.DataParallel)  # whose layers are called out of sight


def causes_of(
    missing: Mapping[int, tuple[int, ...]],
    *,
    cuts: Mapping[int, CutSeen],
    used: set[int],
    called: set[int],
    models: Iterable[nn.Module],
    held: set[int],
) -> dict[int, CauseSeen]:
    """Return the cause by id of each weight for which one is proven.

    Args:
        missing: the weights without a gradient: their shapes by id.
        cuts: the operation that cut the graph between a weight and the loss, by id of the weight.
        used: ids of those that an operation received.
        called: ids of the modules that were called.
        models: the outermost modules.
        held: ids of all weights that optimizers hold.
    """
    models = list(models)
    found = {
        key: CauseSeen(kind="cut", operation=cut.operation, where=cut.where)
        for key, cut in cuts.items()
        if key in missing
    }
    modules = [one for model in models for one in model.modules()]
    owners = {id(p): one for one in modules for p in one._parameters.values() if p is not None}
    is_opaque = any(isinstance(one, _OPAQUE) for one in modules)
    idle = {key for key in missing if key not in used}
    for key in idle & owners.keys():
        if id(owners[key]) not in called and not is_opaque:
            found[key] = CauseSeen(kind="uncalled")
    strangers = {key: missing[key] for key in idle if key not in owners}
    for model in models if strangers else ():
        if _are_replaced(strangers, model, held):
            built = type(getattr(model, "_orig_mod", model)).__name__
            found |= dict.fromkeys(strangers, CauseSeen(kind="replaced", model=built))
            break
    return found


def _are_replaced(
    strangers: Mapping[int, tuple[int, ...]], model: nn.Module, held: set[int]
) -> bool:
    """Return whether a model has a weight of each shape that is trained, but in no optimizer."""
    shapes: list[Any] = [
        tuple(p.shape)
        for p in model.parameters()
        if p.requires_grad and p.grad is not None and id(p) not in held
    ]
    for shape in strangers.values():
        if shape not in shapes:
            return False
        shapes.remove(shape)
    return True

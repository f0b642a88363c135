"""An optimizer's state as named tensors and JSON, so that nothing has to be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from stepladder.errors import DataError
from stepladder.models.sharded_tensors import assign_, row_order, set_row_order
from stepladder.optim.contract import OwnOptimizer
from stepladder.optim.scalars import HOST_SCALARS, as_numbers_, as_tensors_

MASTER = "master"
"""Key of the fp32 copy of a half weight, if the optimizer has one."""


def flatten_state(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimizer's state into tensors and JSON values. Only numbers are copied.

    Returns:
        (tensors, facts): tensors by `weight name/state key`; facts are JSON values: the kind of
        optimizer, the options of each group, its weights' names in order, and state other than
        tensors.
    """
    own = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    groups: list[dict[str, Any]] = []
    for group, names in zip(optimizer.param_groups, _names(optimizer, model), strict=True):
        options = {key: value for key, value in group.items() if key != "params"}
        groups.append({**options, "param_names": names})
        for name, weight in zip(names, group["params"], strict=True):
            state = dict(optimizer.state.get(weight, {}))
            if weight is not own[name]:
                state[MASTER] = weight
            for key, value in state.items():
                if key in HOST_SCALARS and isinstance(value, float):
                    tensors[f"{name}/{key}"] = torch.tensor(value, dtype=torch.float64)
                elif isinstance(value, Tensor):
                    tensors[f"{name}/{key}"] = value.detach()
                else:
                    scalars[f"{name}/{key}"] = value
    return tensors, {"kind": type(optimizer).__name__, "groups": groups, "scalars": scalars}


def restore_state(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any],
) -> None:
    """Restore a flattened state in place, in an optimizer of the same kind and weights.

    Tensors are copied to the device and memory format of their weight; their dtype is kept.

    Raises:
        DataError: if the kind, the weights or their shapes differ; then nothing is changed.
    """
    names = _names(optimizer, model)
    _refuse_other(optimizer, names, facts)
    weights = {
        name: weight
        for group, members in zip(optimizer.param_groups, names, strict=True)
        for name, weight in zip(members, group["params"], strict=True)
    }
    is_on_device = any(g.get("capturable") or g.get("fused") for g in optimizer.param_groups)
    unlike = optimizer.unlike_weight if isinstance(optimizer, OwnOptimizer) else frozenset()
    state: dict[str, dict[str, Any]] = {}
    for path, value in {**facts["scalars"], **tensors}.items():
        name, _, key = path.rpartition("/")
        if name not in weights:
            raise _misfit(f"it has state of an unknown weight, {name!r}")
        if isinstance(value, Tensor) and key in unlike:
            value = value.to(weights[name].device, copy=True)
        elif isinstance(value, Tensor):
            value = _place(value, weights[name], key, is_on_device=is_on_device)
        state.setdefault(name, {})[key] = value
    _adopt(optimizer, weights, state, facts)


def _adopt(
    optimizer: torch.optim.Optimizer,
    weights: Mapping[str, nn.Parameter],
    state: dict[str, dict[str, Any]],
    facts: Mapping[str, Any],
) -> None:
    for group, saved in zip(optimizer.param_groups, facts["groups"], strict=True):
        for key, value in saved.items():
            group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    optimizer.state.clear()
    for name, entries in state.items():
        master = entries.pop(MASTER, None)
        if master is not None:
            weights[name].data.copy_(master)
        if entries:
            optimizer.state[weights[name]] = entries
            as_kept = as_numbers_ if isinstance(optimizer, OwnOptimizer) else as_tensors_
            as_kept(entries)


def _names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """Return the weights' names of each group, as built or looked up in the model."""
    by_id = {id(weight): name for name, weight in model.named_parameters()}
    return [
        list(group.get("param_names") or [by_id[id(weight)] for weight in group["params"]])
        for group in optimizer.param_groups
    ]


def _refuse_other(
    optimizer: torch.optim.Optimizer, names: list[list[str]], facts: Mapping[str, Any]
) -> None:
    kind = type(optimizer).__name__
    if facts["kind"] != kind:
        raise _misfit(f"it belongs to {facts['kind']}, but this run uses {kind}")
    if [cast("list[str]", group["param_names"]) for group in facts["groups"]] != names:
        raise _misfit("it belongs to other weights")


def _place(value: Tensor, weight: nn.Parameter, key: str, *, is_on_device: bool) -> Tensor:
    if key in HOST_SCALARS:
        return value.to(weight.device if is_on_device else "cpu", copy=True)
    if value.shape != weight.shape:
        raise _misfit(f"{key} has shape {tuple(value.shape)}, but its weight {tuple(weight.shape)}")
    placed = torch.empty_like(weight, dtype=value.dtype, requires_grad=False)
    order = row_order(weight)
    if order is not None:
        set_row_order(placed, order)
    assign_(placed, value)
    return placed


def _misfit(what: str) -> DataError:
    return DataError(
        "the run cannot be resumed, because the optimizer state in its checkpoint does not fit "
        f"the model: {what}",
        fix="Resume it with the options with which it began; they are in config.yaml of the run.",
    )

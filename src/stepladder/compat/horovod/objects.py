"""Send parameters, the state of an optimizer, and other objects to all ranks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from stepladder.compat.horovod.collectives import allgather, broadcast_, require_all
from stepladder.compat.horovod.session import current
from stepladder.errors import UsageError


def broadcast_parameters(params: Any, root_rank: int = 0) -> None:
    """Overwrite the parameters of all ranks with those of one.

    Args:
        params: a state dictionary, or the result of `named_parameters()` or `parameters()`.
        root_rank: rank whose parameters count.
    """
    if isinstance(params, Mapping):
        values: Iterable[Any] = [params[name] for name in sorted(params)]
    else:
        values = [value[1] if isinstance(value, tuple) else value for value in params]
    for value in values:
        if isinstance(value, Tensor):
            broadcast_(value, root_rank)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Any:
    """Return the object of one rank, on all ranks; it is pickled."""
    require_all(process_set)
    session = current()
    if session.size == 1:
        return obj
    is_root = session.rank == root_rank
    data = _bytes(obj) if is_root else torch.empty(0, dtype=torch.uint8)
    length = torch.tensor([len(data)])
    broadcast_(length, root_rank)
    if not is_root:
        data = torch.empty(int(length), dtype=torch.uint8)
    broadcast_(data, root_rank)
    return obj if is_root else pickle.loads(data.numpy().tobytes())


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:  # noqa: ARG001
    """Return the objects of all ranks, in their order; they are pickled."""
    session = current()
    if session.size == 1:
        return [obj]
    data = _bytes(obj)
    lengths = allgather(torch.tensor([len(data)])).tolist()
    parts = torch.split(allgather(data), lengths)
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def _bytes(obj: Any) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int = 0,
    model: Any = None,  # noqa: ARG001
) -> None:
    """Overwrite an optimizer's state and options, such as learning rates, with those of one rank.

    Args:
        optimizer: wrapped or not; no step is taken.
        root_rank: rank whose state counts.
        model: has no effect.

    Raises:
        UsageError: for LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UsageError(
            "the state of LBFGS cannot be broadcast",
            where="optimizer",
            fix="Broadcast the parameters alone: hvd.broadcast_parameters(model.state_dict(), 0)",
        )
    session = current()
    if session.size == 1:
        return
    is_root = session.rank == root_rank
    own = optimizer.state_dict() if is_root else None
    tensors = [] if own is None else _taken(own["state"])
    state, kinds = broadcast_object((own, [_kind(tensor) for tensor in tensors]), root_rank)
    if not is_root:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
    for at, tensor in enumerate(tensors):
        flat = tensor.detach().cpu().contiguous()
        broadcast_(flat, root_rank)
        tensors[at] = flat
    if not is_root:
        _put(state["state"], tensors)
        _load(optimizer, state)


def _load(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a state, and keep the groups of parameters: a schedule may refer to them."""
    groups = optimizer.param_groups
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.update({name: value for name, value in loaded.items() if name != "params"})
    optimizer.param_groups = groups


def _kind(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype


def _taken(state: dict[Any, Any]) -> list[Tensor]:
    """Replace the tensors of each parameter's state by their positions, and return them."""
    tensors: list[Tensor] = []
    for key, values in state.items():
        state[key] = dict(values)
        for name, value in values.items():
            if isinstance(value, Tensor):
                state[key][name] = _Position(len(tensors))
                tensors.append(value)
    return tensors


def _put(state: dict[Any, Any], tensors: list[Tensor]) -> None:
    for values in state.values():
        for name, value in values.items():
            if isinstance(value, _Position):
                values[name] = tensors[value]


class _Position(int):
    """The position of a tensor that is sent by itself."""

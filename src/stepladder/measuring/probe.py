"""Probes without side effects: restore all state after a block."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "status_alloc_failed",  # of cuBLAS, of cuDNN
    "allocation_failed",  # of cuDNN 9 and later
)


@contextmanager
def untouched(
    model: nn.Module | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Iterator[None]:
    """Restore all state bit by bit after the block, even after an error.

    Covers weights and buffers (BatchNorm's running statistics), gradients, requires_grad, training
    flags, the optimizer's state and options, the loss scale, and the random states of Python,
    NumPy, torch and CUDA. Tensors are restored in place, so that references to them remain valid.
    Needs as much memory as the state.
    """
    undo = [_keep_random_states(), *_keep_model(model)]
    if optimizer is not None:
        undo.append(_keep_optimizer(optimizer))
    if scaler is not None:
        undo.append(_keep_attributes(scaler))
    try:
        yield
    finally:
        with torch.no_grad():
            for put_back in undo:
                put_back()


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an out-of-memory error, on the device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(message in text for message in _MESSAGES)


def _keep_random_states() -> Callable[[], None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state_all() if has_cuda else []

    def put_back() -> None:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return put_back


def _keep_model(model: nn.Module | None) -> Iterator[Callable[[], None]]:
    if model is None:
        return
    yield _keep_tensors([*model.parameters(), *model.buffers()])
    weights = [(weight, weight.requires_grad) for weight in model.parameters()]
    flags = [(module, module.training) for module in model.modules()]

    def put_back() -> None:
        for weight, learns in weights:
            weight.requires_grad_(learns)
        for module, is_training in flags:
            module.training = is_training

    yield put_back


def _keep_tensors(tensors: list[Tensor]) -> Callable[[], None]:
    kept = [
        (tensor, tensor.detach().clone(), tensor.grad, _copy(tensor.grad)) for tensor in tensors
    ]

    def put_back() -> None:
        for tensor, value, grad, grad_value in kept:
            tensor.copy_(value)
            if grad is not None and grad_value is not None:
                grad.copy_(grad_value)
            if tensor.is_leaf:
                tensor.grad = grad

    return put_back


def _keep_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    masters = _keep_tensors([w for group in optimizer.param_groups for w in group["params"]])
    states = {
        weight: {key: (value, _copy(value)) for key, value in state.items()}
        for weight, state in optimizer.state.items()
    }

    def put_back() -> None:
        masters()
        for group, options in zip(optimizer.param_groups, groups, strict=True):
            group.update(options)
        optimizer.state.clear()
        for weight, state in states.items():
            optimizer.state[weight] = {
                key: value.copy_(copy) if isinstance(value, Tensor) else copy
                for key, (value, copy) in state.items()
            }

    return put_back


def _keep_attributes(scaler: torch.amp.GradScaler) -> Callable[[], None]:
    """Save a scaler's attributes; its tensors are only created at its first use."""
    kept = {name: (value, _copy(value)) for name, value in vars(scaler).items()}

    def put_back() -> None:
        for name, (value, copy) in kept.items():
            setattr(scaler, name, value.copy_(copy) if isinstance(value, Tensor) else copy)

    return put_back


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)

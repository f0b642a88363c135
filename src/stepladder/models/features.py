"""Hash a trunk, and run a model in evaluation mode without changing it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COMPILED = "_orig_mod."


def hash_trunk(trunk: nn.Module) -> str:
    """Return the sha256 of a trunk's layers and of its tensors' names, dtypes and bytes.

    Includes parameters and all buffers, also those for preprocessing; device, memory format and
    replacements of its forward (folded, compiled) do not count.
    """
    digest = hashlib.sha256(_ADDRESS.sub("", str(trunk)).encode())
    return _with_tensors(digest, trunk).hexdigest()


def hash_weights(model: nn.Module) -> str:
    """Return the sha256 of the names, dtypes and bytes of a model's parameters and all buffers."""
    return _with_tensors(hashlib.sha256(), model).hexdigest()


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers of a model by name, also buffers that are never saved."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def kind_of(tensor: Tensor) -> str:
    """Return the dtype and the shape of a tensor."""
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape))}"


def _with_tensors(digest: hashlib._Hash, model: nn.Module) -> hashlib._Hash:
    for name, tensor in tensors_of(model).items():
        digest.update(f"\n{name.replace(_COMPILED, '')} {kind_of(tensor)}\n".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode and without gradients; restore its training flags after."""
    flags = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, is_training in flags.items():
            module.training = is_training

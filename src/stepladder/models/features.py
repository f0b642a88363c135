"""Hash a trunk, and run a model in evaluation mode without changing it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_COMPILED = "_orig_mod."


def hash_trunk(trunk: nn.Module) -> str:
    """Return the sha256 of a trunk's layers and of its tensors' names, dtypes and bytes.

    Includes parameters and all buffers, also those for preprocessing; device, memory format and
    replacements of its forward (folded, compiled) do not count.
    """
    digest = hashlib.sha256(_ADDRESS.sub("", str(trunk)).encode())
    tensors = [*trunk.named_parameters(), *trunk.named_buffers()]
    for name, tensor in tensors:
        shape = "x".join(map(str, tensor.shape))
        digest.update(f"\n{name.replace(_COMPILED, '')} {tensor.dtype} {shape}\n".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


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

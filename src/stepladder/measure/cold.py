"""Compiled code as if for the first time: a private cache for a block, and none before it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from stepladder.config.recipe import Recipe

_FOLDERS: Final = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


@contextmanager
def cold_compiler(recipe: Recipe, cache: Path) -> Iterator[None]:
    """Let what a recipe compiles in the block find nothing that was compiled before.

    Does nothing for a recipe that compiles nothing.

    Args:
        cache: where compiled code is put.
    """
    if not recipe.device.compile:
        yield
        return
    before = {name: os.environ.get(name) for name in _FOLDERS}
    torch._dynamo.reset()
    os.environ.update({name: str(cache / folder) for name, folder in _FOLDERS.items()})
    try:
        yield
    finally:
        torch._dynamo.reset()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

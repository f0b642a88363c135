"""Run a script with other seeds, and with the same ones where it sets none."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import torch

from stepladder.scripts.inside.deterministic import seed_all

_MODULUS = 2**32


def shift_seeds(offset: int) -> None:
    """Seed everything, and add an offset to the seeds that the script sets from now on."""
    seed_all(offset)
    if not offset:
        return
    for owner, name in ((torch, "manual_seed"), (random, "seed"), (np.random, "seed")):
        _shift(owner, name, offset)


def _shift(owner: Any, name: str, offset: int) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(seed: Any = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(seed, int):
            seed = (seed + offset) % _MODULUS
        return original(seed, *args, **kwargs)

    setattr(owner, name, wrapper)

"""The features of a frozen trunk, computed once for each batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from stepladder.checks.job import CheckedJob

_MAX_HELD = 64  # batches


@contextmanager
def holding_features(job: CheckedJob, model: nn.Module) -> Iterator[None]:
    """Let a frozen trunk compute each batch once in the block, and give the same again.

    For models that begin as the run does: a frozen trunk is then the same in all of them, so that
    features are shared between blocks. A trunk that learns, or draws, is left alone.
    """
    trunk = _frozen_trunk(job, model)
    if trunk is None:
        yield
        return
    forward, had_own = trunk.forward, "forward" in vars(trunk)
    held: dict[int, tuple[Any, Any]] = job.remember("held_features", dict)

    def once(x: Any) -> Any:
        if id(x) in held:
            return held[id(x)][1]
        features = forward(x)
        if len(held) < _MAX_HELD:
            held[id(x)] = (x, features)  # with x, so that no other value gets its id
        return features

    trunk.forward = once
    try:
        yield
    finally:
        if had_own:
            trunk.forward = forward
        else:
            del trunk.forward


def _frozen_trunk(job: CheckedJob, model: nn.Module) -> nn.Module | None:
    try:
        parts = job.task.split(model)
    except (AttributeError, AssertionError, TypeError, KeyError, IndexError):
        return None  # another model than the Task's own
    if parts is None:
        return None
    trunk = parts[0]
    if trunk.training or any(weight.requires_grad for weight in trunk.parameters()):
        return None
    return trunk

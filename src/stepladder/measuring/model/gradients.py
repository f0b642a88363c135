"""Measure in which order, and when, a backward pass has the gradients of the trained weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.measuring.probe import untouched
from stepladder.measuring.subject import Subject
from stepladder.records.profile import Gradient
from stepladder.training.step import autocast

_MOST_GROUPS: Final = 64
_NUM_PASSES: Final = 3  # the first ones are slow


def measure_gradients(subject: Subject) -> tuple[Gradient, ...]:
    """Return the bytes of gradients, and the share of the backward pass after which they are known.

    The weights and their gradients do not change.
    """
    learning = [weight for weight in subject.model.parameters() if weight.requires_grad]
    size = subject.recipe.batch.micro_batch_size or subject.batch_size  # larger ones may not fit
    batch = subject.to_device(subject.batch_of(min(size, subject.batch_size)))
    with untouched(subject.model):
        times = [_one_pass(subject, learning, batch) for _ in range(_NUM_PASSES)]
    return grouped(times[-1])


def _one_pass(subject: Subject, learning: Sequence[Tensor], batch: Any) -> list[tuple[int, float]]:
    """Return the bytes of each gradient, and when it was known, in seconds of the backward pass."""
    marks: list[tuple[int, Callable[[], float]]] = []
    now = _clock(subject.device)
    for weight in learning:
        weight.grad = None
    handles = [
        weight.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda one: marks.append((one.nbytes, now()))
        )
        for weight in learning
    ]
    try:
        with autocast(subject.device, subject.recipe.device.precision):
            result = subject.task.loss(subject.model, batch)
        losses = result[0] if isinstance(result, tuple) else result
        start = now()
        losses.float().mean().backward()  # type: ignore[no-untyped-call]
    finally:
        for handle in handles:
            handle.remove()
    if subject.device.type == "cuda":
        torch.cuda.synchronize(subject.device)
    return [(num_bytes, read() - start()) for num_bytes, read in marks]


def _clock(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Return a function that marks a time, and returns a function that reads it later."""
    if device.type != "cuda":

        def mark() -> Callable[[], float]:
            seconds = time.perf_counter()
            return lambda: seconds

        return mark
    first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    first.record()

    def record() -> Callable[[], float]:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return lambda: first.elapsed_time(event) / 1e3

    return record


def grouped(marks: Sequence[tuple[int, float]]) -> tuple[Gradient, ...]:
    """Return gradients in order, those that are known almost at the same time as one.

    Args:
        marks: bytes of a gradient, and the seconds after which it was known, in order.
    """
    end = max((seconds for _, seconds in marks), default=0.0)
    if end <= 0:
        return ()
    found: list[Gradient] = []
    for num_bytes, seconds in marks:
        ready = min(1.0, max(0.0, seconds / end))
        if found and ready - found[-1].ready_frac < 1 / _MOST_GROUPS:
            both = found.pop().num_bytes + num_bytes
            found.append(Gradient(num_bytes=both, ready_frac=ready))
        else:
            found.append(Gradient(num_bytes=num_bytes, ready_frac=ready))
    return tuple(found)

"""Measure the first compilation: use an empty private cache for a block."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch

from stepladder.config.recipe import DeviceConfig
from stepladder.measuring.blocks.timing import seconds_of
from stepladder.measuring.subject import Subject
from stepladder.models.features import evaluating

_FOLDERS: Final = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


@contextmanager
def cold_compiler(config: DeviceConfig, folder: Path, device: torch.device) -> Iterator[None]:
    """Compile from scratch in the block, without any code that was compiled before.

    Uses an empty cache on disk, and clears the process's record of the libraries it has built. What
    a process must do before its first compilation is already done, see `compiler_start_s`.
    Does nothing if the config compiles nothing.

    Args:
        folder: for compiled code; a temporary one is used instead if its name has a space, because
            torch does not quote it for the C++ compiler.
    """
    if not config.compile:
        yield
        return
    compiler_start_s(device)
    with ExitStack() as stack:
        if any(letter.isspace() for letter in str(folder.absolute())):
            name = stack.enter_context(TemporaryDirectory(prefix="stepladder-compile-"))
            folder = Path(name)
        stack.enter_context(_empty_caches(folder))
        yield


@cache
def compiler_start_s(device: torch.device) -> float:
    """Return the extra time of the first compilation in a process.

    It takes about ten seconds, for imports, workers and checking the toolchain, and every training
    process needs it. Measured at the first call, with a function of two operations; close to zero
    if the process has compiled something before.
    """
    numbers = torch.zeros(64, device=device)

    def compile_s() -> float:
        with TemporaryDirectory(prefix="stepladder-compile-") as name, _empty_caches(Path(name)):
            return seconds_of(lambda: torch.compile(_two_operations)(numbers), device)

    return max(0.0, compile_s() - compile_s())


def _two_operations(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


@contextmanager
def _empty_caches(folder: Path) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _FOLDERS}
    os.environ.update({name: str(folder / part) for name, part in _FOLDERS.items()})
    _forget()
    try:
        yield
    finally:
        _forget()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _forget() -> None:
    torch._dynamo.reset()
    if (inductor := sys.modules.get("torch._inductor.utils")) is not None:
        inductor.clear_caches()


def measure_compile(subject: Subject) -> float:
    """Measure the compile time: run the first step and validation batch, which compile, twice.

    Call it within `cold_compiler`, on a subject that has not computed anything yet.

    Returns:
        The extra seconds of the first runs over the second, plus those of a process's first
        compilation.
    """
    batch = subject.batch_of(subject.batch_size)
    on_device = subject.to_device(batch)

    def step() -> None:
        subject.step_on(itertools.repeat(batch))

    def validate() -> None:
        with evaluating(subject.model), subject.autocast():
            subject.task.metrics(subject.model, on_device)

    more_s = sum(_first_over_second(run, subject) for run in (step, validate))
    return max(0.0, more_s) + compiler_start_s(subject.device)


def _first_over_second(run: Callable[[], None], subject: Subject) -> float:
    first_s = seconds_of(run, subject.device)
    return first_s - seconds_of(run, subject.device)

"""Compiled code as if for the first time: a private cache for a block, and none before it."""

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
    """Let what is compiled in the block find nothing that was compiled before.

    Neither on disk nor in this process, whose memory of libraries it has built is emptied too. What
    the process itself must do before its first compilation is done, see `compiler_start_s`.
    Does nothing where the config compiles nothing.

    Args:
        folder: where compiled code is put; another, temporary one where its name has a space, as
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
    """Time what the first compilation of a process takes more than the same one again.

    Imports, workers, and a look at the toolchain: some ten seconds. Each training in a process of
    its own pays them. Measured at the first call, by a function of two operations; little is left
    to be seen where the process has compiled something before.
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
    """Take the first step and the first validation batch, which compile, and again for the rest.

    Within `cold_compiler`, on a subject that has not computed anything yet.

    Returns:
        Seconds that the first ones took more than the second ones, and of a process's first
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

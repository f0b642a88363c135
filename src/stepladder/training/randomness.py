"""Random numbers of a run: seeded once and again for each step, saved and restored.

Random numbers of a step, such as dropout, depend only on (seed, step, rank), and not on other draws
or on where a run was interrupted.
"""

from __future__ import annotations

import os
import random
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

_MASK: Final = (1 << 64) - 1
_NOT_DETERMINISTIC: Final = r".*does not have a deterministic implementation"
_CUBLAS: Final = "CUBLAS_WORKSPACE_CONFIG"
_INDUCTOR: Final = "TORCHINDUCTOR_DETERMINISTIC"
_WARN: Final = 1  # a debug mode of torch: 0 is the default, 2 an error
_RATES: Final = re.compile(r"p|drop.*|attn_drop.*|stochastic.*")


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device, for initial weights and a user's own code."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)  # the global state, used by other code
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # it would format the stack once per backend of torch, which takes a millisecond
        torch.default_generator.manual_seed(seed)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Hash (seed, step, rank) to a number in [0, 2**63), the same on every machine and version.

    Source: Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", OOPSLA;
    the finalizer of SplitMix64, applied once for each part.
    """
    mixed = _mix(_mix(_mix(seed & _MASK) ^ (step & _MASK)) ^ (rank & _MASK))
    return mixed >> 1


def seed_step(seed: int, step: int, rank: int, device: torch.device) -> None:
    """Seed the random numbers of the next step, on the CPU and on its device.

    Takes a microsecond or two: `torch.manual_seed` seeds every backend and is 100 times slower.
    """
    number = step_seed(seed, step, rank)
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(number)


def has_random_layers(model: nn.Module) -> bool:
    """Return True if a module in train mode has a drop rate above 0 (dropout, DropPath).

    Checks the attributes `p`, `drop_prob`, `drop_rate` and `dropout`, so that functional dropout in
    a module is found too. Returns True when in doubt, which costs a microsecond per step.
    """
    return any(
        module.training and (_has_rate(module) or isinstance(module, nn.RReLU))
        for module in model.modules()
    )


def capture_random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Copy the states of torch, CUDA, NumPy and Python, as tensors and as JSON values."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, numbers, next_gauss = random.getstate()
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.tensor(np.asarray(keys, dtype=np.int64)),
        "python": torch.tensor(numbers, dtype=torch.int64),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda.{index}": state for index, state in enumerate(states)}
    values = {
        "numpy": [kind, position, has_gauss, gauss],
        "python": [version, next_gauss],
    }
    return tensors, values


def restore_random_state(tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore the result of `capture_random_state`; missing CUDA devices are skipped."""
    torch.set_rng_state(tensors["torch"])
    kind, position, has_gauss, gauss = values["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, gauss))
    version, next_gauss = values["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), next_gauss))
    for index in range(torch.cuda.device_count()):
        if f"cuda.{index}" in tensors:
            torch.cuda.set_rng_state(tensors[f"cuda.{index}"], index)


@contextmanager
def use_deterministic(is_on: bool = True) -> Iterator[list[str]]:
    """Use deterministic kernels within the block, and collect the operations that have none.

    Yields a list to which such operations are added once as they run. Other warnings are shown as
    before. If set before CUDA starts, cuBLAS is deterministic, too.
    """
    operations: list[str] = []
    if not is_on:
        yield operations
        return
    before, of_compiler = torch.get_deterministic_debug_mode(), os.environ.get(_INDUCTOR)
    cudnn = torch.backends.cudnn
    was_benchmark, was_deterministic = cudnn.benchmark, cudnn.deterministic
    os.environ.setdefault(_CUBLAS, ":4096:8")
    with warnings.catch_warnings():
        show = warnings.showwarning

        def collect(message: Warning | str, *where: Any, **more: Any) -> None:
            text = str(message)
            if not re.match(_NOT_DETERMINISTIC, text):
                show(message, *where, **more)
            elif (name := text.split(" does not have")[0].strip()) not in operations:
                operations.append(name)

        warnings.filterwarnings("always", message=_NOT_DETERMINISTIC)
        warnings.showwarning = collect
        _set_deterministic(_WARN)
        os.environ[_INDUCTOR] = "1"
        cudnn.benchmark, cudnn.deterministic = False, True
        try:
            yield operations
        finally:
            _set_deterministic(before)
            os.environ.pop(_INDUCTOR, None)
            if of_compiler is not None:
                os.environ[_INDUCTOR] = of_compiler
            cudnn.benchmark, cudnn.deterministic = was_benchmark, was_deterministic


def _set_deterministic(mode: int) -> None:
    """Set how torch treats operations that have no deterministic kernel, as a debug mode.

    `torch.use_deterministic_algorithms` imports the compiler, 2.4 s of CPU time, to set an option
    of it. If it is not imported yet, it reads the option from the environment.
    """
    if "torch._inductor" in sys.modules:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == _WARN)
    else:
        torch.set_deterministic_debug_mode(mode)


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _has_rate(module: nn.Module) -> bool:
    return any(
        isinstance(value, (int, float)) and value > 0
        for name, value in vars(module).items()
        if _RATES.fullmatch(name)
    )


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the random states after the block, so that training draws the same numbers."""
    tensors, values = capture_random_state()
    try:
        yield
    finally:
        restore_random_state(tensors, values)

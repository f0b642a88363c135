"""Compiled code with cold caches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from stepladder.config.recipe import DeviceConfig
from stepladder.machine.compiler import compiler_missing
from stepladder.measuring.blocks import cold
from stepladder.measuring.blocks.cold import cold_compiler, compiler_start_s
from stepladder.measuring.blocks.timing import seconds_of

CPU = torch.device("cpu")
COMPILED = DeviceConfig(compile=True)
has_compiler = pytest.mark.skipif(
    compiler_missing("cpu") is not None, reason="no C++ compiler on this machine"
)


def number_of_built(folder: Path) -> int:
    return len(list(folder.rglob("*.so")))


def folders() -> list[str | None]:
    return [os.environ.get(name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")]


def double_sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@pytest.mark.thorough
@has_compiler
@pytest.mark.usefixtures("vector_instructions")
def test_each_block_compiles_its_code_again(tmp_path: Path) -> None:
    before = folders()
    for name in ("first", "second"):
        with cold_compiler(COMPILED, tmp_path / name, CPU):
            torch.compile(double_sine)(torch.ones(8))
        assert number_of_built(tmp_path / name) > 0
    assert folders() == before


@pytest.mark.thorough
@has_compiler
@pytest.mark.usefixtures("vector_instructions")
def test_a_folder_with_a_space_in_its_name_does_not_stop_the_compiler(tmp_path: Path) -> None:
    with cold_compiler(COMPILED, tmp_path / "my runs", CPU):
        assert torch.compile(double_sine)(torch.zeros(8)).sum() == 0


@pytest.mark.thorough
@has_compiler
@pytest.mark.usefixtures("vector_instructions")
def test_what_a_process_does_once_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    took_s: list[float] = []
    num_built: list[int] = []

    def timed(function: Callable[[], object], device: torch.device) -> float:
        took_s.append(seconds_of(function, device))
        num_built.append(number_of_built(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])))
        return took_s[-1]

    monkeypatch.setattr(cold, "seconds_of", timed)
    compiler_start_s.cache_clear()
    first = compiler_start_s(CPU)
    assert first == max(0.0, took_s[0] - took_s[1])
    assert min(num_built) > 0, "both compile their code again"
    assert compiler_start_s(CPU) == first
    assert len(took_s) == 2, "the second call timed nothing"


def test_where_nothing_is_compiled_the_caches_stay(tmp_path: Path) -> None:
    before = folders()
    with cold_compiler(DeviceConfig(), tmp_path, CPU):
        assert folders() == before

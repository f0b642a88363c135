from __future__ import annotations

import pytest

from stepladder.machine.compiler import compiler_missing


def test_the_compiler_that_the_environment_names_is_the_one_that_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "/bin/sh")
    assert compiler_missing("cpu") is None
    monkeypatch.setenv("CXX", "/no/such/compiler")
    assert compiler_missing("cpu") == "a C++ compiler (/no/such/compiler)"
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    assert compiler_missing("cpu") == "a C++ compiler (g++)"


def test_cuda_takes_triton_and_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert compiler_missing("cuda") in {"the package triton", "a C compiler"}

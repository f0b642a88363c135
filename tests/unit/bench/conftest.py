"""Benchmarks as modules, and where their results go."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts be imported as they import each other."""
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.fixture
def module(bench: None) -> Callable[[str], ModuleType]:
    """Give the function that imports a script."""
    return importlib.import_module


@pytest.fixture
def results(
    module: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Let results be written into a folder of the test."""
    folder = tmp_path / "results"
    monkeypatch.setattr(module("measure"), "RESULTS", folder)
    return folder

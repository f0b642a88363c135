from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_run() -> Callable[..., Path]:
    """Return the builder of run folders, which other packages' tests also load from its file."""
    return _builder("run_builder", "build_run")


@pytest.fixture(scope="session")
def build_climb() -> Callable[..., Path]:
    """Return the builder of a climb's files, with those of a run or alone."""
    return _builder("climb_builder", "build_climb")


def _builder(file: str, function: str) -> Callable[..., Path]:
    spec = importlib.util.spec_from_file_location(file, Path(__file__).with_name(f"{file}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    builder: Callable[..., Path] = getattr(module, function)
    return builder

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def build_run() -> Callable[..., Path]:
    """Give the builder of run folders, which tests of other rooms load from its file as well."""
    spec = importlib.util.spec_from_file_location(
        "run_builder", Path(__file__).with_name("run_builder.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    builder: Callable[..., Path] = module.build_run
    return builder

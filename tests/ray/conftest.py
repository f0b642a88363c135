"""Tests that start a Ray of their own, which takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all of them to `make test-distributed`."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker("distributed")

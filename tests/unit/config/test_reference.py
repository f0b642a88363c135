"""docs/config.md matches the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.config.reference import page
from stepladder.config.schema import options


@pytest.fixture(name="text", scope="module")
def _text() -> str:
    return page()


def test_the_page_of_options_is_up_to_date(text: str) -> None:
    written = Path(__file__).parents[3] / "docs" / "config.md"
    again = "python -m stepladder.config.reference > docs/config.md"
    assert written.read_text(encoding="utf-8") == text, again


def test_every_option_has_one_row(text: str) -> None:
    for key in options():
        assert text.count(f"| `{key}` |") == 1

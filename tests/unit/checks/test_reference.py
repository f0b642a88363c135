"""docs/checks.md matches the code."""

from __future__ import annotations

from pathlib import Path

from stepladder.checks.order import CHECKS
from stepladder.checks.reference import page

PAGE = Path(__file__).parents[3] / "docs" / "checks.md"


def test_the_page_is_written_from_the_code() -> None:
    again = "write it again: python -m stepladder.checks.reference > docs/checks.md"
    assert PAGE.read_text(encoding="utf-8") == page(), again


def test_every_check_says_what_it_does_and_fires_on() -> None:
    text = page()
    for check in CHECKS:
        section = text.partition(f"## {check.name}\n")[2].partition("\n## ")[0]
        assert "It must fire on: \n" not in section, check.name
        assert len(section.partition("- Why")[0].strip()) > 20, check.name

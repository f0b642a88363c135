"""Laws for user-facing text: percentages have one spelling in all packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import stepladder

PACKAGE = Path(stepladder.__file__).parent
ROOMS = (
    "training",
    "measuring",
    "checks",
    "diagnosis",
    "rungs",
    "ladder",
    "watching",
    "reporting",
    "api",
    "cli",
)
FILES = sorted(file for room in ROOMS for file in (PACKAGE / room).rglob("*.py"))
WITHOUT_SPACE = re.compile(r"\d%(?!\")")  # before a quote it is an HTML attribute


def glued(source: str) -> Iterator[str]:
    """Yield text with or for `12%`: words, formats such as `.1%`, a sign after a value."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and WITHOUT_SPACE.search(str(node.value)):
            yield f"line {node.lineno}: {str(node.value)[:60]}"
        elif isinstance(node, ast.JoinedStr):
            for before, part in pairwise(node.values):
                sign = str(part.value) if isinstance(part, ast.Constant) else ""
                if isinstance(before, ast.FormattedValue) and sign.startswith("%"):
                    yield f"line {node.lineno}: {ast.unparse(node)[:60]}"


def test_a_percentage_is_written_with_a_space() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}: {words}"
        for file in FILES
        for words in glued(file.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_what_is_glued_is_seen() -> None:
    assert len(list(glued('a = f"{x:.1%} of it"'))) == 1
    assert len(list(glued('a = f"{x:.1f}% of it"'))) == 1
    assert len(list(glued('a = "at most 12% of it"'))) == 1
    assert list(glued('a = f"{100 * x:.1f} % of it"; b = \'width="100%"\'')) == []

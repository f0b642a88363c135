"""Laws for docs/fifty_faults.md: its names and commands exist in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import stepladder
from stepladder.records.faults import FAULTS, Eyes

PAGE = Path(__file__).parents[2] / "docs" / "fifty_faults.md"
DIAGNOSIS = Path(stepladder.__file__).parent / "diagnosis"
LOOKED_FOR_BY = {fault.name: {eyes.value for eyes in fault.eyes} for fault in FAULTS}
NOTHING = "–"
LEAST_COVERED = 40


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault of the page; `gap` is the part that is not covered."""

    number: int
    title: str
    names: tuple[str, ...]
    commands: tuple[str, ...]
    gap: str

    @property
    def cover(self) -> str:
        if not self.names:
            return "not"
        return "full" if self.gap == NOTHING else "part"


def rows(text: str) -> list[Row]:
    lines = [line for line in text.splitlines() if re.match(r"\| *\d", line)]
    return [row_of([cell.strip() for cell in line.strip("|").split("|")]) for line in lines]


def row_of(cells: list[str]) -> Row:
    number, title, names, commands, gap = cells
    return Row(
        number=int(number),
        title=title,
        names=tuple(re.findall(r"`([^`]+)`", names)),
        commands=() if commands == NOTHING else tuple(commands.split(", ")),
        gap=gap,
    )


TEXT = PAGE.read_text(encoding="utf-8")
ROWS = rows(TEXT)
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))


def test_there_are_fifty_numbered_from_one() -> None:
    assert [row.number for row in ROWS] == list(range(1, 51))
    assert len({row.title for row in ROWS}) == len(ROWS)


@EACH
def test_every_name_is_a_fault_of_ours(row: Row) -> None:
    assert set(row.names) <= set(LOOKED_FOR_BY)
    assert len(set(row.names)) == len(row.names)


@EACH
def test_every_command_checks_one_of_its_names(row: Row) -> None:
    can_tell = {command for name in row.names for command in LOOKED_FOR_BY[name]}
    assert set(row.commands) <= can_tell
    assert len(set(row.commands)) == len(row.commands)


@EACH
def test_every_name_is_checked_by_one_of_its_commands(row: Row) -> None:
    for name in row.names:
        assert LOOKED_FOR_BY[name] & set(row.commands), name


@EACH
def test_what_no_command_reports_has_its_reason(row: Row) -> None:
    assert bool(row.names) == bool(row.commands)
    assert row.names or row.gap != NOTHING
    assert row.gap


def test_the_last_line_counts_the_rows() -> None:
    covers = [row.cover for row in ROWS]
    full, part, none = (covers.count(cover) for cover in ("full", "part", "not"))
    assert TEXT.rstrip().splitlines()[-1] == (
        f"Fully covered: {full}. Partly: {part}. Not: {none}."
    )
    assert full >= LEAST_COVERED


def told_in(file: Path) -> Iterator[str]:
    """Yield the fault names in a file's findings."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            given = {word.arg: word.value for word in node.keywords}
            if isinstance(name := given.get("fault"), ast.Constant):
                yield str(name.value)


@pytest.mark.parametrize("eyes", [Eyes.DIAGNOSE, Eyes.AUDIT])
def test_diagnose_and_audit_report_what_the_list_of_faults_says(eyes: Eyes) -> None:
    files = sorted(DIAGNOSIS.rglob("*.py"))
    own = [file for file in files if (file.parent.name == "audit") is (eyes is Eyes.AUDIT)]
    told = {name for file in own for name in told_in(file)}
    assert told, "no finding has a name"
    assert told == {fault.name for fault in FAULTS if eyes in fault.eyes}

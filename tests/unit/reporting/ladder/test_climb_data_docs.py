"""docs/run-folder.md names every key of trials.jsonl and climb.json, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from stepladder.records.climb import Baseline, ClimbSummary, NextStep, Result
from stepladder.records.ladder import Prediction, Trial, Verdict
from stepladder.records.profile import TrainingTime

PAGE = (Path(__file__).parents[4] / "docs/run-folder.md").read_text(encoding="utf-8")


def first_cells(after: str) -> set[str]:
    """Return the keys in the first column of the first table after some words."""
    table = PAGE.partition(after)[2].partition("|---|---|\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("record", "after"),
    [
        (TrainingTime, "**time**"),
        (Prediction, "**prediction**\n"),
        (Trial, "**trial**\n"),
        (Verdict, "**verdict**"),
        (ClimbSummary, "## climb.json"),
    ],
)
def test_the_documented_keys_are_those_of_the_record(record: type, after: str) -> None:
    assert first_cells(after) == {field.name for field in fields(record)}


@pytest.mark.parametrize(
    ("record", "key"), [(Baseline, "baseline"), (Result, "result"), (NextStep, "next")]
)
def test_the_parts_of_climb_json_are_documented_too(record: type, key: str) -> None:
    section = PAGE.partition("## climb.json")[2]
    line = next(line for line in section.splitlines() if line.startswith(f"| `{key}` |"))
    named = set(re.findall(r"`(\w+)`", line.split("|")[2]))
    assert named == {field.name for field in fields(record)}

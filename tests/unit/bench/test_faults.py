"""The programs that checks and detectors are judged by, and how hits are counted."""

from __future__ import annotations

import ast
import difflib
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepladder.records.faults import FAULTS, Eyes

Import = Callable[[str], ModuleType]
BENCH = Path(__file__).parents[3] / "bench"
DEVELOPMENT = BENCH / "faults" / "development"
SOUND = BENCH / "sound"
EYES = {fault.name: fault.eyes for fault in FAULTS}
EYE_OF_KIND = {"script": Eyes.WATCH, "task": Eyes.CHECK}
NOT_SHOWN = {
    "no_room_for_checkpoints": "a fault of the disk, not of a program",
    "machine_limit": "a fault of the machine, not of a program",
}
MAX_CHANGED_LINES = 8


def entries(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "index.json").read_text())
    return found


def changed_lines(a: Path, b: Path) -> int:
    """Count the lines of one half that the other lacks; the longer count of the two."""
    lines = difflib.unified_diff(a.read_text().split("\n"), b.read_text().split("\n"), n=0)
    marks = [line[0] for line in lines if line[:3] not in ("---", "+++")]
    return max(marks.count("-"), marks.count("+"))


def test_every_fault_that_a_program_can_show_is_shown() -> None:
    listed = entries(DEVELOPMENT)
    assert len(listed) >= 45
    assert len({entry["name"] for entry in listed}) == len(listed)
    wanted = {name for name, eyes in EYES.items() if set(eyes) != {Eyes.DIAGNOSE}}
    assert {entry["fault"] for entry in listed} == wanted - set(NOT_SHOWN)
    both = {
        entry["fault"]
        for entry in listed
        if {other["kind"] for other in listed if other["fault"] == entry["fault"]} == {*EYE_OF_KIND}
    }
    assert len(both) >= 10, "faults that are shown to watch and to check"


def test_the_index_and_the_folders_agree() -> None:
    folders = {path.name for path in DEVELOPMENT.iterdir() if (path / "buggy.py").exists()}
    assert folders == {entry["name"] for entry in entries(DEVELOPMENT)}


@pytest.mark.parametrize("entry", entries(DEVELOPMENT), ids=lambda entry: entry["name"])
def test_a_pair_differs_where_its_fault_is_alone(entry: dict[str, Any]) -> None:
    assert EYE_OF_KIND[entry["kind"]] in EYES[entry["fault"]], "this fault is looked for elsewhere"
    buggy, correct = (DEVELOPMENT / entry["name"] / f"{half}.py" for half in ("buggy", "correct"))
    num_changed = changed_lines(buggy, correct)
    if num_changed == 0:
        assert entry["buggy_args"] != entry["correct_args"], "both halves are the same"
    assert num_changed <= MAX_CHANGED_LINES
    for path in (buggy, correct):
        names = {node.name for node in ast.parse(path.read_text()).body if has_name(node)}
        assert entry.get("task") is None or entry["task"] in names
        assert entry["fault"] not in path.read_text(), "a program does not say what is wrong"


def has_name(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef | ast.FunctionDef)


def test_sound_programs_are_of_ten_kinds_and_sixty_command_lines() -> None:
    listed = entries(SOUND)
    assert len({entry["name"] for entry in listed}) == len(listed) >= 60
    command_lines = {(entry["program"], *entry["args"]) for entry in listed}
    assert len(command_lines) == len(listed), "a command line is there twice"
    files = {path.name for path in SOUND.glob("*.py")}
    assert files == {entry["program"] for entry in listed}
    assert len(files) >= 10
    for entry in listed:
        text = (SOUND / entry["program"]).read_text()
        for word in entry["args"]:
            assert not word.startswith("--") or f'"{word}"' in text, "no such argument"


def test_programs_of_both_corpora_are_read(module: Import) -> None:
    corpus = module("faults.corpus")
    development, sound = corpus.programs("development"), corpus.programs("sound")
    assert len(development) == 2 * len(entries(DEVELOPMENT))
    assert len(sound) == len(entries(SOUND))
    assert all(program.path.exists() for program in (*development, *sound))
    only = corpus.programs("development", ["sgd_lr_typo"])
    assert [str(program.half) for program in only] == ["buggy", "correct"]
    command = corpus.programs("sound", ["mlp_1"])[0].command(Path("out"))
    assert command[-5:] == ["1", "--optimizer", "sgd", "--clip", "5.0"]
    assert "--" in command


# Newcombe 1998, "Two-sided confidence intervals for the single proportion", Statistics in Medicine
# 17, Table I, method 5; and, where all or none were counted, (0.025)^(1/n).
@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (1, 29, 0.0009, 0.1776),
        (0, 20, 0.0, 0.1684),
        (63, 63, 0.025 ** (1 / 63), 1.0),
        (0, 1, 0.0, 0.975),
    ],
)
def test_intervals_are_the_published_ones(
    module: Import, k: int, n: int, low: float, high: float
) -> None:
    assert module("faults.intervals").clopper_pearson(k, n) == pytest.approx((low, high), abs=5e-5)


def test_no_true_share_is_covered_less_often_than_said(module: Import) -> None:
    clopper_pearson = module("faults.intervals").clopper_pearson
    n = 12
    bounds = [clopper_pearson(k, n, confidence=0.9) for k in range(n + 1)]
    for share in (0.03, 0.2, 0.5, 0.77, 0.95):
        covered = math.fsum(
            math.comb(n, k) * share**k * (1 - share) ** (n - k)
            for k, (low, high) in enumerate(bounds)
            if low <= share <= high
        )
        assert covered >= 0.9


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_what_is_no_share_is_refused(module: Import, k: int, n: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        module("faults.intervals").clopper_pearson(k, n)


def test_a_loss_falls_from_its_first_tenth_to_its_last(module: Import) -> None:
    ends = module("faults.look").ends
    assert ends([3.0, 5.0, *[0.0] * 16, 1.0, 2.0]) == (4.0, 1.5)
    assert ends([1.0] * 9) == (None, None), "too short for a tenth"
    assert ends([1.0] * 19 + [math.nan]) == (1.0, None)


def record(half: str, by: str, **more: Any) -> dict[str, Any]:
    plain = {"name": "pair", "half": half, "by": by, "fault": "label_range", "error": None}
    return {**plain, **more}


def alarm(outcome: str, fault: str) -> dict[str, Any]:
    return {"check": fault, "outcome": outcome, "fault": fault}


@pytest.fixture
def looked_at() -> list[dict[str, Any]]:
    return [
        record("buggy", "stepladder", alarms=[alarm("warned", "unnormalised_input")], told=[]),
        record("correct", "stepladder", alarms=[alarm("failed", "no_shuffle")]),
        record("buggy", "loss", fell=False),
        record("correct", "loss", fell=True),
    ]


def test_another_fault_by_name_is_no_hit(module: Import, looked_at: list[dict[str, Any]]) -> None:
    hits = module("hits")
    (row,) = hits.pairs(looked_at)
    assert not row["is_caught"]
    assert row["said"] == ["unnormalised_input"]
    assert row["errors"] == ["no_shuffle"]
    assert row["warnings"] == []
    looked_at[0]["told"].append("label_range")
    (row,) = hits.pairs(looked_at)
    assert not row["is_caught"], "what is told without an alarm is no hit either"
    assert row["is_told"]
    looked_at[0]["alarms"].append(alarm("warned", "label_range"))
    assert hits.pairs(looked_at)[0]["is_caught"]


def test_a_page_names_what_was_missed_and_accused(
    module: Import, looked_at: list[dict[str, Any]]
) -> None:
    hits = module("hits")
    rows = hits.pairs(looked_at)
    text = hits.page({"development": {"rows": rows, "environment": {}}})
    assert "pair (said: unnormalised_input)" in text
    assert "0 of 1 (0 %; 0.0 to 97.5 %)" in text
    assert "1 of 1 (100 %; 2.5 to 100.0 %)" in text, "an error on the correct half"
    assert hits.TITLES["sound"] not in text, "what was not measured has no table"


def test_the_page_is_what_the_results_give(module: Import) -> None:
    hits = module("hits")
    assert hits.PAGE.read_text() == hits.page(hits.written_results())


def test_one_pair_for_real(module: Import) -> None:
    """Under watch: the buggy half is caught by name, the correct one is not accused."""
    corpus, look = module("faults.corpus"), module("faults.look")
    programs = corpus.programs("development", ["tabular_cleared_too_early"])
    found = {str(program.half): look.look(program, timeout_s=120) for program in programs}
    assert found["buggy"]["error"] is None
    assert found["correct"]["error"] is None
    assert "zero_grad_before_step" in {one["fault"] for one in found["buggy"]["alarms"]}
    assert "failed" not in {one["outcome"] for one in found["correct"]["alarms"]}
    (correct,) = [program for program in programs if program.half == corpus.Half.CORRECT]
    assert look.trace(correct, timeout_s=120)["fell"]


def test_a_run_that_fails_is_accused_by_its_loss(module: Import, tmp_path: Path) -> None:
    corpus, look = module("faults.corpus"), module("faults.look")
    path = tmp_path / "broken.py"
    path.write_text("raise SystemExit(3)\n")
    program = corpus.Program(
        name="broken",
        half=corpus.Half.BUGGY,
        fault="label_range",
        kind=corpus.Kind.SCRIPT,
        path=path,
        task=None,
        args=(),
    )
    traced = look.trace(program, timeout_s=120)
    assert (traced["code"], traced["fell"], traced["num_losses"]) == (3, False, 0)


def test_the_newest_record_of_a_run_counts(module: Import, tmp_path: Path) -> None:
    log = module("log").Log(tmp_path / "log.jsonl")
    for alarms in ([], [alarm("failed", "label_range")]):
        log.add(record("buggy", "stepladder", alarms=alarms))
    key = {"name": "pair", "half": "buggy", "by": "stepladder"}
    assert len(module("hits").newest(log, key)["alarms"]) == 1
    assert module("hits").newest(log, {**key, "half": "correct"}) is None

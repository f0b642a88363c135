from __future__ import annotations

import json
import platform
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from stepladder.records.ladder import Decision

Import = Callable[[str], ModuleType]


def test_what_was_measured_is_found_by_another_process(module: Import, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = module("log").Log(path)
    first.add({"contender": "a", "round": 0, "seconds": 2.5})
    first.add({"contender": "a", "round": 1, "seconds": 3.5})
    again = module("log").Log(path)
    assert again.find(contender="a", round=1)["seconds"] == 3.5
    assert again.find(contender="a", round=2) is None
    assert [record["round"] for record in again.records] == [0, 1]


def test_the_machine_is_written_once_before_the_first_record(
    module: Import, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    log = module("log").Log(path)
    assert log.environment == module("log").UNKNOWN
    log.add({"round": 0})
    log.add({"round": 1})
    lines = module("log").Log(path).lines
    assert [set(line) for line in lines] == [{"environment"}, {"round"}, {"round"}]
    assert log.environment == lines[0]["environment"]
    assert log.environment["python"] == platform.python_version()


def test_a_line_that_a_kill_left_torn_costs_no_other(module: Import, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"round": 0}\n{"round": 1, "seco')
    module("log").Log(path).add({"round": 2})
    assert [record["round"] for record in module("log").Log(path).records] == [0, 2]


def test_rounds_go_into_the_json_and_not_into_the_table(module: Import, results: Path) -> None:
    module("rows").write_rows(
        "tried",
        [{"gain": 2.0}],
        note="Two of two.",
        rounds=[{"gain_of_round": float("nan"), "decision": Decision.KEPT}, {"gain_of_round": 2.0}],
        place={"python": "3.0"},
    )
    written = json.loads((results / "tried.json").read_text())
    assert written["rounds"] == [
        {"gain_of_round": "nan", "decision": "kept"},
        {"gain_of_round": 2.0},
    ]
    assert written["environment"] == {"python": "3.0"}, "what was measured, not what writes"
    table = (results / "tried.md").read_text()
    assert "gain_of_round" not in table
    assert "- python: 3.0" in table


def test_without_a_place_the_machine_of_this_moment_is_named(module: Import, results: Path) -> None:
    module("rows").write_rows("tried", [{"gain": 2.0}], note="")
    written = json.loads((results / "tried.json").read_text())
    assert written["environment"]["python"] == platform.python_version()
    assert "rounds" not in written


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
def test_cold_caches_name_folders_that_are_not_there(
    module: Import, tmp_path: Path, name: str
) -> None:
    folder = Path(module("measure").cold_caches(tmp_path)[name])
    assert folder.is_relative_to(tmp_path)
    assert not folder.exists()

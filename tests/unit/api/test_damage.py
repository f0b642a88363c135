"""Damage in stores, runs, checks and watch reports is reported; intact ones raise no error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepladder.api.damage import repair, verify
from stepladder.cli.main import main
from stepladder.data.store.manifest import mend
from stepladder.errors import DataError, UsageError
from stepladder.records import write_json
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.records.watch import WatchReport

FINDING = Finding(check="labels", outcome=Outcome.PASSED, evidence="from 0 to 1")
CHECKS = CheckReport(tier="fast", key="k", findings=(FINDING,), took_s=0.1)
WATCHED = WatchReport(script="train.py", findings=(FINDING,), is_complete=True, exit_code=0)


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    folder = tmp_path / "watch-train"
    folder.mkdir()
    write_json(folder / "watch.json", WATCHED)
    return folder


@pytest.fixture
def checked(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    write_json(folder / "checks.json", CHECKS)
    return folder


def test_a_watch_report_is_sound(watched: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(watched)]) == 0
    assert capsys.readouterr().out == f"{watched}: no damage found\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"script": "train.py", "findings": [{"che', "watch.json"),
        ('{"args": []}', "script: the key is missing"),
        ('{"script": 3}', "script"),
        ("", "watch.json"),
    ],
)
def test_half_a_watch_report_is_damage(
    text: str, said: str, watched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (watched / "watch.json").write_text(text)
    assert main(["verify", str(watched), "--json"]) == 3
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem.startswith(str(watched / "watch.json"))
    assert said in problem


def test_a_job_that_was_only_checked_is_not_a_stranger(checked: Path) -> None:
    assert verify(checked) == []
    (checked / "checks.json").write_text('{"tier": "fast"}')
    (problem,) = verify(checked)
    assert "key: the key is missing" in problem


def test_each_damaged_file_of_a_run_is_reported(checked: Path) -> None:
    (checked / "events.jsonl").write_text("")
    (checked / "diagnosis.json").write_text('{"run": 1}')
    (checked / "summary.json").write_text('{"status": ')
    told = verify(checked)
    assert [Path(problem.partition(":")[0]).name for problem in told] == [
        "diagnosis.json",
        "summary.json",
    ]


def test_a_key_of_a_later_version_is_not_damage(watched: Path) -> None:
    value = json.loads((watched / "watch.json").read_text())
    (watched / "watch.json").write_text(json.dumps(value | {"later": 1}))
    assert verify(watched) == []


def test_any_other_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"this is not the folder of a run[\s\S]* Or use a store, written by"
    ):
        verify(tmp_path)
    with pytest.raises(DataError, match="the folder does not exist"):
        verify(tmp_path / "gone")


def test_a_store_in_an_object_store_is_not_repaired_in_place() -> None:
    with pytest.raises(UsageError, match=r"s3://photos/store: .*[\s\S]*--overwrite"):
        repair("s3://photos/store")
    assert "--repair" not in mend(Path("s3://photos/store"))

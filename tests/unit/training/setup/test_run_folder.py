"""Run folders: opened with care, and emptied only of what is a run's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepladder.errors import UsageError
from stepladder.reporting.ladder.climb_data import read_climb
from stepladder.training.setup.run_folder import RunFolder

OWN_FILES = (
    "env.json",
    "events.jsonl",
    "events.discarded.jsonl",
    "summary.json",
    "predictions.csv",
    "report.html",
    "mlflow.json",
    "thumbs/00.jpg",
    "thumbs/thumbs.json",
    "tensorboard/events.out.tfevents.1.host",
)


def fill(path: Path) -> None:
    """Make the folder one of a finished run."""
    folder = RunFolder(path)
    folder.write_config("seed: 1\n")
    for name in OWN_FILES:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("old")
    checkpoints = folder.checkpoints(keep_last=2)
    tensors = {"model": {"w": torch.ones(2)}}
    for name in ("step-000000001", "best-000000001"):
        checkpoints.save(name, tensors, {}, {"f": torch.ones(2)})
    (path / "checkpoints" / ".step-000000002.77.tmp").mkdir()
    (path / ".summary.json.77.tmp").write_text("half")


def names(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def test_a_new_folder_is_made_with_its_parents_and_holds_no_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "b")
    assert folder.path.is_dir()
    assert not folder.holds_run
    assert names(folder.path) == []
    assert RunFolder(folder.path).compare_config("seed: 1") == []


def test_a_folder_with_a_run_is_found_to_hold_it(tmp_path: Path) -> None:
    fill(tmp_path)
    assert RunFolder(tmp_path).holds_run


@pytest.mark.parametrize("left", [["config"], ["lock", "config"], ["lock", "env.json"]], ids=str)
def test_a_run_killed_at_its_start_can_go_on(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        if name == "config":
            RunFolder(tmp_path).write_config("seed: 1\n")
        else:
            (tmp_path / name).write_text("{}")
    assert RunFolder(tmp_path).holds_run


def test_a_lock_alone_is_no_run_and_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("{}")
    assert not RunFolder(tmp_path).holds_run


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "thumbs/", "events.jsonl"])
def test_a_file_of_another_is_never_replaced(tmp_path: Path, name: str) -> None:
    if name.endswith("/"):
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_text("mine")
    before = names(tmp_path)
    with pytest.raises(UsageError, match=name.rstrip("/")):
        RunFolder(tmp_path)
    assert names(tmp_path) == before


def test_a_config_of_another_is_not_taken_for_a_run(tmp_path: Path) -> None:
    for name in ("config.yaml", "lock", "report.html"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"report\.html|config\.yaml"):
        RunFolder(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="this is a file"):
        RunFolder(tmp_path / "run")


def test_a_place_in_an_object_store_is_refused_with_what_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"--run\.mirror s3://bucket/run\."):
        RunFolder(Path("s3://bucket/run"))
    assert list(tmp_path.iterdir()) == []


def test_overwrite_removes_the_run_and_only_the_run(tmp_path: Path) -> None:
    fill(tmp_path)
    mine = ("notes.txt", "checkpoints/step-mine", "thumbs/cat.png", ".hidden.1.tmp")
    for name in mine:
        (tmp_path / name).write_text("mine")
    folder = RunFolder(tmp_path)
    with folder.lock():
        folder.overwrite()
    assert names(tmp_path) == sorted(["checkpoints", "thumbs", *mine])
    assert not folder.holds_run


def test_overwrite_of_a_run_without_foreign_files_leaves_an_empty_folder(tmp_path: Path) -> None:
    fill(tmp_path)
    RunFolder(tmp_path).overwrite()
    assert names(tmp_path) == []


@pytest.mark.parametrize("keeps_ledger", [False, True])
def test_overwrite_leaves_no_climb_that_tells_of_the_training_before(
    tmp_path: Path, keeps_ledger: bool
) -> None:
    fill(tmp_path)
    (tmp_path / "trials.earlier.jsonl").write_text("older\n")
    (tmp_path / "trials.jsonl").write_text("old\n")
    (tmp_path / "climb.json").write_text("{}")
    RunFolder(tmp_path).overwrite(keeps_ledger=keeps_ledger)
    if keeps_ledger:
        assert names(tmp_path) == ["trials.earlier.jsonl", "trials.jsonl"]
        assert (tmp_path / "trials.jsonl").read_text() == "old\n"
    else:
        assert names(tmp_path) == ["trials.earlier.jsonl"]
        assert (tmp_path / "trials.earlier.jsonl").read_text() == "older\nold\n"
        assert read_climb(tmp_path, []) is None, "a report shows no ladder"


def test_overwrite_of_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(UsageError, match=r"photo\.jpg"):
        RunFolder(tmp_path).overwrite()
    assert names(tmp_path) == ["photo.jpg"]


def test_overwrite_of_nothing_is_no_error(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").overwrite()


@pytest.mark.parametrize("name", ["checkpoints", "thumbs"])
def test_overwrite_follows_no_link(tmp_path: Path, name: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    fill(run)
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    before = names(elsewhere)
    with pytest.raises(UsageError, match="leads elsewhere"):
        RunFolder(run).overwrite()
    assert names(elsewhere) == before
    assert (run / "config.yaml").exists()


def test_overwrite_unlinks_a_link_in_place_of_a_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fill(run)
    (tmp_path / "precious.csv").write_text("mine")
    (run / "predictions.csv").unlink()
    (run / "predictions.csv").symlink_to(tmp_path / "precious.csv")
    (run / "checkpoints" / "step-000000009").symlink_to(tmp_path)
    RunFolder(run).overwrite()
    assert names(run) == []
    assert (tmp_path / "precious.csv").read_text() == "mine"


def test_a_folder_of_other_folders_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    with pytest.raises(UsageError, match="holds the folder cats"):
        RunFolder(tmp_path / "photos")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.log").write_text("a job's output")
    (tmp_path / "run" / ".hidden").mkdir()
    RunFolder(tmp_path / "run")


def test_the_report_of_a_climb_that_has_not_come_to_its_training_is_no_obstacle(
    tmp_path: Path,
) -> None:
    (tmp_path / "report.html").write_text("a page")
    with pytest.raises(UsageError, match=r"report\.html"):
        RunFolder(tmp_path)
    (tmp_path / "trials.jsonl").write_text("{}\n")
    assert not RunFolder(tmp_path).holds_run
    (tmp_path / "summary.json").write_text("mine")
    with pytest.raises(UsageError, match=r"summary\.json"):
        RunFolder(tmp_path)

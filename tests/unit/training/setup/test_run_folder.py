"""Run folders: opened with care, and only a run's own files are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.config.choices import OptimizerName, ScheduleKind
from stepladder.config.options import JobConfig
from stepladder.config.schema import build, options
from stepladder.config.show import dump_job
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
    """Fill a folder with the files of a finished run."""
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


@pytest.mark.parametrize("left", [["config"], ["lock", "config"], ["lock", "env.json"]], ids=str)
def test_a_run_killed_at_its_start_can_resume(tmp_path: Path, left: list[str]) -> None:
    for name in left:
        if name == "config":
            RunFolder(tmp_path).write_config("seed: 1\n")
        else:
            (tmp_path / name).write_text("{}")
    assert RunFolder(tmp_path).holds_run


def test_a_lock_alone_is_not_a_run_and_no_obstacle(tmp_path: Path) -> None:
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
def test_overwrite_leaves_no_climb_of_the_training_before(
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


def test_overwrite_of_a_new_folder_keeps_the_logs_of_its_launcher(tmp_path: Path) -> None:
    """Spark and Ray write the job there for the other machines, before rank 0 starts."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.yaml").write_text("recipe:")
    RunFolder(tmp_path).overwrite()
    assert names(tmp_path / "logs") == ["job.yaml"]


def test_overwrite_of_a_folder_that_is_not_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    with pytest.raises(UsageError, match=r"photo\.jpg"):
        RunFolder(tmp_path).overwrite()
    assert names(tmp_path) == ["photo.jpg"]


@pytest.mark.parametrize("name", ["checkpoints", "thumbs"])
def test_overwrite_follows_no_link(tmp_path: Path, name: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    fill(run)
    (run / name).rename(elsewhere)
    (run / name).symlink_to(elsewhere)
    before = names(elsewhere)
    with pytest.raises(UsageError, match="it is a symbolic link"):
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


def test_a_folder_of_other_folders_is_not_a_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    with pytest.raises(UsageError, match="contains another folder, cats"):
        RunFolder(tmp_path / "photos")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "job.log").write_text("a job's output")
    (tmp_path / "run" / ".hidden").mkdir()
    RunFolder(tmp_path / "run")


def test_the_report_of_a_climb_that_has_not_come_to_its_training_is_not_an_obstacle(
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


COSINE: dict[str, Any] = {"schedule.kind": ScheduleKind.COSINE}


def text(values: dict[str, Any] | None = None) -> str:
    return dump_job(build(values or {}, JobConfig()))


def compare(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    folder = RunFolder(tmp_path)
    folder.write_config(text(old))
    return folder.compare_config(text(new))


def test_the_same_config_has_no_differences(tmp_path: Path) -> None:
    assert compare(tmp_path, {}, {}) == []


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("run.log_every", 5, "run.log_every: 50 -> 5"),
        ("run.mlflow_uri", "file:x", "run.mlflow_uri: null -> file:x"),
        ("loader.threads", 3, "loader.threads: auto -> 3"),
        ("device.threads", 2, "device.threads: 0 -> 2"),
        ("schedule.max_epochs", 90, "schedule.max_epochs: 60 -> 90"),
        ("schedule.max_steps", 7, "schedule.max_steps: null -> 7"),
        ("schedule.max_time_s", 1.5, "schedule.max_time_s: null -> 1.5"),
        ("data.store", Path("elsewhere"), "data.store: store -> elsewhere"),
        ("prepare.workers", 4, "prepare.workers: 0 -> 4"),
    ],
)
def test_what_does_not_change_a_step_may_change_and_is_said(
    tmp_path: Path, key: str, value: Any, said: str
) -> None:
    assert compare(tmp_path, {}, {key: value}) == [said]


def test_every_key_that_shapes_a_step_is_refused(tmp_path: Path) -> None:
    changed: dict[str, Any] = {
        "seed": 1,
        "batch.lr": 0.5,
        "optimizer.name": OptimizerName.SGD,
        "model.name": "resnet18",
        "stopping.patience": 9,
        "data.fraction": 0.5,
    }
    for key, value in changed.items():
        with pytest.raises(UsageError, match=key) as caught:
            compare(tmp_path, {}, {key: value})
        assert "--overwrite" in str(caught.value)
        assert "--run.dir" in str(caught.value)


def test_no_more_than_five_changes_are_listed(tmp_path: Path) -> None:
    keys = [key for key, option in options().items() if type(option.value(JobConfig())) is float]
    shaping = [key for key in keys if key.startswith(("batch.", "optimizer.", "augment."))][:7]
    new = dict.fromkeys(shaping, 0.123)
    with pytest.raises(UsageError, match="and 2 more") as caught:
        compare(tmp_path, {}, new)
    assert str(caught.value).count(" -> ") == 5


def test_more_epochs_may_not_bend_a_cosine(tmp_path: Path) -> None:
    longer = {**COSINE, "schedule.max_epochs": 90}
    with pytest.raises(UsageError, match=r"--schedule\.horizon-epochs 60"):
        compare(tmp_path, COSINE, longer)
    said = compare(tmp_path, COSINE, {**longer, "schedule.horizon_epochs": 60})
    assert said == [
        "schedule.max_epochs: 60 -> 90",
        "schedule.horizon_epochs: null -> 60",
    ]
    with pytest.raises(UsageError, match="change the cosine schedule"):
        compare(tmp_path, COSINE, {**COSINE, "schedule.horizon_epochs": 50})


def test_more_steps_may_not_bend_a_cosine_that_falls_over_them(tmp_path: Path) -> None:
    short = {**COSINE, "schedule.max_steps": 100}
    with pytest.raises(UsageError, match="change the cosine schedule") as caught:
        compare(tmp_path, short, {**COSINE, "schedule.max_steps": 200})
    assert "100 steps" in str(caught.value)
    assert "Leave schedule.max_steps" in str(caught.value)


def test_a_key_that_one_version_lacks_is_said_and_accepted(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config(text().replace("  dropout: 0.0\n", "  gone: 3\n"))
    assert sorted(folder.compare_config(text())) == [
        "head.dropout: absent -> 0.0",
        "head.gone: 3 -> absent",
    ]


def test_numbers_compare_as_numbers(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config(text().replace("lr: 0.001", "lr: 1.0e-3"))
    assert folder.compare_config(text()) == []


@pytest.mark.parametrize(
    "bad", ["a: &x [1]\nb: *x", "!!python/object/apply:os.system [ls]", "[1, 2]", "a: 1\na: 2"]
)
def test_a_config_that_is_not_ours_is_refused_with_its_place(tmp_path: Path, bad: str) -> None:
    folder = RunFolder(tmp_path)
    folder.write_config(bad)
    with pytest.raises(UsageError, match=r"config\.yaml:\d"):
        folder.compare_config(text())

"""What may change between two attempts of a run, and what makes it another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import OptimizerName, ScheduleKind
from stepladder.config.options import JobConfig
from stepladder.config.schema import build, options
from stepladder.config.show import dump_job
from stepladder.errors import UsageError
from stepladder.training.setup.run_folder import RunFolder

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
        ("loader.threads", 3, "loader.threads: 0 -> 3"),
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
    with pytest.raises(UsageError, match="bend"):
        compare(tmp_path, COSINE, {**COSINE, "schedule.horizon_epochs": 50})


def test_more_steps_may_not_bend_a_cosine_that_falls_over_them(tmp_path: Path) -> None:
    short = {**COSINE, "schedule.max_steps": 100}
    with pytest.raises(UsageError, match="bend") as caught:
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

"""The key of what checks found: another wherever an option that a check reads is another."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.checks.contract import Tier
from stepladder.checks.examples import Example
from stepladder.checks.job import open_job
from stepladder.checks.order import CHECKS
from stepladder.checks.run import run_checks
from stepladder.config.choices import BaselineAt
from stepladder.config.options import JobConfig, LadderConfig, PrepareConfig, RunConfig
from stepladder.ladder.keys import findings_key

GROUPS = {"prepare": PrepareConfig, "run": RunConfig, "ladder": LadderConfig}
READ: dict[str, Any] = {
    "ladder.max_accuracy_loss": 0.1,
    "run.dir": Path("elsewhere"),
    "run.keep_last": 5,
    "run.mirror": Path("s3://bucket/run"),
    "run.save_top_k": 3,
    "run.checkpoint_every_s": 0.0,
    "run.baseline": Path("before"),
    "run.baseline_at": BaselineAt.WALL_TIME,
    "run.baseline_patience": 7,
}
NOT_READ: dict[str, Any] = {
    "ladder.budget_s": 60.0,
    "ladder.num_seeds": 9,
    "run.system_every_s": 9.0,
    "run.tensorboard": True,
}
SET_BY_CHECKS = {"run.log_every"}  # the few steps that are saved and taken up again log each one
COPIES = {"replace", "_replace", "__init__", "__post_init__", "dump_job", "values_of"}


def key_of(job: JobConfig) -> str:
    example = Example()
    sources = open_job(job, example.task, task_name="mine").sources
    return findings_key("mine", job, sources, {})


def changed(job: JobConfig, name: str, value: object) -> JobConfig:
    group, _, option = name.partition(".")
    return replace(job, **{group: replace(getattr(job, group), **{option: value})})


@pytest.mark.parametrize("name", READ)
def test_findings_do_not_hold_where_an_option_that_a_check_reads_is_another(
    name: str, tmp_path: Path
) -> None:
    job = Example().config(tmp_path)
    assert key_of(changed(job, name, READ[name])) != key_of(job)


@pytest.mark.parametrize("name", NOT_READ)
def test_findings_hold_where_another_option_is_another(name: str, tmp_path: Path) -> None:
    job = Example().config(tmp_path)
    assert key_of(changed(job, name, NOT_READ[name])) == key_of(job)


def test_a_folder_is_the_same_however_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = Example().config(tmp_path)
    assert key_of(changed(job, "run.dir", Path("run"))) == key_of(job)


@pytest.mark.slow
def test_checks_read_no_option_that_the_key_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, task = Example().config(tmp_path), Example().task
    read: set[str] = set()

    def watch(group: str, kind: type) -> None:
        names = {field.name for field in fields(kind)}

        def get(self: object, name: str) -> object:
            if name in names and COPIES.isdisjoint(_callers()):
                read.add(f"{group}.{name}")
            return object.__getattribute__(self, name)

        monkeypatch.setattr(kind, "__getattribute__", get)

    for group, kind in GROUPS.items():
        watch(group, kind)
    run_checks(open_job(job, task, task_name="mine"), CHECKS, tier=Tier.FULL, key="")
    monkeypatch.undo()
    assert "ladder.max_accuracy_loss" in read
    assert "run.baseline" in read
    assert read - SET_BY_CHECKS <= set(READ)


def _callers() -> Iterator[str]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back  # type: ignore[assignment]

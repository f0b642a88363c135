"""A climb measures several devices by a team of processes, and keeps them if they pay off."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import stepladder
from stepladder.config.choices import Checks, DeviceChoice, OptimizerName, TrainMode
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.errors import DivergedError, ResourceError, UsageError
from stepladder.ladder.climb import Climb
from stepladder.ladder.keys import recipe_values
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.trial import apply_change
from stepladder.measuring.ranks.probe import probe_devices
from stepladder.measuring.ranks.team import Team
from stepladder.measuring.ranks.workload import RanksWorkload, open_workload
from stepladder.optim.schedule import base_lr
from stepladder.records import read_jsonl
from stepladder.records.from_json import read_record
from stepladder.records.ladder import Decision
from stepladder.records.ledger_file import LEDGER_FILE
from stepladder.records.scaling import SCALING_FILE, Scaling
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.all_reduce import AllReduce
from stepladder.rungs.devices.compressed_gradients import CompressedGradients
from stepladder.rungs.devices.local_sgd import LocalSgd
from stepladder.rungs.devices.more_gpus import on_several_devices, with_devices
from stepladder.rungs.formulas import with_one_time
from stepladder.rungs.speed.larger_batch import LargerBatch
from stepladder.task.load import load_task
from stepladder.training.output.display import Display
from stepladder.training.setup.build import open_sources
from tests.ranks.tasks import Answering
from tests.ranks.together import ROOT, TASKS, ended, environment

CPU = torch.device("cpu")
RECIPE = Recipe(
    train=TrainMode.ALL,
    batch=BatchConfig(global_batch_size=8),
    optimizer=OptimizerConfig(name=OptimizerName.SGD),
    device=DeviceConfig(kind=DeviceChoice.CPU, threads=1, count=2),
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the processes of a team import this package; none of them outlives a test."""
    for name, value in environment(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{ROOT}").items():
        monkeypatch.setenv(name, value)
    yield
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            assert "stepladder.measuring.ranks.member" not in child.cmdline()


def team(folder: Path, **arguments: Any) -> Team:
    return Team(2, Answering, arguments, is_cuda=False, folder=folder)


@pytest.mark.distributed
def test_all_processes_answer_in_their_order_and_end(tmp_path: Path) -> None:
    with team(tmp_path) as both:
        assert both.ask("add_up", number=3.0) == [(0, 3.0), (1, 3.0)]
        assert both.start_s > 0


@pytest.mark.distributed
def test_errors_of_a_process_arrive(tmp_path: Path) -> None:
    with team(tmp_path) as both, pytest.raises(DivergedError, match="the loss is not finite"):
        both.ask("diverge")
    said = "raised ZeroDivisionError: a batch without"
    with team(tmp_path) as both, pytest.raises(ResourceError, match=said):
        both.ask("fail")
    with pytest.raises(UsageError, match="this one cannot start"):
        team(tmp_path, fails_at=1)


def test_a_process_that_dies_is_named(tmp_path: Path) -> None:
    with (
        team(tmp_path) as both,
        pytest.raises(ResourceError, match="the process of device 1 was killed by SIGKILL"),
    ):
        both.ask("kill", rank=1)


def timed(recipe: Recipe, folder: Path) -> Any:
    task = load_task(f"{TASKS}:Waiting", store=recipe.data.store, recipe=recipe)
    workload = open_workload(
        recipe,
        task,
        open_sources(task),
        device=CPU,
        cache=folder / f"cache-{recipe.device.count}",
        copies=folder / "copies",
    )
    try:
        return workload, [workload.block(0.2) for _ in range(2)]
    finally:
        workload.close()


@pytest.mark.distributed
def test_a_block_on_two_devices_divides_each_batch(tmp_path: Path) -> None:
    """Each example waits 4 ms, so that two devices cannot be faster than 4 examples in turn."""
    both, blocks = timed(RECIPE, tmp_path)
    assert isinstance(both, RanksWorkload)
    assert both.one_time_s["start"] > 0
    alone, one_by_one = timed(replace(RECIPE, device=replace(RECIPE.device, count=1)), tmp_path)
    assert not isinstance(alone, RanksWorkload)
    assert min(block.step_s for block in blocks) >= 4 * 0.004
    assert min(block.step_s for block in one_by_one) >= 8 * 0.004
    assert all(block.validation_s > 0 for block in blocks)
    assert {block.num_steps for block in blocks} == {both.plan.num_steps}


@pytest.mark.distributed
def test_devices_are_measured_while_all_of_them_compute(tmp_path: Path) -> None:
    one = replace(RECIPE, device=replace(RECIPE.device, count=1))
    task = load_task(f"{TASKS}:Waiting", store=one.data.store, recipe=one)
    found = probe_devices(
        2,
        one,
        task,
        device=CPU,
        folder=tmp_path,
        copies=tmp_path / "copies",
        exchanged_bytes=4_000_000,
    )
    assert found.num == 2
    assert found.share_step_s is not None
    assert found.share_step_s >= 4 * 0.004
    assert found.exchange_fixed_s + 4_000_000 * found.exchange_byte_s > 0


@pytest.mark.distributed
def test_devices_are_measured_on_stored_features(tmp_path: Path) -> None:
    one = replace(RECIPE, device=replace(RECIPE.device, count=1), train=TrainMode.HEAD)
    one = replace(one, features=FeaturesConfig(cached=True))
    task = load_task(f"{TASKS}:OfFeatures", store=one.data.store, recipe=one)
    found = probe_devices(
        2,
        one,
        task,
        device=CPU,
        folder=tmp_path,
        copies=tmp_path / "copies",
        exchanged_bytes=108,
    )
    assert found.share_step_s is not None
    assert found.share_step_s >= 4 * 0.004


@pytest.mark.distributed
def test_a_climb_keeps_devices_that_divide_the_time_and_trains_on_them(tmp_path: Path) -> None:
    words = ["climb", "--devices", "2", "--batch-size", "8", "--epochs", "100"]
    words += ["--stopping.no-early", "--stopping.validate-every-epochs", "100"]
    words += ["--task", f"{TASKS}:Waiting", "--train", "all", "--run.dir", str(tmp_path / "run")]
    words += ["--run.checks", "off", "--ladder.block-s", "0.1"]
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "stepladder", *words],
            cwd=ROOT,
            env=environment(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    with ended([process]):
        process.wait(timeout=280)
    said = (tmp_path / "out.txt").read_text()
    assert process.returncode == 0, said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["devices"] == 2
    verdict = next(
        line["trial"]["verdict"]
        for line in read_jsonl(tmp_path / "run" / LEDGER_FILE)
        if line["kind"] == "trial" and line["trial"]["rung"] == "more_gpus"
    )
    assert verdict["decision"] == "kept"
    assert 1 < verdict["speed"]["low"] < verdict["speed"]["estimate"] < 2.5
    found = read_record(Scaling, tmp_path / "run" / SCALING_FILE)
    assert [point.num for point in found.measured] == [1, 2]
    page = (tmp_path / "run" / "scaling.html").read_text()
    assert 'href="report.html"' in page
    assert 'href="scaling.html"' in (tmp_path / "run" / "report.html").read_text()
    assert f"efficiency {100 * found.measured[1].efficiency.estimate:.0f} % on 2 devices" in said


@contextmanager
def climbing(
    one: Recipe, name: str, folder: Path, *, rungs: Sequence[Rung], **options: Any
) -> Iterator[Climb]:
    """A climb of a few rungs that may use two devices."""
    task = load_task(name, store=one.data.store, recipe=one)
    ladder = LadderConfig(devices=2, block_s=0.05, num_seeds=2, **options)
    job = JobConfig(recipe=one, ladder=ladder, run=RunConfig(dir=folder, checks=Checks.OFF))
    with Lab(
        job=job,
        task=task,
        sources=open_sources(task),
        device=CPU,
        cache=folder / "cache",
        seed=0,
    ) as lab:
        yield Climb(
            lab=lab,
            ledger=Ledger(folder),
            display=Display(io.StringIO()),
            show=lambda _: None,
            job="job",
            machine="machine",
            recipe=one,
            rungs=tuple(rungs),
        )


ONE_DEVICE = replace(
    RECIPE,
    device=replace(RECIPE.device, count=1),
    schedule=ScheduleConfig(max_epochs=2),
    stopping=StoppingConfig(early=False, restore_best=False),
)


@pytest.mark.distributed
def test_a_larger_batch_is_tried_on_several_devices_as_one_change(tmp_path: Path) -> None:
    """Batch and learning rate change together, and all ranks train with them."""
    one, name = ONE_DEVICE, f"{TASKS}:WaitingSteps"
    with climbing(one, name, tmp_path, rungs=[LargerBatch()], try_all=True) as climb:
        num_train = len(climb.lab.sources.train)
        alone = climb.measure()
        time = with_one_time(replace(alone.time, step_s=0.7 * alone.time.step_s), start=3.0)
        climb.profiles.append(on_several_devices(alone, time))  # as after a kept more_gpus
        climb.recipe = with_devices(alone, one, 2)
        found = climb.run()
    (larger,) = climb.trials
    assert larger.before is not None
    assert larger.after is not None
    assert "start" in larger.before.one_time_s  # both were timed in several processes
    assert "start" in larger.after.one_time_s
    assert larger.change["batch.global_batch_size"] == (8, 16)
    is_kept = larger.verdict.decision is Decision.KEPT
    assert found.device.count == 2
    values = recipe_values(found)
    for key, (before, after) in larger.change.items():
        assert values[key] == (after if is_kept else before)
    recipe = apply_change(with_devices(climb.profile, one, 2), larger.change)
    run = RunConfig(dir=tmp_path / "run", checks=Checks.OFF, log_every=1)
    stepladder.train(config=JobConfig(recipe=recipe, run=run), task=name)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["devices"] == 2
    steps = [e for e in read_jsonl(tmp_path / "run" / "events.jsonl") if e["event"] == "train"]
    num = 2 * -(-num_train // 16)
    assert [step["step"] for step in steps] == list(range(1, num + 1))
    assert steps[-1]["learning_rate"] == pytest.approx(base_lr(recipe.batch))


@pytest.mark.distributed
def test_other_ways_to_exchange_gradients_are_tried_on_several_devices(tmp_path: Path) -> None:
    """Both rungs are offered where sending seems slow, and the measured times decide."""
    one, name = ONE_DEVICE, f"{TASKS}:HeavyGradients"
    rungs = [AllReduce(), CompressedGradients(), LocalSgd()]
    with climbing(one, name, tmp_path, rungs=rungs, try_all=True) as climb:
        climb.measure()
        climb.measure_devices()
        alone = climb.profile
        devices = alone.devices
        assert devices is not None
        assert devices.fit is not None
        slow = replace(devices.fit, native_s=tuple(10 * one_s for one_s in devices.fit.native_s))
        byte_s = 10 * devices.exchange_byte_s
        devices = replace(devices, fit=slow, exchange_byte_s=byte_s)
        time = with_one_time(alone.time, start=3.0)
        climb.profiles.append(replace(on_several_devices(alone, time), devices=devices))
        climb.recipe = with_devices(alone, one, 2)
        found = climb.run()
    chosen, halved, local = climb.trials
    assert chosen.change == {"device.all_reduce": ("native", "auto")}
    assert halved.change == {"device.gradient_compression": ("none", "bf16")}
    for trial in climb.trials:
        assert trial.before is not None
        assert trial.after is not None
        assert "start" in trial.after.one_time_s  # timed in several processes
    assert local.change == {
        "device.count": (2, 1),
        "asynchronous.method": ("off", "local_sgd"),
        "asynchronous.workers": (4, 2),
    }
    for trial in climb.trials:
        is_kept = trial.verdict.decision is Decision.KEPT
        for key, (before, after) in trial.change.items():
            assert recipe_values(found)[key] == (after if is_kept else before)
    assert chosen.verdict.num_trainings == 0  # the same sums
    if halved.verdict.decision is Decision.KEPT:
        assert halved.verdict.num_trainings > 0  # what is learnt was compared

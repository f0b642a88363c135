"""Checkpoints are mirrored while a run continues, and restored from the mirror."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import ScheduleConfig
from stepladder.data.remote.copies import FolderCopies
from stepladder.errors import InterruptedRun, ResourceError
from stepladder.machine.filesystem import FolderAbilities
from stepladder.records import read_json
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.mirror import Mirror, bring_back

MakeJob = Callable[..., Any]
RunJob = Callable[..., dict[str, Any]]


ONE_EPOCH = ScheduleConfig(max_epochs=1)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of checkpoints by name; frozen weights by content only."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return {name: data for name, data in found.items() if "frozen" not in name}


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    last = Checkpoints(folder / "checkpoints").newest()
    assert last is not None
    return last.weights


def test_a_mirror_holds_the_checkpoints_of_the_run_and_no_others(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path
) -> None:
    mine = job(
        tmp_path / "run", mirror=tmp_path / "mirror", train=TrainMode.HEAD, schedule=ONE_EPOCH
    )
    run(mine, points())
    assert files_of(tmp_path / "mirror" / "checkpoints") == files_of(
        tmp_path / "run" / "checkpoints"
    )
    frozen = list((tmp_path / "mirror").rglob("*frozen*"))
    assert len(frozen) == 1
    assert frozen[0].name == next((tmp_path / "run/checkpoints").glob("frozen-*")).name


def test_a_run_whose_folder_is_lost_resumes_from_the_mirror(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path
) -> None:
    whole = job(tmp_path / "whole")
    run(whole, points())
    mine = job(tmp_path / "run", mirror=tmp_path / "mirror")
    task = points()
    task.on_step = _stop_after(12)
    with pytest.raises(InterruptedRun):
        run(mine, task)
    shutil.rmtree(tmp_path / "run")
    summary = run(mine, points())
    assert summary["steps"] == 25
    ours, theirs = weights_of(tmp_path / "run"), weights_of(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_overwrite_takes_nothing_from_the_mirror(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path
) -> None:
    mine = job(tmp_path / "run", mirror=tmp_path / "mirror", schedule=ONE_EPOCH)
    run(mine, points())
    shutil.rmtree(tmp_path / "run")
    task, there = points(), []
    checkpoints = tmp_path / "mirror" / "checkpoints"
    task.on_step = lambda batch: there.append(list(checkpoints.glob("*/MANIFEST.json")))
    run(mine, task, overwrite=True)
    assert len(task.seen) == 5  # all steps of the epoch
    assert there[0] == [], "nor would a run lost now, in its first step"
    assert files_of(checkpoints) == files_of(tmp_path / "run" / "checkpoints")


def test_a_damaged_copy_falls_back_to_the_one_before(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path
) -> None:
    mine = job(tmp_path / "run", mirror=tmp_path / "mirror", schedule=ONE_EPOCH)
    run(mine, points())
    newest = max((tmp_path / "mirror/checkpoints").glob("step-*"))
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[::-1])
    lost = tmp_path / "lost"
    said = bring_back(FolderCopies(tmp_path / "mirror"), lost, file_system=FolderAbilities())
    assert said[0].startswith(
        f"the copy of the checkpoint {newest.name} in {tmp_path}/mirror (run.mirror) is damaged, "
    )
    before = sorted((tmp_path / "mirror/checkpoints").glob("step-*"))[-2].name
    assert said[1] == f"{before} was fetched from the mirror {tmp_path}/mirror"
    loaded = Checkpoints(lost / "checkpoints").newest()
    assert loaded is not None
    assert loaded.name == before


def test_a_mirror_that_fails_stops_no_training_and_is_reported_twice(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path
) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "checkpoints").write_text("in the way")
    mine = job(tmp_path / "run", mirror=tmp_path / "mirror", schedule=ONE_EPOCH)
    assert run(mine, points())["status"] == "finished"
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "a checkpoint could not be copied to the mirror" in events
    assert "the newest checkpoint was not copied to the mirror" in events
    assert read_json(tmp_path / "run" / "summary.json")["steps"] == 5


class Slow(FolderCopies):
    """Once one checkpoint is complete, uploading a file takes as long as three commits."""

    def __init__(self, folder: Path, commit: Callable[[], None]) -> None:
        super().__init__(folder)
        self.folder, self.commit = folder, commit
        self.completed: list[str] = []
        self.num_whole: list[int] = []  # after each removal

    def put_file(self, name: str, path: Path, **options: Any) -> None:
        for _ in range(3 if self.completed else 0):
            self.commit()
        super().put_file(name, path, **options)

    def put_bytes(self, name: str, data: bytes) -> None:
        super().put_bytes(name, data)
        if name.endswith("MANIFEST.json"):
            self.completed.append(name.split("/")[1])

    def delete(self, name: str) -> None:
        super().delete(name)
        self.num_whole.append(len(list(self.folder.glob("checkpoints/step-*/MANIFEST.json"))))


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_mirror_slower_than_the_run_is_never_without_a_whole_checkpoint(
    tmp_path: Path, is_pinned: bool
) -> None:
    pinned: set[str] = set()
    saves = Checkpoints(tmp_path / "run/checkpoints", pinned=pinned if is_pinned else frozenset())
    saves.clean()
    (tmp_path / "run/config.yaml").write_text("seed: 0\n")
    steps = iter(range(1, 12))

    def commit() -> None:
        for step in itertools.islice(steps, 1):
            weights = {"model": {"weight": torch.full((3,), float(step))}}
            saves.save(f"step-{step:09d}", weights, {"step": step}, {})
            saves.prune(())
            mirror.write({"event": "checkpoint"})

    slow = Slow(tmp_path / "mirror", commit)
    mirror = Mirror(slow, tmp_path / "run", pinned=pinned)
    said: list[str] = []
    with mirror.running(said.append):
        commit()
        wait_until(lambda: bool(slow.completed))
        commit()
        wait_until(lambda: "step-000000011" in slow.completed)
    assert said == []
    assert min(slow.num_whole) >= 1
    assert (slow.completed[1] == "step-000000002") is is_pinned, "it is kept while being copied"
    assert files_of(tmp_path / "mirror/checkpoints") == files_of(tmp_path / "run/checkpoints")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize(
    "error", [ResourceError("the disk is full", fix="nothing"), FileNotFoundError("the share")]
)
def test_a_copy_that_was_cut_shows_no_checkpoint(
    job: MakeJob, run: RunJob, points: Any, tmp_path: Path, error: Exception
) -> None:
    run(job(tmp_path / "run", schedule=ONE_EPOCH), points())

    class Cut(FolderCopies):
        def put_file(self, name: str, path: Path, **options: Any) -> None:
            if name.endswith("optimizer.safetensors"):
                raise error
            super().put_file(name, path, **options)

    said: list[str] = []
    mirror = Mirror(Cut(tmp_path / "mirror"), tmp_path / "run")
    with mirror.running(said.append):
        mirror.write({"event": "checkpoint"})
    assert str(error).split("\n")[0] in said[0]
    assert list((tmp_path / "mirror").rglob("step-*/MANIFEST.json")) == []
    assert (
        bring_back(
            FolderCopies(tmp_path / "mirror"), tmp_path / "lost", file_system=FolderAbilities()
        )
        == []
    )


def _stop_after(num_steps: int) -> Callable[[Any], None]:
    seen = []

    def stop(batch: Any) -> None:
        seen.append(batch)
        if len(seen) == num_steps:
            os.kill(os.getpid(), signal.SIGTERM)

    return stop

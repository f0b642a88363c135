"""Workloads on which predictions and advice are evaluated.

Half of them are held out: only the others may be used to develop the formulas of the rungs. Each
job is climbed in a process of its own, on the number of cores that it names:

    python -m bench.climbs.workloads NAME --work FOLDER --out RUN [--budget 300]
        [--try-all] [--quick]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.machine.openmp import bound_spinning

if __name__ == "__main__":
    bound_spinning()  # as the command does, before torch is loaded

import torch

import stepladder
from bench.data.prepare import enlarge
from bench.measure import ROOT
from bench.pictures import demo_rows, take_few
from stepladder.config.choices import Encoding
from stepladder.config.load import load_job
from stepladder.config.options import JobConfig, PrepareConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import resolve, settings_of_call
from stepladder.data.store.pixel_copy import copies_folder
from stepladder.ladder.advise import advise_on
from stepladder.ladder.ledger import LEDGER_FILE, trials_of
from stepladder.reporting.ladder.climb_data import read_climb
from stepladder.rungs import RUNGS
from stepladder.task.load import BUILT_IN, load_task
from stepladder.training.output.display import Display
from stepladder.training.setup.build import open_sources, resolve_auto

ADVISED_FILE = "advised.json"
PHOTOS = ROOT / "demo_data" / "groceries"
AS_WRITTEN = ROOT / "examples" / "demo" / "demo.yaml"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A job as a user might write it.

    Attributes:
        is_held_out: not used to develop the formulas.
        task: FILE.py:NAME; None: the built-in task.
        store: the store that it reads, or None.
        settings: options by their dotted names, applied to the original demo job.
        num_cores: number of cores that the process may use.
    """

    name: str
    is_held_out: bool
    task: str | None = None
    store: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    num_cores: int = 2


TEXT = str(ROOT / "examples" / "text_task.py") + ":SourceLines"
TABULAR = str(ROOT / "examples" / "tabular_task.py") + ":Friedman"
SLOW = str(Path(__file__).with_name("slow_disk.py")) + ":SlowDisk"
EARLY = {"stopping.early": True, "stopping.restore_best": True}
ALL = {"train": "all", "optimizer.name": "adamw", **EARLY}

TINY = {"model.name": "test_efficientnet", "model.weights": "none"}
ALL_TINY = {**ALL, **TINY, "batch.global_batch_size": 16}

WORKLOADS = (
    Workload(name="frozen_batch_2", is_held_out=False, store="demo"),
    Workload(
        name="frozen_batch_128",
        is_held_out=False,
        store="demo",
        settings={"batch.global_batch_size": 128, "batch.lr": 0.004},
    ),
    Workload(
        name="frozen_one_core",
        is_held_out=False,
        store="demo",
        settings={"batch.global_batch_size": 16},
        num_cores=1,
    ),
    Workload(
        name="frozen_small_pictures",
        is_held_out=False,
        store="small",
        settings={"batch.global_batch_size": 8},
    ),
    Workload(
        name="frozen_large_jpegs",
        is_held_out=False,
        store="jpeg",
        settings={"batch.global_batch_size": 16, "data.where": "stream"},
    ),
    Workload(
        name="frozen_slow_disk",
        is_held_out=False,
        task=SLOW,
        store="small",
        settings={"batch.global_batch_size": 16, "data.where": "stream"},
    ),
    Workload(
        name="fine_tune_small_pictures",
        is_held_out=False,
        store="small",
        settings={**ALL, "batch.global_batch_size": 16, "schedule.max_epochs": 8},
    ),
    Workload(
        name="fine_tune",
        is_held_out=False,
        store="demo",
        settings={
            **ALL,
            "batch.global_batch_size": 8,
            "schedule.max_epochs": 4,
            "data.fraction": 0.2,
        },
    ),
    Workload(
        name="text_batch_8",
        is_held_out=False,
        task=TEXT,
        settings={**ALL, "batch.global_batch_size": 8, "schedule.max_epochs": 8},
    ),
    Workload(
        name="tabular_random_features",
        is_held_out=False,
        task=TABULAR,
        settings={"batch.global_batch_size": 16, "batch.lr": 0.003, "schedule.max_epochs": 40},
    ),
    Workload(
        name="frozen_resnet",
        is_held_out=True,
        store="small",
        settings={
            "model.name": "resnet18",
            "model.weights": "none",
            "batch.global_batch_size": 32,
            "schedule.max_epochs": 30,
        },
    ),
    Workload(
        name="frozen_mobilenet_early",
        is_held_out=True,
        store="demo",
        settings={
            "model.name": "mobilenetv3_small_100",
            "model.weights": "none",
            "batch.global_batch_size": 4,
            **EARLY,
        },
    ),
    Workload(
        name="frozen_large_batch_one_core",
        is_held_out=True,
        store="small",
        settings={"batch.global_batch_size": 256, "batch.lr": 0.004},
        num_cores=1,
    ),
    Workload(
        name="frozen_half_sample",
        is_held_out=True,
        store="demo",
        settings={
            "batch.global_batch_size": 8,
            "schedule.max_epochs": 30,
            "data.fraction": 0.5,
        },
    ),
    Workload(
        name="jpegs_in_memory_one_thread",
        is_held_out=True,
        store="jpeg",
        settings={
            **ALL_TINY,
            "schedule.max_epochs": 3,
            "data.where": "memory",
            "loader.threads": 1,
        },
    ),
    Workload(
        name="jpegs_streamed_one_thread",
        is_held_out=True,
        store="jpeg",
        settings={
            **ALL_TINY,
            "schedule.max_epochs": 5,
            "data.where": "stream",
            "loader.threads": 1,
        },
    ),
    Workload(
        name="fine_tune_one_thread",
        is_held_out=True,
        store="small",
        settings={
            **ALL,
            "batch.global_batch_size": 32,
            "schedule.max_epochs": 5,
            "device.threads": 1,
        },
    ),
    Workload(
        name="fine_tune_slow_disk_sgd",
        is_held_out=True,
        task=SLOW,
        store="small",
        settings={
            **ALL,
            "optimizer.name": "sgd",
            "batch.global_batch_size": 16,
            "batch.lr": 0.01,
            "schedule.max_epochs": 6,
            "data.where": "stream",
            "data.fraction": 0.5,
        },
    ),
    Workload(
        name="text_one_core_sgd",
        is_held_out=True,
        task=TEXT,
        settings={
            **ALL,
            "optimizer.name": "sgd",
            "batch.global_batch_size": 16,
            "batch.lr": 0.1,
            "schedule.max_epochs": 10,
        },
        num_cores=1,
    ),
    Workload(
        name="tabular_batch_16_early",
        is_held_out=True,
        task=TABULAR,
        settings={**ALL, "batch.global_batch_size": 16, "batch.lr": 0.003},
    ),
)

assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS), "duplicate name"
assert 2 * sum(workload.is_held_out for workload in WORKLOADS) == len(WORKLOADS), "held out: half"


def by_name(name: str) -> Workload:
    """Return the workload of this name.

    Raises:
        SystemExit: if there is no such workload.
    """
    for workload in WORKLOADS:
        if workload.name == name:
            return workload
    raise SystemExit(
        f"unknown workload {name!r}: use one of {', '.join(w.name for w in WORKLOADS)}"
    )


def store_of(workload: Workload, work: Path) -> Path | None:
    """Create the workload's store in `work` unless it exists, and return its folder."""
    if workload.store is None:
        return None
    out = work / workload.store
    if out.is_dir():  # moved into place when complete
        return out
    options: dict[str, Any] = {
        "demo": {"source": PHOTOS},
        "small": {"source": PHOTOS, "size": 64},
        "jpeg": {"source": work / "large", "encoding": Encoding.JPEG},
    }[workload.store]
    if workload.store == "jpeg":
        enlarge_some(work / "large")
    config = PrepareConfig(out=out, **options)
    stepladder.prepare(config=config, display=Display(io.StringIO()))
    return out


def enlarge_some(folder: Path) -> None:
    """Write a few photographs of each class at 1600 x 1200 pixels, like those of a camera."""
    classes = len({label for _, label, _ in demo_rows(PHOTOS)})
    rows = take_few(demo_rows(PHOTOS), num_classes=classes, count=20)
    for idx, (path, label, split) in enumerate(rows):
        place = folder / split / label
        place.mkdir(parents=True, exist_ok=True)
        enlarge(path, idx).save(place / path.name, "JPEG", quality=90)


def forget_artefacts(store: Path | None) -> None:
    """Remove the files that earlier trainings left next to a store, for a cold start.

    Args:
        store: None: the job has no store, and its files are in its run's folder.
    """
    if store is None:
        return
    features = store.with_name(f"{store.name}.features")  # as in training/features/feature_task.py
    for folder in (features, copies_folder(store)):
        if folder.is_dir():
            shutil.rmtree(folder)


def job_of(workload: Workload, *, work: Path, out: Path, more: Mapping[str, object]) -> JobConfig:
    """Return the complete job of a workload.

    Args:
        work: folder in which its store is, or is created.
        out: the run's folder.
        more: options that override those of the workload.
    """
    store = store_of(workload, work)
    settings = {**workload.settings, "run.dir": out, **more}
    batch = workload.settings.get("batch.global_batch_size")
    if batch is not None:
        settings["batch.base_batch_size"] = batch  # the learning rate was chosen for it
    if store is not None:
        settings["data.store"] = store
    return resolve(settings_of_call(settings), base=load_job(AS_WRITTEN)).job


def advised_in(job: JobConfig, workload: Workload, run: Path) -> dict[str, str | None]:
    """Return the rung advised for the original job, and how the climb decided on it.

    By the profile that the climb took first. `was` is the first verdict and `is` the last one; None
    if nothing is advised.
    """
    task = load_task(workload.task or BUILT_IN, store=job.recipe.data.store, recipe=job.recipe)
    job = resolve_auto(job, open_sources(task))
    climb = read_climb(run, missing=[])
    assert climb is not None
    advice = advise_on(climb.profiles[0], job.recipe, job.ladder, rungs=RUNGS)
    if advice.next is None:
        return {"advised": None, "was": None, "is": None}
    name = advice.next.rung
    decided = [
        str(one.verdict.decision) for one in trials_of(run / LEDGER_FILE) if one.rung == name
    ]
    return {"advised": name, "was": decided[0], "is": decided[-1]}


def use_cores(num_cores: int) -> None:
    """Restrict this process to the first `num` cores, where the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_cores])
    torch.set_num_threads(num_cores)


def quick_settings(recipe: Recipe) -> dict[str, object]:
    """Return options that make any workload tiny, for a smoke test."""
    return {
        "schedule.max_epochs": min(recipe.schedule.max_epochs, 2),
        "data.fraction": 0.1,
        "ladder.num_seeds": 2,
        "ladder.block_s": 0.02,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=[workload.name for workload in WORKLOADS])
    parser.add_argument("--work", type=Path, required=True, help="folder of the stores")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--budget", type=float, help="time limit of the climb in seconds; default: none"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--try-all", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a trunk without weights is kept
    workload = by_name(options.name)
    use_cores(workload.num_cores)
    more: dict[str, object] = {"ladder.try_all": options.try_all, "seed": options.seed}
    if options.budget is not None:
        more["ladder.budget_s"] = options.budget
    job = job_of(workload, work=options.work, out=options.out, more=more)
    if options.quick:
        more |= quick_settings(job.recipe)
        job = job_of(workload, work=options.work, out=options.out, more=more)
    forget_artefacts(store_of(workload, options.work))  # left by other climbs on the same pictures
    stepladder.climb(config=job, task=workload.task, fresh=True, display=Display(io.StringIO()))
    advised = advised_in(job, workload, options.out)
    (options.out / ADVISED_FILE).write_text(json.dumps(advised, indent=1))


if __name__ == "__main__":
    main()

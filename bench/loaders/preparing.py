"""Measure how fast JPEG files are converted to a pixel format."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.loaders.child import Child, ContenderError, module
from bench.loaders.contract import Job, Kind, Setting
from bench.loaders.reading import Choices, Plan, whole_rounds

BOUND = "bound: decode into place, one write a row group"
BOUND_HASHED = "the same, with a sha256 of each file and a sync"
OURS = "stepladder prepare"
WRITERS = {
    "ours": OURS,
    "bound": BOUND,
    "bound_hashed": BOUND_HASHED,
    "torch_loader": "flat file, no format",
    "parquet_files": "pyarrow ParquetWriter",
    "hugging_face": "Hugging Face from_generator",
    "web_dataset": "WebDataset ShardWriter",
    "mosaic": "MosaicML MDSWriter",
    "lit_data": "LitData optimize",
    "tensor_flow": "TFRecordWriter",
    "ffcv_loader": "FFCV DatasetWriter",
    "lance_data": "Lance write_dataset",
}


def prepare_plan(plan: Plan, out: Path, num_pictures: int) -> Plan:
    """Return the plan whose formats are written in `out`, with the first photographs."""
    out.mkdir(parents=True, exist_ok=True)
    photos = out / "photos"
    if not photos.exists():
        photos.symlink_to((plan.job.folder / "photos").resolve())
    job = Job(folder=out, kind=Kind.PIXELS, num_pictures=num_pictures, size=plan.job.size)
    return replace(plan, job=job)


def choose_writers(plan: Plan, choices: Choices, missing: dict[str, str]) -> None:
    """Try each writer setting once, and keep the fastest."""
    for name, line in WRITERS.items():
        key = f"prepare {name}"
        if key in choices.by_line or line in missing or _is_left_out(plan, name):
            continue
        tried: list[dict[str, Any]] = []
        for setting in module(name).WRITE_SETTINGS:
            entry: dict[str, Any] = {"setting": dict(setting)}
            try:
                with plan.child(name) as child:
                    _write_once(child, plan.job, setting)  # reads libraries and files
                    entry["pictures_per_s"] = _write_once(child, plan.job, setting)
            except ContenderError as error:
                entry["error"] = str(error)
            tried.append(entry)
        ran = [entry for entry in tried if "pictures_per_s" in entry]
        if not ran:
            missing[line] = tried[0]["error"]
            continue
        best = max(ran, key=lambda entry: entry["pictures_per_s"])
        choices.keep(key, {"setting": best["setting"], "tried": tried})
        print(f"{line}: {best['pictures_per_s']:,.0f}/s with {best['setting']}", flush=True)


def measure_writers(
    plan: Plan, choices: Choices, missing: dict[str, str]
) -> dict[str, list[float]]:
    """Run the rounds; figures are pictures per second, from JPEG files to files of the format."""
    contenders: dict[str, Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        for name, line in WRITERS.items():
            choice = choices.by_line.get(f"prepare {name}")
            if choice is None or line in missing or _is_left_out(plan, name):
                continue
            child = stack.enter_context(plan.child(name))
            _write_once(child, plan.job, choice["setting"])
            contenders[line] = partial(_write_once, child, plan.job, choice["setting"])
        return whole_rounds(contenders, plan.rounds, missing)


def _is_left_out(plan: Plan, name: str) -> bool:
    return bool(plan.only) and name not in (*plan.only, "ours", "bound")


def _write_once(child: Child, job: Job, setting: Setting) -> float:
    shutil.rmtree(job.folder / "formats", ignore_errors=True)
    os.sync()  # no dirty pages of one contender are written back during another's time
    answer = child.write(job, setting)
    return float(answer["pictures"] / answer["seconds"])

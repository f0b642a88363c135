"""One run from its folder to its summary: set up or resume, train stage by stage, evaluate."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stepladder.config.choices import Monitor, ScheduleKind
from stepladder.config.options import JobConfig
from stepladder.errors import DivergedError, InterruptedRun
from stepladder.machine import EnergyMeter, SystemSampler, environment
from stepladder.records import read_json, write_json
from stepladder.stats import binomial_sem
from stepladder.task.contract import Task
from stepladder.train.build import (
    choose_device,
    make_clock,
    open_sources,
    resolve_auto,
    use_threads,
)
from stepladder.train.clock import Clock, Phase
from stepladder.train.display import Display
from stepladder.train.finish import finish_run, partial_summary
from stepladder.train.loop import fit
from stepladder.train.open_session import open_session, start_stage
from stepladder.train.randomness import use_deterministic
from stepladder.train.run_folder import RunFolder
from stepladder.train.session import Session
from stepladder.train.signals import SignalGuard
from stepladder.train.stage import stages_of


def train(
    job: JobConfig,
    task: Task,
    *,
    task_name: str,
    display: Display,
    dry_run: bool = False,
    overwrite: bool = False,
    accept_new_data: bool = False,
) -> dict[str, Any]:
    """Train a task by a recipe into a run folder, or go on where an earlier attempt ended.

    Args:
        task_name: "image_classification", or "FILE.py:NAME" of the user's own.
        dry_run: rehearse two steps, validation, save and load in a temporary folder, and leave
            nothing behind.
        overwrite: remove an earlier run in the folder first.
        accept_new_data: resume although the store has changed.

    Returns:
        The summary, as in summary.json.

    Raises:
        UsageError: if the folder holds a run of another config.
        DataError: if pictures, store or checkpoints cannot be used.
        ResourceError: if a disk, a device or the folder's lock is not to be had.
        DivergedError: at a loss that is not finite.
        InterruptedRun: after a signal; the run is saved and resumes.
    """

"""Name the default run folder after the job, so that two jobs do not share one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.resolve import Resolved

_OTHERS: Final = re.compile(r"[^\w.-]+")
_RUNS: Final = Path("runs")


def with_run_folder(
    resolved: Resolved, *, file: Path | None = None, task: str | None = None
) -> Resolved:
    """Return the config with a run folder in place of `auto`.

    Args:
        file: the YAML file of the job.
        task: the user's own Task, as FILE.py:NAME.
    """
    return replace(resolved, job=with_run_folder_of(resolved.job, file=file, task=task))


def with_run_folder_of(
    job: JobConfig, *, file: Path | None = None, task: str | None = None
) -> JobConfig:
    """Return the job with a run folder in place of `auto`; see `with_run_folder`."""
    if job.run.dir != RunConfig.dir:
        return job
    return replace(job, run=replace(job.run, dir=_RUNS / _name(job, file, task)))


def _name(job: JobConfig, file: Path | None, task: str | None) -> str:
    """Return the stem of the job's file; else the name of its Task, or of its store."""
    if file is not None:
        name = file.stem
    elif task is not None:
        script, _, kind = task.rpartition(":")
        name = f"{Path(script).stem}-{kind}" if script else kind
    else:
        store = job.recipe.data.store
        name = (store if ":" in store.parts[0] else store.absolute().resolve()).name
        name = name.partition(".")[0] if Path(name).suffix and not store.is_dir() else name
    return _OTHERS.sub("-", name).strip("-.") or "run"

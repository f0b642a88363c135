"""Prepare a store for a job whose data are pictures."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepladder.config.choices import Split
from stepladder.config.options import JobConfig, PrepareConfig
from stepladder.data.remote.places import is_address, shown
from stepladder.data.store.manifest import MANIFEST_NAME
from stepladder.errors import StepladderError
from stepladder.machine.activity import moved, paused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stepladder.data.prepare.prepare import PrepareProgress, PrepareResult
    from stepladder.training.output.display import Display

_SUFFIX: Final = "-store"


def on_store(job: JobConfig, display: Display, *, has_own_task: bool) -> JobConfig:
    """Return the job with a store; if its data are pictures, prepare a store beside them.

    A store that is up to date is reused, and one whose pictures have changed is written again.

    Args:
        job: its `data.store` may be a folder or table of pictures.
        has_own_task: the data is defined by a Task, so that nothing is prepared.

    Raises:
        UsageError, DataError, ResourceError: if the pictures cannot be read, or the store cannot be
            written.
    """
    source = job.recipe.data.store
    if has_own_task or is_address(source) or not _is_source(source):
        return job
    config = replace(job.prepare, source=source, out=_store_of(source, job.prepare))
    result = prepared(config, display, may_refresh=True)
    display.message(_said(result, source, config.out))
    data = replace(job.recipe.data, store=config.out)
    return replace(job, prepare=config, recipe=replace(job.recipe, data=data))


def prepared(
    config: PrepareConfig,
    display: Display,
    *,
    frame: DataFrame | None = None,
    may_refresh: bool = False,
) -> PrepareResult:
    """Prepare a store with a display of the progress.

    Args:
        may_refresh: write a store again whose pictures have changed; errors then name the command
            that takes the options of `prepare`.
    """
    from stepladder.data.prepare.prepare import prepare
    from stepladder.data.sources.listing import Note

    if frame is None and config.source.exists():  # an address may contain a secret
        display.message(f"reading {config.source} …")
    try:
        with paused():  # it forks
            result = prepare(
                config, frame=frame, may_refresh=may_refresh, on_progress=listener(display)
            )
    except StepladderError as error:
        if may_refresh and error.fix is not None and "--" in error.fix:
            words = ["stepladder", "prepare", str(config.source), "--out", str(config.out)]
            error.fix = f"For `{shlex.join(words)}`: {error.fix}"
            if (config.out / MANIFEST_NAME).is_file():
                replace_it = shlex.join([*words, "--overwrite"])
                error.fix = f"Use it as it is with --data {config.out}, or replace it: {replace_it}"
        raise
    for warning in result.warnings:
        if isinstance(warning, Note):
            display.message(f"note: {display.complete(warning)}")
        else:
            display.warning(display.complete(warning))
    return result


def listener(display: Display) -> Callable[[PrepareProgress], None]:
    """Return a function that shows the progress of prepare."""
    from stepladder.data.prepare.prepare import PreparePhase

    show = {
        PreparePhase.HASH: display.hash,
        PreparePhase.WRITE: display.prepare,
        PreparePhase.UPLOAD: display.upload,
    }

    def on_progress(progress: PrepareProgress) -> None:
        moved()
        show[progress.phase](progress.done, progress.total, progress.per_s, progress.left_s)

    return on_progress


def _is_source(path: Path) -> bool:
    """Return True for a folder that is not a store, or a file."""
    if path.is_dir():
        return not (path / MANIFEST_NAME).is_file()
    return path.is_file()


def _store_of(source: Path, config: PrepareConfig) -> Path:
    """Return the folder of the store: beside the pictures, or here if that is not writable."""
    if config.out != PrepareConfig.out:
        return config.out
    place = source.absolute().resolve() if source.name in ("", "..") else source
    name = place.name if place.is_dir() else place.name.partition(".")[0]
    beside = place.parent if os.access(place.parent, os.W_OK) else Path()
    return beside / f"{name}{_SUFFIX}"


def _said(result: PrepareResult, source: Path, out: Path) -> str:
    manifest, store = result.manifest, shown(out)
    if result.is_up_to_date:
        return f"using the store {store}: it is up to date with {source}"
    counts = ", ".join(f"{manifest.num_rows(split):,} {split}" for split in Split)
    how = "written again, as the pictures have changed" if result.is_refreshed else "prepared"
    return f"store {store} {how} from {source}: {len(manifest.classes)} classes; {counts}"

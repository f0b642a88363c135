"""The version of a Delta table that a run reads: chosen once, saved, and read again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from stepladder.config.load import load_job
from stepladder.config.options import JobConfig
from stepladder.data.reading.examples import Source
from stepladder.data.tables.listing import reading_version
from stepladder.data.tables.source import TableSource
from stepladder.errors import StepladderError, UsageError
from stepladder.task.contract import Task
from stepladder.training.setup.build import Sources, open_sources
from stepladder.training.setup.run_folder import CONFIG


def open_at_version(task: Task, version: int | None, *, earlier: int | None = None) -> Sources:
    """Read the splits of a task, its Delta table at a fixed version.

    Args:
        version: the requested version; None: the earlier one.
        earlier: the version that an earlier attempt read, if the table has it; None: the latest.

    Raises:
        UsageError: as `at_table_version`.
        DataError: if there is nothing to train on, or the version cannot be read any more.
    """
    wanted = earlier if version is None else version
    sources = open_sources(task) if wanted is None else _open_at(task, wanted)
    return at_table_version(sources, version)


def _open_at(task: Task, version: int) -> Sources:
    try:
        with reading_version(version) as asked:
            sources = open_sources(task)
    except StepladderError as error:
        try:  # an error in the version is reported below, if the version is used at all
            sources = open_sources(task)
        except StepladderError:
            raise error from None
    train = sources.train
    if not isinstance(train, TableSource) or not (others := asked - {train.place}):
        return sources
    with reading_version(version, place=train.place) as asked_again:
        again = open_sources(task)  # the version applies to one table only
    if held := others - asked_again:
        raise UsageError(
            f"--data.table-version {version} is for the table of training examples, but the Task "
            "also read this other Delta table at that version",
            where=", ".join(sorted(held)),
            why="The Task keeps this other table open, so it cannot be opened again at its own "
            "latest version.",
            fix="In the Task, set the version of this other table: open_table(PATH, version=N).",
        )
    return again


def earlier_version(run: Path) -> int | None:
    """Return the version that an earlier attempt in a run's folder read; None without one.

    Raises:
        UsageError: if its config cannot be read.
    """
    written = run / CONFIG
    is_there = os.access(written, os.R_OK)  # an unusable folder is reported later
    return load_job(written).recipe.data.table_version if is_there else None


def name_table_version(
    job: JobConfig, sources: Sources, *, earlier: JobConfig | None = None
) -> JobConfig:
    """Set the version of the training data's Delta table in a job, unless it has one.

    Args:
        earlier: the config of an earlier attempt, whose version is kept.
    """
    data = job.recipe.data
    version = data.table_version
    if version is None and earlier is not None:
        version = earlier.recipe.data.table_version
    if version is None and isinstance(sources.train, TableSource):
        version = sources.train.version
    if version == data.table_version:
        return job
    return replace(job, recipe=replace(job.recipe, data=replace(data, table_version=version)))


def at_table_version(sources: Sources, version: int | None) -> Sources:
    """Read the splits from a version of the training data's Delta table; None: unchanged.

    A split from another table does not change: the Task sets its version.

    Raises:
        UsageError: if the data is not a Delta table, or the Task sets another version of it.
        DataError: if the version can no longer be read.
    """
    if version is None:
        return sources
    train = sources.train
    if not isinstance(train, TableSource) or train.version is None:
        raise UsageError(
            f"--data.table-version {version} names the version of a Delta table, but the training "
            "data of the Task are not a Delta table",
            where="data.table_version",
            fix="Leave the option out, or return open_table(PATH) of a Delta table from data() of "
            "the Task.",
        )
    return replace(
        sources,
        **{
            split: _at_version(source, version)
            for split, source in vars(sources).items()
            if isinstance(source, TableSource) and source.place == train.place
        },
    )


def _at_version(source: TableSource, version: int) -> Source:
    if source.version == version:
        return source
    if source.is_pinned:
        raise UsageError(
            f"the Task opens version {source.version} of its training table, a Delta table, but "
            f"the option data.table_version of this run is {version}",
            where="data.table_version",
            fix=f"Remove version={source.version} from open_table() in the Task, or type "
            f"--data.table-version {source.version}",
        )
    return source.at_version(version)

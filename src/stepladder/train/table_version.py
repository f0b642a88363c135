"""The version of a Delta table that a run reads: chosen once, written down, read again."""

from __future__ import annotations

from dataclasses import replace

from stepladder.config.options import JobConfig
from stepladder.data.examples import Source
from stepladder.data.tables.source import TableSource
from stepladder.errors import UsageError
from stepladder.train.build import Sources


def name_table_version(
    job: JobConfig, sources: Sources, *, earlier: JobConfig | None = None
) -> JobConfig:
    """Write the version of the training data's Delta table into a job, if it names none.

    Args:
        earlier: the config of an earlier attempt, whose version holds.
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
    """Read the splits from a version of the training data's Delta table; None: as they are.

    A split of another table stays as it is: its version is the Task's to name.

    Raises:
        UsageError: if there is no such table, or the Task names another version of it.
        DataError: if the version cannot be read any more.
    """
    if version is None:
        return sources
    train = sources.train
    if not isinstance(train, TableSource) or train.version is None:
        raise UsageError(
            f"version {version} of a table is asked for, and the training data is no Delta table",
            where="data.table_version",
            fix="Leave it out, or let the Task's data give open_table(...) of a Delta table.",
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
            f"the Task reads version {source.version}, and the run version {version}",
            where="data.table_version",
            fix=f"Leave version={source.version} out of the Task's open_table, or read it by "
            f"--data.table-version {source.version}.",
        )
    return source.at_version(version)

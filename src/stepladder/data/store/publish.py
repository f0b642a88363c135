"""Publish a store as a Delta table: add a log; the Parquet files are unchanged."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from stepladder.data.remote.places import shown, supported_place
from stepladder.data.sources.delta_log import LOG_FOLDER, import_deltalake, is_delta, read_version
from stepladder.data.sources.safe_arrow import first_line
from stepladder.data.store.manifest import load_manifest
from stepladder.data.store.verify import list_shards
from stepladder.errors import DataError, ResourceError, UsageError
from stepladder.records import Manifest

_PROPERTIES = {
    "delta.appendOnly": "true",
    # VACUUM would remove manifest and indexes, which are not in the log
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A store that is also a Delta table.

    Attributes:
        folder: folder of the store and the table.
        version: version of the table.
        num_files, num_rows: number of files and rows of the table.
        is_new: whether the log was just written.
    """

    folder: Path
    version: int
    num_files: int
    num_rows: int
    is_new: bool


def publish_as_delta(store: Path) -> PublishedTable:
    """Write a Delta log of a store's files; an existing log that matches is kept.

    The store itself is unchanged. If the store is prepared again, its folder is replaced with the
    log, and it must be published again.

    Raises:
        MissingExtraError: if deltalake is not installed.
        UsageError: if the store is not on this machine, or has the log of another table.
        DataError: if it is not a store, or files are missing.
    """
    if supported_place(store) is not None:
        raise UsageError(
            "only a store in a local folder can be published",
            where=shown(store),
            fix="Prepare the store in a local folder, publish it there, then upload the whole "
            "folder, including _delta_log.",
        )
    store = store.expanduser().resolve()
    manifest = load_manifest(store)
    problems = list_shards(store, manifest)
    if problems:
        raise DataError(
            problems[0], where=str(store), fix=f"List all problems: stepladder verify {store}"
        )
    import_deltalake("publishing a store as a Delta table")
    is_new = not _has_commits(store)
    if is_new:
        _write_log(store, manifest)
    version = _published_version(store, manifest)
    return PublishedTable(
        folder=store,
        version=version,
        num_files=len(manifest.shards),
        num_rows=sum(shard.num_rows for shard in manifest.shards),
        is_new=is_new,
    )


def _write_log(store: Path, manifest: Manifest) -> None:
    """Write the first version of the table.

    Raises:
        ResourceError: if it cannot be written; a partial log is removed.
    """
    from deltalake import convert_to_deltalake
    from deltalake.exceptions import DeltaError

    try:
        convert_to_deltalake(
            str(store),
            description=f"stepladder store {manifest.fingerprint}",
            configuration=_PROPERTIES,
        )
    except (DeltaError, OSError) as error:
        if not _has_commits(store):
            shutil.rmtree(store / LOG_FOLDER, ignore_errors=True)
        raise ResourceError(
            f"cannot write the Delta log here ({first_line(error)})",
            where=str(store / LOG_FOLDER),
            why="Publishing needs a writable folder on a file system that supports renames.",
            fix="Copy the store to a local disk on which you may write, and publish it there.",
        ) from None


def _has_commits(store: Path) -> bool:
    return is_delta(store) and any((store / LOG_FOLDER).glob("*.json"))


def _published_version(store: Path, manifest: Manifest) -> int:
    """Return the table's version after checking its files against the manifest."""
    table = read_version(store, None)
    listed = {file.name: file.size_bytes for file in table.files}
    if listed != {shard.name: shard.size_bytes for shard in manifest.shards}:
        raise UsageError(
            "the Delta log in the folder of the store lists other files than the store has",
            where=str(store / LOG_FOLDER),
            why="It is from an older store, or was written by another program.",
            fix=f"Remove the log, then publish the store again: rm -r {store / LOG_FOLDER}",
        )
    return table.version

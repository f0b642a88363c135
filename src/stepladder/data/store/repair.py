"""Repair a store: recreate its damaged files from the pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path

from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.decode import decode_versions
from stepladder.data.prepare.engine import Engine
from stepladder.data.prepare.near_file import LOG_NAME
from stepladder.data.prepare.prepare import open_engine, plan_of
from stepladder.data.prepare.target import HASHES_NAME, FolderTarget, open_target
from stepladder.data.prepare.work_folder import WorkFolder, disk_errors_named
from stepladder.data.remote.copies import FolderCopies
from stepladder.data.store.index import index_path
from stepladder.data.store.manifest import PREPARE_AGAIN, is_copy, load_manifest
from stepladder.data.store.verify import damaged_shards
from stepladder.errors import DataError
from stepladder.machine.filesystem import sha256_of
from stepladder.records import Manifest, ShardInfo, fsync_dir, read_json
from stepladder.records.from_json import from_json


def repair_store(path: Path, *, source: Path | None = None) -> list[str]:
    """Replace damaged files with files that are byte-identical to the originals.

    The manifest is unchanged, so runs on the store can resume. A reader that has a damaged file
    open keeps it. If the repair is stopped, each file is the old or the new one; on a mount without
    renames a file may be incomplete, and running the same command again repairs it.

    Args:
        path: the store.
        source: current location of its pictures; None: the original location.

    Returns:
        Names of the files that were recreated.

    Raises:
        DataError: if a file cannot be recreated; the other damaged files are repaired.
        ResourceError: if the disk is full, or a prepare is running in the same folder.
    """
    path = path.expanduser().absolute()
    manifest = load_manifest(path)
    damaged = damaged_shards(path, manifest)
    if not damaged:
        return []
    config = _config_of(path, source)
    engine = open_engine(config)
    target = open_target(path)
    place = target.work  # the same as of prepare, so that none writes to the store meanwhile
    work = WorkFolder(place.root / "repair")
    with disk_errors_named(place), place.held(), engine.working():
        work.make()
        try:
            _make(engine, config, work, {info.name for info in damaged}, earlier=path / HASHES_NAME)
            put = _rename if isinstance(target, FolderTarget) else _copy
            return _put_in_place(work.store, path, manifest, damaged, put=put)
        finally:
            work.remove()
            if [item.name for item in place.root.iterdir()] == ["lock"]:
                place.remove()


def _make(
    engine: Engine, config: PrepareConfig, work: WorkFolder, names: Set[str], *, earlier: Path
) -> None:
    plan = plan_of(engine.hash(work, earlier=earlier, on_done=_pass_over), config)
    wanted = tuple(shard for shard in plan.shards if shard.name in names)
    engine.make(replace(plan, shards=wanted), work, on_found=_pass_over, on_row=_pass_over)


def _pass_over(*_: object) -> None:
    """Ignore progress, as a file of 64 MiB is written quickly."""


def _config_of(path: Path, source: Path | None) -> PrepareConfig:
    if is_copy(path):
        raise DataError(
            "this is not a store that can be repaired, but a decoded copy of one, which a run "
            "writes and can write again",
            where=str(path),
            fix=f"Remove the copy; the next run makes a new one: stepladder clean "
            f"{path.parent.parent} --yes",
        )
    try:
        log = read_json(path / LOG_NAME)
        config = from_json(PrepareConfig, log["config"])
    except (OSError, KeyError, TypeError, DataError):
        raise DataError(
            "the store cannot be repaired: this file does not record from which pictures and with "
            "which options the store was made",
            where=str(path / LOG_NAME),
            fix=PREPARE_AGAIN,
        ) from None
    return replace(config, out=path, source=source or config.source)


def _put_in_place(
    made: Path,
    path: Path,
    manifest: Manifest,
    damaged: Sequence[ShardInfo],
    *,
    put: Callable[[Path, Path], None],
) -> list[str]:
    """Move recreated files that match the manifest into the store; keep the others.

    Args:
        put: moves a file into the store's folder.
    """
    mended = [info.name for info in damaged if _sha256_of(made / info.name) == info.sha256]
    for name in mended:
        put(index_path(made / name), path)
        put(made / name, path)
    others = [info.name for info in damaged if info.name not in mended]
    if others:
        now = decode_versions()
        changed = [
            f"{name} {was} -> {now.get(name, 'none')}"
            for name, was in manifest.versions.items()
            if now.get(name) != was
        ]
        raise DataError(
            f"these files of the store cannot be made again: {', '.join(others)}, because the "
            "source pictures have changed" + (" or are decoded differently now" if changed else ""),
            where=str(path),
            why=f"Since then, these versions changed: {', '.join(changed)}." if changed else None,
            fix=PREPARE_AGAIN,
        )
    return mended


def _rename(file: Path, folder: Path) -> None:
    file.replace(folder / file.name)
    fsync_dir(folder)


def _copy(file: Path, folder: Path) -> None:
    sha256 = _sha256_of(file)
    assert sha256 is not None
    FolderCopies(folder).put_file(file.name, file, sha256=sha256)


def _sha256_of(shard: Path) -> str | None:
    if not shard.is_file():
        return None
    return sha256_of(shard)

"""Check at the start of a run that the file system supports what its checkpoints need."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stepladder.errors import ResourceError
from stepladder.machine.filesystem import FileCalls, FolderAbilities, try_abilities

_ADVICE: Final = {
    errno.ENOSPC: "The disk is full: free some space, then run the same command again.",
    errno.EDQUOT: "The disk quota is used up: free some space, then run the same command again.",
    errno.EFBIG: "A file size limit was reached (ulimit -f): raise it, then run the command again.",
    errno.EACCES: "Get write permission for this folder, or choose another --run.dir.",
    errno.EPERM: "Get write permission for this folder, or choose another --run.dir.",
    errno.EROFS: "The file system is read-only: choose another --run.dir.",
    errno.EIO: "The disk reported an error: check it, or choose another --run.dir.",
}


def probe(folder: Path, calls: FileCalls | None = None) -> FolderAbilities:
    """Test in an existing folder what checkpoints need, and leave no files.

    Raises:
        ResourceError: if files cannot be written or replaced by renaming.
    """
    with saving(f"cannot write files in {folder}"):
        abilities = try_abilities(folder, calls)
    if not abilities.has_file_rename:
        raise ResourceError(
            f"the file system of {folder} cannot replace a file by renaming another, which is how "
            "checkpoints are saved safely",
            fix="Choose a folder on another disk: --run.dir FOLDER",
        )
    return abilities


def limits(abilities: FolderAbilities) -> list[str]:
    """List what the file system does not support, and what is done instead."""
    sentences = (
        (
            abilities.has_hard_links,
            "the disk of the run has no hard links, so frozen weights are copied into each "
            "checkpoint, which needs more space",
        ),
        (
            abilities.has_folder_rename,
            "the disk of the run cannot rename folders, so a checkpoint that is being written when "
            "the run is killed is lost (older ones are kept)",
        ),
        (
            abilities.has_folder_sync,
            "the disk of the run cannot confirm that a folder was written, so a power cut may lose "
            "the newest checkpoint",
        ),
        (
            abilities.has_locks,
            "the disk of the run has no file locks: do not start two runs in this folder at the "
            "same time",
        ),
    )
    return [sentence for works, sentence in sentences if not works]


def require_space(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """Check that the disk has enough free space.

    Raises:
        ResourceError: if less is free than needed, with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ResourceError(
            f"not enough disk space for {purpose}: {num_bytes / 1e6:.0f} MB needed, "
            f"{free / 1e6:.0f} MB free",
            where=str(folder),
            fix="Free some space, or choose a folder on another disk: --run.dir FOLDER",
        )


@contextmanager
def saving(what: str, *, where: Path | None = None, why: str | None = None) -> Iterator[None]:
    """Turn an OSError into an error with advice.

    Raises:
        ResourceError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise ResourceError(
            f"{what}: {reason}",
            where=str(where) if where else None,
            why=why,
            fix=_ADVICE.get(error.errno or 0, "Choose another --run.dir."),
        ) from error

"""What a run needs of the file system under its folder: asked at its start, not at a first save."""

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
    errno.EACCES: "Give yourself write permission there, or choose another --run.dir.",
    errno.EPERM: "Give yourself write permission there, or choose another --run.dir.",
    errno.EROFS: "The file system is read-only: choose another --run.dir.",
    errno.EIO: "The disk reported an error: check it, or choose another --run.dir.",
}


def probe(folder: Path, calls: FileCalls | None = None) -> FolderAbilities:
    """Try in an existing folder what checkpoints need, and leave nothing behind.

    Raises:
        ResourceError: if files cannot be written there, or not renamed over one another.
    """
    with saving(f"nothing can be written in {folder}"):
        abilities = try_abilities(folder, calls)
    if not abilities.has_file_rename:
        raise ResourceError(
            f"files cannot be renamed over one another in {folder}",
            fix="Choose another --run.dir.",
        )
    return abilities


def limits(abilities: FolderAbilities) -> list[str]:
    """Say in words what does not work for a run, and what is done instead."""
    sentences = (
        (abilities.has_hard_links, "no hard links: frozen weights are copied into each checkpoint"),
        (
            abilities.has_folder_rename,
            "folders cannot be renamed: checkpoints are written in place",
        ),
        (
            abilities.has_folder_sync,
            "folders cannot be synced: a power cut may lose a checkpoint",
        ),
        (abilities.has_locks, "no file locks: the lock file is used alone"),
    )
    return [sentence for works, sentence in sentences if not works]


def require_space(folder: Path, num_bytes: int, *, purpose: str) -> None:
    """Refuse to begin what the disk has no room for.

    Raises:
        ResourceError: if fewer bytes are free than asked for; names both.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise ResourceError(
            f"{purpose} needs {num_bytes / 1e6:.0f} MB and {free / 1e6:.0f} MB are free",
            where=str(folder),
            fix="Free some space, or choose another --run.dir.",
        )


@contextmanager
def saving(what: str, *, where: Path | None = None, why: str | None = None) -> Iterator[None]:
    """Turn a refusal of the operating system into an error with advice.

    Raises:
        ResourceError: in place of an OSError.
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

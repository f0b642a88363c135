"""Choose the folders for downloaded files and for files derived from them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from stepladder.data.remote.places import ObjectPlace, supported_place
from stepladder.errors import ResourceError, UsageError
from stepladder.machine.filesystem import find_abilities

NAME: Final = "stepladder-cache"
_MADE: Final = ".made"


def cache_folder(named: Path | None) -> Path:
    """Return the folder of the cache.

    Args:
        named: folder set by the user; None: one in the working folder, or in the system's folder
            for temporary files if the working folder does not support locks or memory mapping.

    Raises:
        UsageError: if it is in an object store or is another address.
    """
    if named is not None:
        if (place := supported_place(named)) is not None:
            raise UsageError(
                "the cache of downloaded files must be a folder on this machine, but this is an "
                "address in an object store",
                where=str(place),
                fix="Use a folder on a local disk: --data.cache-dir FOLDER",
            )
        return named
    here = Path()
    abilities = None if (here / NAME).is_dir() else find_abilities(here)
    if abilities is None or abilities.is_plain:
        return here / NAME
    return scratch_folder() / NAME


def made_folder(named: Path | None, place: ObjectPlace, suffix: str) -> Path:
    """Return the local folder for files derived from a store in an object store.

    Features and decoded copies of a local store are next to it; those of a store in an object store
    are next to the cache, under the store's name: `CACHE.made/BUCKET/STORE.features`.
    """
    cache = cache_folder(named)
    beside = place.beside(suffix)
    return cache.with_name(f"{cache.name}{_MADE}") / beside.bucket / beside.key


def scratch_folder() -> Path:
    """Return this user's scratch folder on a local disk.

    Raises:
        ResourceError: if it belongs to another user.
    """
    folder = _scratch_place()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ResourceError(
            "the folder for temporary files is a symbolic link, or belongs to another user, who "
            "could replace files in it",
            where=str(folder),
            fix="Set TMPDIR to a folder that you own.",
        )
    return folder


def why_not_shared(folder: Path) -> tuple[str, str] | None:
    """Return why a local work folder is used, and how to get a shared one.

    Returns:
        The reason and the fix, as sentences; None if the folder is at the requested place.
    """
    if folder.is_relative_to(_scratch_place()):
        return (
            "Executors write to this temporary folder because folders at the requested path cannot "
            "be renamed or locked.",
            "Set TMPDIR to a folder that all machines mount at the same path, use a path on a file "
            "system with renames and locks, or use --engine local.",
        )
    if any(part.endswith(_MADE) for part in folder.parts):
        return (
            "Executors write to this folder, as they cannot write to the object store directly.",
            "Run the command in a folder that all machines mount at the same path (`features` "
            "also takes one as --data.cache-dir), or use --engine local.",
        )
    return None


def _scratch_place() -> Path:
    return Path(tempfile.gettempdir()) / f"stepladder-{os.getuid()}"

"""Where files that were fetched are kept, and what is made of them."""

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
        named: by the user; None: one in the working folder, or where that is a mount without locks
            or mapping, in the system's folder for temporary files.

    Raises:
        UsageError: if it is a place in an object store, or another address.
    """
    if named is not None:
        if (place := supported_place(named)) is not None:
            raise UsageError(
                "a cache is a folder of this machine, this is a place in an object store",
                where=str(place),
                fix="Name a folder on a local disk with --data.cache-dir.",
            )
        return named
    here = Path()
    abilities = None if (here / NAME).is_dir() else find_abilities(here)
    if abilities is None or abilities.is_plain:
        return here / NAME
    return scratch_folder() / NAME


def made_folder(named: Path | None, place: ObjectPlace, suffix: str) -> Path:
    """Return the folder on this machine for what is made of a store that lies elsewhere.

    Features and decoded copies lie beside a store; those of an object store lie beside the cache,
    under the store's own name: `CACHE.made/BUCKET/STORE.features`.
    """
    cache = cache_folder(named)
    beside = place.beside(suffix)
    return cache.with_name(f"{cache.name}{_MADE}") / beside.bucket / beside.key


def scratch_folder() -> Path:
    """Return this user's folder on a local disk.

    Raises:
        ResourceError: if it is another user's.
    """
    folder = _scratch_place()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ResourceError(
            "this folder is another user's",
            where=str(folder),
            fix="Set TMPDIR to a folder of your own.",
        )
    return folder


def why_not_shared(folder: Path) -> tuple[str, str] | None:
    """Say why work was put into a folder of this machine, and what gives one that others see.

    Returns:
        The reason and the remedy, as sentences; None: the folder is where it was asked for.
    """
    if folder.is_relative_to(_scratch_place()):
        return (
            "It takes the work, as the place that was asked for cannot: folders cannot be renamed "
            "or locked there. Executors write into it.",
            "Set TMPDIR to a folder that all machines mount at the same path, give a place on a "
            "file system with renames and locks, or use --engine local.",
        )
    if any(part.endswith(_MADE) for part in folder.parts):
        return (
            "It takes the work, as an object store cannot. Executors write into it.",
            "Type the command in a folder that all machines mount at the same path (`features` "
            "also takes one as --data.cache-dir), or use --engine local.",
        )
    return None


def _scratch_place() -> Path:
    return Path(tempfile.gettempdir()) / f"stepladder-{os.getuid()}"

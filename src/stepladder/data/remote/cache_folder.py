"""Where files that were fetched are kept, and what is made of them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from stepladder.data.remote.places import ObjectPlace
from stepladder.errors import ResourceError
from stepladder.machine.filesystem import find_abilities

NAME: Final = "stepladder-cache"


def cache_folder(named: Path | None) -> Path:
    """Give the folder of the cache.

    Args:
        named: by the user; None: one in the working folder, or where that is a mount without locks
            or mapping, in the system's folder for temporary files.
    """
    if named is not None:
        return named
    here = Path()
    abilities = None if (here / NAME).is_dir() else find_abilities(here)
    if abilities is None or abilities.is_plain:
        return here / NAME
    return scratch_folder() / NAME


def made_folder(named: Path | None, place: ObjectPlace, suffix: str) -> Path:
    """Give the folder on this machine for what is made of a store that lies elsewhere.

    Features and decoded copies lie beside a store; those of an object store lie beside the cache,
    under the store's own name: `CACHE.made/BUCKET/STORE.features`.
    """
    cache = cache_folder(named)
    beside = place.beside(suffix)
    return cache.with_name(f"{cache.name}.made") / beside.bucket / beside.key


def scratch_folder() -> Path:
    """Give this user's folder on a local disk.

    Raises:
        ResourceError: if it is another user's.
    """
    folder = Path(tempfile.gettempdir()) / f"stepladder-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise ResourceError(
            "this folder is another user's",
            where=str(folder),
            fix="Set TMPDIR to a folder of your own.",
        )
    return folder

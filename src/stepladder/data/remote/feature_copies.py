"""Features of a store in an object store: computed locally, and shared by copies next to the store.

They are read from a folder next to the cache. A file in it contains the address of their copies:
missing features are downloaded from there, and computed features are uploaded if it is writable.
"""

from __future__ import annotations

import json
import os
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from stepladder.data.remote.cache_folder import made_folder
from stepladder.data.remote.copies import Copies, copy_folder, open_copies
from stepladder.data.remote.places import ObjectPlace, object_place
from stepladder.errors import DataError, StepladderError, one_line

PLACE_FILE: Final = "copies-at.txt"
_MANIFEST: Final = "manifest.json"


def remote_features_folder(store: ObjectPlace, cache_dir: Path | None) -> Path:
    """Create the local folder for the features of a store in an object store."""
    folder = made_folder(cache_dir, store, ".features")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLACE_FILE).write_text(f"{store.beside('.features')}\n", encoding="utf-8")
    return folder


@dataclass(frozen=True)
class FeatureCopies:
    """The remote copies of the features in a folder; none for the features of a local store."""

    place: ObjectPlace | None

    @classmethod
    def beside(cls, root: Path) -> FeatureCopies:
        """Read the address of the copies from a folder of features."""
        try:
            return cls(object_place((root / PLACE_FILE).read_text(encoding="utf-8").strip()))
        except OSError:
            return cls(None)

    def fetch(self, path: Path) -> bool:
        """Download the features of one key; return False if they do not exist or it fails."""
        if self.place is None:
            return False
        copies = self._open(path)
        try:
            return _fetch(copies, path)
        except (StepladderError, OSError) as error:
            warnings.warn(
                "the cached features could not be downloaded, so they are computed again: "
                f"{one_line(error)}",
                stacklevel=2,
            )
            return False
        finally:
            copies.close()

    def put(self, path: Path) -> None:
        """Upload the features of one key, the manifest last."""
        if self.place is None or not (path / _MANIFEST).is_file():
            return
        copies = self._open(path)
        try:
            copy_folder(path, copies, last=_MANIFEST)
        except StepladderError as error:
            warnings.warn(
                "the computed features could not be uploaded, so other machines will compute them "
                f"again; here they are in the local cache: {one_line(error)}",
                stacklevel=2,
            )
        finally:
            copies.close()

    def _open(self, path: Path) -> Copies:
        assert self.place is not None
        return open_copies(self.place.join(path.name).path)


def _fetch(copies: Copies, path: Path) -> bool:
    manifest = copies.read(_MANIFEST)
    if manifest is None:
        return False
    names = _names(manifest, copies)
    # unique to this process, as others may download the same; `clean` finds it by its name
    own = TemporaryDirectory(
        prefix=f".{path.name}.",
        suffix=f".{os.getpid()}.tmp",
        dir=path.parent,
        ignore_cleanup_errors=True,
    )
    with own as folder:
        work = Path(folder) / "fetched"  # visible to others once it is renamed
        work.mkdir()
        for name in names:
            copies.fetch(name, work / name)
        (work / _MANIFEST).write_bytes(manifest)
        with suppress(OSError):  # downloaded or computed by another process in the meantime
            work.rename(path)
    return (path / _MANIFEST).is_file()


def _names(manifest: bytes, copies: Copies) -> list[str]:
    """Return the files in a manifest, after checking that no name leads outside the folder."""
    try:
        names = list(json.loads(manifest)["sha256"])
        is_plain = all(PurePosixPath(name).name == name for name in names)
    except (ValueError, KeyError, TypeError):
        is_plain, names = False, []
    if not is_plain:
        fix = "Remove these features; they are then computed again."
        raise DataError("the manifest of the features is damaged", where=str(copies), fix=fix)
    return names

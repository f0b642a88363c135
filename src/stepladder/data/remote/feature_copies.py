"""Features of a store in an object store: computed here, and shared by a copy beside the store.

They are read from a folder beside the cache. A file in it names the place of their copies: what is
missing here is fetched from there, what is computed here is sent there, if that may be written.
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
    """Make the folder on this machine for the features of a store that lies elsewhere."""
    folder = made_folder(cache_dir, store, ".features")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLACE_FILE).write_text(f"{store.beside('.features')}\n", encoding="utf-8")
    return folder


@dataclass(frozen=True)
class FeatureCopies:
    """Copies of the features in a folder; none for the features of a store of this machine."""

    place: ObjectPlace | None

    @classmethod
    def beside(cls, root: Path) -> FeatureCopies:
        """Read in a folder of features where their copies are."""
        try:
            return cls(object_place((root / PLACE_FILE).read_text(encoding="utf-8").strip()))
        except OSError:
            return cls(None)

    def fetch(self, path: Path) -> bool:
        """Bring the features of one key to their folder; False if there are none, or not now."""
        if self.place is None:
            return False
        copies = self._open(path)
        try:
            return _fetch(copies, path)
        except (StepladderError, OSError) as error:
            warnings.warn(f"features could not be fetched: {one_line(error)}", stacklevel=2)
            return False
        finally:
            copies.close()

    def put(self, path: Path) -> None:
        """Copy the features of one key, the manifest last."""
        if self.place is None or not (path / _MANIFEST).is_file():
            return
        copies = self._open(path)
        try:
            copy_folder(path, copies, last=_MANIFEST)
        except StepladderError as error:
            warnings.warn(f"features are kept here alone: {one_line(error)}", stacklevel=2)
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
    # of this process alone, as others may fetch the same; `clean` knows it by its name
    own = TemporaryDirectory(
        prefix=f".{path.name}.",
        suffix=f".{os.getpid()}.tmp",
        dir=path.parent,
        ignore_cleanup_errors=True,
    )
    with own as folder:
        work = Path(folder) / "fetched"  # others may read it once it is at its place
        work.mkdir()
        for name in names:
            copies.fetch(name, work / name)
        (work / _MANIFEST).write_bytes(manifest)
        with suppress(OSError):  # fetched or computed by another process meanwhile
            work.rename(path)
    return (path / _MANIFEST).is_file()


def _names(manifest: bytes, copies: Copies) -> list[str]:
    """List the files that a manifest names, none of which may lead elsewhere."""
    try:
        names = list(json.loads(manifest)["sha256"])
        is_plain = all(PurePosixPath(name).name == name for name in names)
    except (ValueError, KeyError, TypeError):
        is_plain, names = False, []
    if not is_plain:
        fix = "Remove what lies there: it is then computed again."
        raise DataError("the manifest of these features is damaged", where=str(copies), fix=fix)
    return names

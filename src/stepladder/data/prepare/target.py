"""Where `prepare` writes a store: a local folder, an object store, or a network mount."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stepladder.data.prepare.findings import read_log_warnings, warnings_in_log
from stepladder.data.prepare.near_file import LOG_NAME
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.remote.cache_folder import made_folder, scratch_folder
from stepladder.data.remote.copies import Copies, FolderCopies, open_copies
from stepladder.data.remote.places import supported_place
from stepladder.data.remote.upload import publish_remote, require_own
from stepladder.data.store.manifest import MANIFEST_NAME, load_manifest, parse_manifest, publish
from stepladder.data.store.verify import list_shards, verify_store
from stepladder.machine.filesystem import find_abilities, nearest_folder
from stepladder.records import Manifest

HASHES_NAME: Final = "prepare_hashes.jsonl"


def open_target(out: Path) -> StoreTarget:
    """Return the target for a store's path or URL.

    Raises:
        UsageError: if other files are there, or the URL is not supported.
    """
    place = supported_place(out)
    if place is not None:
        work = WorkFolder(made_folder(None, place, ".partial"))
        return CopyTarget(open_copies(out), work)
    abilities = find_abilities(nearest_folder(out))
    if abilities is None or abilities.can_hold_work:
        return FolderTarget(out)
    name = hashlib.sha256(str(out).encode()).hexdigest()[:16]
    return CopyTarget(FolderCopies(out), WorkFolder(scratch_folder() / f"{name}.partial"))


class FolderTarget:
    """A folder on a disk: the store is created next to it and renamed.

    Attributes:
        work: folder on a local disk in which the store is created and a run resumes.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self.work = WorkFolder.beside(out)

    def earlier_hashes(self) -> Path:
        """Return the path of the existing store's hashes."""
        return self._out / HASHES_NAME

    def manifest(self) -> Manifest | None:
        """Read the manifest of the existing store.

        Raises:
            DataError: if it is damaged.
        """
        return load_manifest(self._out) if (self._out / MANIFEST_NAME).exists() else None

    def problems(self, manifest: Manifest, *, thorough: bool) -> list[str]:
        """List problems with the files of the existing store."""
        return verify_store(self._out) if thorough else list_shards(self._out, manifest)

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings from its creation."""
        return read_log_warnings(self._out)

    def publish(self, manifest: Manifest, *, on_sent: Callable[[int, int], None]) -> Manifest:
        """Move the finished store there atomically; readers see the old one or the new one."""
        del on_sent
        return publish(self.work.store, self._out, manifest)


class CopyTarget:
    """A place without renames: the store is created on a local disk and copied, manifest last.

    Raises:
        UsageError: if other files are there.
    """

    def __init__(self, out: Copies, work: WorkFolder) -> None:
        self._out = out
        self.work = work
        require_own(out)

    def earlier_hashes(self) -> Path:
        """Fetch the hashes of the existing store."""
        path = self.work.root / "earlier_hashes.jsonl"
        path.write_bytes(self._out.read(HASHES_NAME) or b"")
        return path

    def manifest(self) -> Manifest | None:
        """Read the manifest of the existing store."""
        data = self._out.read(MANIFEST_NAME)
        if data is None:
            return None
        return parse_manifest(_parse(data), where=f"{self._out}/{MANIFEST_NAME}")

    def problems(self, manifest: Manifest, *, thorough: bool) -> list[str]:
        """List problems with the files of the existing store."""
        sizes = self._out.sizes()
        problems = []
        for info in manifest.shards:
            is_there = sizes.get(info.name) == info.size_bytes
            if is_there and thorough:
                is_there = self._out.has(info.name, size_bytes=info.size_bytes, sha256=info.sha256)
            if not is_there:
                problems.append(f"shard {info.name} does not match the manifest")
        return problems

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings from its creation."""
        return warnings_in_log(_parse(self._out.read(LOG_NAME) or b""))

    def publish(self, manifest: Manifest, *, on_sent: Callable[[int, int], None]) -> Manifest:
        """Copy the finished store there, its manifest last.

        Args:
            manifest: manifest of the store.
            on_sent: called with the number of files sent and the total.
        """
        return publish_remote(self.work.store, self._out, manifest, on_sent=on_sent)


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


StoreTarget = FolderTarget | CopyTarget

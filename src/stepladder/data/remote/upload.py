"""Upload a finished store to an object store, or to a mount without the features of a disk.

A store exists once its manifest exists. Files are uploaded first, and existing files are not
uploaded again, so that an interrupted upload can resume. If a file of an older store has to be
replaced, the older manifest is removed first, so that no reader sees files of two stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from stepladder.data.remote.copies import Copies
from stepladder.data.remote.parallel import run_all
from stepladder.data.store.manifest import MANIFEST_NAME, fingerprint_of
from stepladder.errors import UsageError
from stepladder.machine.filesystem import sha256_of
from stepladder.records import Manifest, write_json

MARKER: Final = ".stepladder-upload"
"""Exists while a store is being written, so that the next prepare recognises it as a store."""
_PARALLEL_FILES: Final = 4
_OTHER_FILES: Final = {
    "quarantine.csv",
    "near_duplicates.csv",
    "prepare_log.json",
    "prepare_hashes.jsonl",
    MANIFEST_NAME,
}


def publish_remote(
    work: Path,
    out: Copies,
    manifest: Manifest,
    *,
    on_sent: Callable[[int, int], None],
) -> Manifest:
    """Copy the files of a finished store, its manifest last, then remove those of an older one.

    Args:
        work: folder of the finished files; it is kept, and the manifest is added to it.
        on_sent: called with the number of uploaded files and the total.

    Returns:
        The manifest with its fingerprint.

    Raises:
        UsageError: if the target contains something other than a store.
        ResourceError: if it cannot be written; running the same command again resumes.
    """
    manifest = replace(manifest, fingerprint=fingerprint_of(manifest))
    there = require_own(out)
    hashes = {info.name: info.sha256 for info in manifest.shards}
    files = {path.name: path for path in sorted(work.iterdir()) if path.name != MANIFEST_NAME}
    missing = {}
    for name, path in files.items():
        sha256 = hashes.get(name) or sha256_of(path)
        size_bytes = path.stat().st_size
        if there.get(name) != size_bytes or not out.has(name, size_bytes=size_bytes, sha256=sha256):
            missing[name] = sha256
    out.put_bytes(MARKER, manifest.fingerprint.encode())
    if MANIFEST_NAME in there and not missing.keys().isdisjoint(there):
        out.delete(MANIFEST_NAME)
    tasks = [partial(out.put_file, name, files[name], sha256=missing[name]) for name in missing]
    if tasks:
        run_all(
            tasks,
            num_threads=_PARALLEL_FILES,
            waits=True,
            on_done=lambda done: on_sent(done, len(tasks)),
        )
    write_json(work / MANIFEST_NAME, manifest)
    out.put_bytes(MANIFEST_NAME, (work / MANIFEST_NAME).read_bytes())
    for name in there:
        if name not in files and name != MANIFEST_NAME and _is_of_store(name):
            out.delete(name)
    out.delete(MARKER)
    return manifest


def require_own(out: Copies) -> dict[str, int]:
    """Return the sizes of the files at the target, if it is empty or a complete or partial store.

    Raises:
        UsageError: if it contains something else.
    """
    there = {name: size for name, size in out.sizes().items() if "/" not in name}
    if there and MANIFEST_NAME not in there and MARKER not in there:
        raise UsageError(
            f"there are already other objects at the address for the store, such as {min(there)}",
            where=str(out),
            why="A new store replaces everything at its address, so they would be lost.",
            fix="Use an address with nothing below it: --out s3://BUCKET/PREFIX",
        )
    return there


def _is_of_store(name: str) -> bool:
    return name.endswith((".parquet", ".parquet.index")) or name in _OTHER_FILES

"""Put a finished store where it is wanted: an object store, or a mount without what disks have.

A store is there when its manifest is. Files go first, and those that are there already are not sent
again, so that an upload that was cut goes on. Where a file of an older store has to be replaced by
one of the same name, the older manifest goes before it: no reader sees files of two stores.
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
"""There while a store is being written, so that the next prepare takes it for one."""
_PARALLEL_FILES: Final = 4
_OTHER_FILES: Final = {"quarantine.csv", "prepare_log.json", "prepare_hashes.jsonl", MANIFEST_NAME}


def publish_remote(
    work: Path,
    out: Copies,
    manifest: Manifest,
    *,
    on_sent: Callable[[int, int], None],
) -> Manifest:
    """Copy the files of a finished store, its manifest last, then remove those of an older one.

    Args:
        work: folder of the finished files; stays, and gets the manifest too.
        on_sent: told how many files have been sent, and of how many.

    Returns:
        The manifest with its fingerprint.

    Raises:
        UsageError: if something lies there that is not a store.
        ResourceError: if it cannot be written; typing the same command again goes on.
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
    """Give the sizes of what lies at a place for a store, if it is a store, begun or whole.

    Raises:
        UsageError: if it is something else.
    """
    there = {name: size for name, size in out.sizes().items() if "/" not in name}
    if there and MANIFEST_NAME not in there and MARKER not in there:
        raise UsageError(
            f"something lies there that is not a store, such as {min(there)}",
            where=str(out),
            fix="Give another --out, or empty this one.",
        )
    return there


def _is_of_store(name: str) -> bool:
    return name.endswith((".parquet", ".parquet.index")) or name in _OTHER_FILES

"""The manifest of a store: fingerprint, strict loading and atomic publishing."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import shlex
import shutil
from ctypes import c_char_p, c_int, c_uint
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from stepladder.config.choices import Encoding, Fit, Split
from stepladder.data.remote.places import object_place
from stepladder.errors import DataError, UsageError
from stepladder.records import Manifest, ShardInfo, fsync_dir, read_json, to_json, write_json
from stepladder.records.near_paths import did_you_mean_path

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
COPY_OF = "decoded_from"
"""Option of a decoded copy of a store: the fingerprint of the original."""
PREPARE_AGAIN = "Create the store again: repeat your `stepladder prepare` command with --overwrite"

_SHARD_NAME = re.compile(r"(train|val|test)-[0-9A-Za-z_]+\.parquet")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def mend(folder: Path) -> str:
    """Return the fix for damaged files of a store with an intact manifest."""
    if object_place(folder) is not None:
        return PREPARE_AGAIN
    return (
        f"Repair it: `stepladder verify {shlex.quote(str(folder))} --repair`. If that fails, "
        "repeat your `stepladder prepare` command with --overwrite"
    )


def fingerprint_of(manifest: Manifest) -> str:
    """Return the hash of a manifest without its fingerprint, as canonical JSON."""
    value = {key: item for key, item in to_json(manifest).items() if key != "fingerprint"}
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def load_manifest(folder: Path) -> Manifest:
    """Read and validate the manifest of a store.

    Raises:
        DataError: if it is missing, changed, damaged or from a newer version.
    """
    path = folder / MANIFEST_NAME
    if not path.is_file():
        raise _no_store(folder)
    try:
        value = read_json(path)
    except DataError as error:
        raise DataError(error.what, where=error.where, fix=PREPARE_AGAIN) from None
    return parse_manifest(value, where=str(path))


def parse_manifest(value: Any, *, where: str) -> Manifest:
    """Parse and validate the JSON value of a manifest, like `load_manifest`.

    Raises:
        DataError: if it is changed, damaged or from a newer version.
    """
    if not isinstance(value, dict):
        raise DataError(
            "this file, which lists the contents of the store, is not a JSON object",
            where=where,
            fix=PREPARE_AGAIN,
        )
    version = value.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(
            f"the store was written in format {version} by another release of stepladder; this "
            f"release reads format {FORMAT_VERSION} only",
            where=where,
            fix=f"{PREPARE_AGAIN}, or install the release of stepladder that wrote it.",
        )
    try:
        manifest = _parse(value)
        problem = _problem(manifest)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        problem = f"the manifest is damaged ({error})"
    if problem:
        raise DataError(problem, where=where, fix=PREPARE_AGAIN)
    return manifest


def is_copy(folder: Path) -> bool:
    """Return True if a folder is a decoded copy of a store, which can be recreated from it."""
    try:
        return COPY_OF in read_json(folder / MANIFEST_NAME)["options"]
    except (OSError, ValueError, TypeError, KeyError, DataError):
        return False


def _no_store(folder: Path) -> DataError:
    for leftover in _leftovers(folder):
        if (leftover / MANIFEST_NAME).is_file():
            return DataError(
                "the store is missing, because stepladder prepare was stopped while it replaced "
                "the old store by a new one",
                where=str(folder),
                fix=f"Move the store, which is complete, to its place: mv {leftover} {folder}",
            )
    what = "the folder is not a store" if folder.is_dir() else "the folder does not exist"
    create = (
        "Create one with stepladder prepare PHOTOS --out STORE, or use the folder of an existing "
        "one; for a run, set it with --data.store."
    )
    fix = create if folder.is_dir() else did_you_mean_path(folder, create, fits=_may_be_meant)
    return DataError(f"{what} (a store has a {MANIFEST_NAME})", where=str(folder), fix=fix)


def _may_be_meant(path: Path) -> bool:
    """Return True for a folder that may be a store or pictures, and not a cache beside them."""
    return path.is_dir() and not path.suffix


def _parse(value: dict[str, Any]) -> Manifest:
    names = {field.name for field in fields(Manifest)}
    if set(value) != names:
        odd = ", ".join(sorted(set(value) ^ names))
        raise ValueError(f"missing or unknown keys: {odd}")
    shards = tuple(ShardInfo(**item) for item in value["shards"])
    counts = {split: tuple(items) for split, items in value["class_counts"].items()}
    lists = {key: tuple(value[key]) for key in ("classes", "channel_sum", "channel_sq_sum")}
    return Manifest(**{**value, **lists, "class_counts": counts, "shards": shards})


def _problem(manifest: Manifest) -> str | None:
    """Return the first problem of a manifest, or None."""
    Encoding(manifest.encoding)
    Fit(manifest.fit)
    counts = [*manifest.channel_sum, *manifest.channel_sq_sum, manifest.num_pixels, manifest.size]
    counts += [count for split in manifest.class_counts.values() for count in split]
    counts += [number for shard in manifest.shards for number in (shard.num_rows, shard.size_bytes)]
    if not all(type(count) is int and count >= 0 for count in counts) or manifest.size == 0:
        return "the manifest is damaged (a count is not an integer)"
    if not all(type(name) is str for name in manifest.classes):
        return "the manifest is damaged (a class has no name)"
    if any(len(split) != len(manifest.classes) for split in manifest.class_counts.values()):
        return "the manifest does not have counts for every class"
    if problem := _shard_problem(manifest):
        return problem
    if manifest.fingerprint != fingerprint_of(manifest):
        return "the manifest was changed after it was written (its fingerprint does not match)"
    return None


def _shard_problem(manifest: Manifest) -> str | None:
    for shard in manifest.shards:
        match = _SHARD_NAME.fullmatch(shard.name)
        if not match or match[1] != shard.split or not _SHA256.fullmatch(shard.sha256):
            return f"the manifest lists an invalid shard: {shard.name!r}"
    if len({shard.name for shard in manifest.shards}) != len(manifest.shards):
        return "the manifest lists a shard twice"
    for split in Split:
        rows = sum(shard.num_rows for shard in manifest.shards if shard.split == split)
        counted = manifest.num_rows(split)
        if rows != counted:
            return f"the manifest counts {counted} pictures of {split}, but its shards have {rows}"
    return None


def publish(work: Path, out: Path, manifest: Manifest) -> Manifest:
    """Publish a finished store atomically.

    Files are synced and the manifest is written last; then the folders are exchanged atomically if
    the system supports it (Linux), or renamed one after the other. If the process stops between the
    two renames, both stores are kept next to it, as `.NAME.new` and `.NAME.old`; `load_manifest`
    reports it, and the next `publish` cleans up.

    Args:
        work: folder of the finished shards, on the same file system as `out`; it is moved.
        out: path of the store; an existing store there is replaced and removed.

    Returns:
        The manifest with its fingerprint.

    Raises:
        UsageError: if `out` has files that are not a store.
    """
    manifest = replace(manifest, fingerprint=fingerprint_of(manifest))
    refuse_foreign(out)
    for path in sorted(work.iterdir()):
        _fsync(path)
    write_json(work / MANIFEST_NAME, manifest)
    fsync_dir(work)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.exists():
        _replace(work, out)
    else:
        work.rename(out)
    fsync_dir(out.parent)
    _remove_leftovers(out)
    return manifest


def _replace(work: Path, out: Path) -> None:
    _remove_leftovers(out)  # safe: `out` exists, so none of them is the last complete store
    new, old = _leftovers(out)
    work.rename(new)  # so that a stop never leaves an old store in the work folder
    if not _exchange(new, out):
        out.rename(old)
        new.rename(out)


def refuse_foreign(out: Path, *marks: str) -> None:
    """Check that `out` is a store, an empty folder or does not exist.

    Args:
        marks: names of files, besides the manifest, that only a store has.

    Raises:
        UsageError: if `out` is something else.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise UsageError(
            "this is a file, but --out must be a folder",
            where=str(out),
            fix="Write the store to another folder: --out FOLDER",
        )
    is_store = any((out / name).is_file() for name in (MANIFEST_NAME, *marks))
    if out.is_dir() and not is_store and any(out.iterdir()):
        raise UsageError(
            "the folder has files that do not belong to a store",
            where=str(out),
            why="A new store replaces the whole folder, so they would be lost.",
            fix="Write the store to a new or empty folder: --out FOLDER",
        )


def _leftovers(out: Path) -> tuple[Path, Path]:
    """Return the folders that a stopped `publish` may leave next to a store, best first."""
    return out.with_name(f".{out.name}.new"), out.with_name(f".{out.name}.old")


def _remove_leftovers(out: Path) -> None:
    for folder in _leftovers(out):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; return False if the system does not support it."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    renameat2.argtypes = [c_int, c_char_p, c_int, c_char_p, c_uint]
    names = os.fsencode(first), os.fsencode(second)
    return bool(renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())

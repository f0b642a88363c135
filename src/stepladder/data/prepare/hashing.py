"""Hash every source file once and save the hashes, so that a resumed run is quick."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from stepladder.data.decoding.formats import BadPictureError, why_unsupported
from stepladder.data.reading.threads import map_in_order
from stepladder.data.sources.listing import Listing, Picture
from stepladder.data.sources.source_file import read_file
from stepladder.records import read_jsonl

_CHUNK = 32
_FLUSH_EVERY = 64  # chunks; those lost in a kill are hashed again
_SETTLED_NS = 10_000_000_000  # far above the timestamp resolution of any file system


@dataclass(frozen=True, slots=True)
class Hashed:
    """Hash and size of one file, or why it is bad.

    Attributes:
        stamp: (size, mtime in ns, inode): the hash is valid while these are unchanged.
        changed_ns: time of the last change (ctime), which programs cannot set, if the file was
            hashed in this run and long enough after the change; else None.
    """

    sha256: bytes
    stamp: tuple[int, int, int]
    reason: str | None = None
    changed_ns: int | None = field(default=None, compare=False)

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.stamp[0]

    def holds(self, data: bytes, path: str, before: os.stat_result) -> bool:
        """Return True if bytes just read are those that were hashed.

        If the file's status has not changed since, they are not hashed again.

        Args:
            data: the bytes read.
            path: the file.
            before: its status from before it was read.
        """
        if self.changed_ns is not None:
            with contextlib.suppress(OSError):
                after = os.stat(path)  # noqa: PTH116 (a str, for speed)
                seen = (self.stamp, self.changed_ns)
                if all((_stamp(status), status.st_ctime_ns) == seen for status in (before, after)):
                    return True
        return hashlib.sha256(data).digest() == self.sha256


def read_hashes(*paths: Path) -> dict[str, Hashed]:
    """Read the hashes of earlier runs, by path; skip missing files and incomplete lines."""
    known = {}
    for path in paths:
        for line in read_jsonl(path):
            try:
                name, size, mtime, inode, digest = line["file"]
                known[str(name)] = Hashed(bytes.fromhex(digest), (size, mtime, inode))
            except (KeyError, TypeError, ValueError):
                continue
    return known


def hash_files(
    listing: Listing,
    *,
    known: Mapping[str, Hashed],
    save_to: Path,
    pool: Executor,
    ahead: int,
    max_pixels: int,
    on_done: Callable[[int], None],
) -> list[Hashed]:
    """Hash all pictures of a listing, in its order.

    Args:
        listing: the pictures.
        known: hashes that are valid while a file's size, mtime and inode are unchanged.
        save_to: JSONL file, one line a file; appended to while files are hashed, and finally
            sorted in the order of the listing.
        pool: threads to read in.
        ahead: maximum number of chunks in flight.
        max_pixels: limits the size of files that are read.
        on_done: called with the number of files done so far.
    """

    def hash_chunk(chunk: list[Picture]) -> list[Hashed]:
        return [
            hash_file(listing.file(picture), known.get(picture.path), max_pixels)
            for picture in chunk
        ]

    pictures = listing.pictures
    chunks = (pictures[at : at + _CHUNK] for at in range(0, len(pictures), _CHUNK))
    done: list[Hashed] = []
    with save_to.open("a", encoding="ascii") as file:
        results = map_in_order(pool, hash_chunk, chunks, ahead=ahead)
        for num_chunks, hashes in enumerate(results):
            fresh = zip(pictures[len(done) : len(done) + len(hashes)], hashes, strict=True)
            _save(file, (pair for pair in fresh if known.get(pair[0].path) != pair[1]))
            if num_chunks % _FLUSH_EVERY == 0:
                file.flush()
            done += hashes
            on_done(len(done))
    save_hashes(save_to, zip(pictures, done, strict=True))
    return done


def save_hashes(path: Path, pairs: Iterable[tuple[Picture, Hashed]]) -> None:
    """Write the hashes of pictures atomically; those with a reason are left out."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("w", encoding="ascii") as file:
        _save(file, pairs)
    temporary.replace(path)


def hash_file(path: str, known: Hashed | None, max_pixels: int) -> Hashed:
    """Hash a file, or return its known hash if it has not changed."""
    if known is not None:
        with contextlib.suppress(OSError, ValueError):  # read_file reports it
            if known.stamp == _stamp(os.stat(path)):  # noqa: PTH116 (a str, for speed)
                return known
    try:
        data, status = read_file(path, max_pixels=max_pixels)
    except BadPictureError as error:
        return Hashed(b"", (0, 0, 0), error.what)
    if (reason := why_unsupported(data)) is not None:
        return Hashed(b"", (0, 0, 0), reason)
    changed_ns = status.st_ctime_ns
    is_settled = time.time_ns() - max(changed_ns, status.st_mtime_ns) > _SETTLED_NS
    return Hashed(
        hashlib.sha256(data).digest(), _stamp(status), changed_ns=changed_ns if is_settled else None
    )


def _save(file: TextIO, pairs: Iterable[tuple[Picture, Hashed]]) -> None:
    for picture, hashed in pairs:
        if hashed.reason is None:
            entry = [picture.path, *hashed.stamp, hashed.sha256.hex()]
            file.write(json.dumps({"file": entry}) + "\n")


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino

"""Decoded copy of a store of JPEGs: a store of pixels that is read instead.

The copy has the rows of the original in the same order and reports the original's fingerprint,
which determines the order of training, so that batches are bitwise identical. It is in
`STORE.pixels/KEY`; the key is a hash of the original's fingerprint and of everything that affects
the pixels.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.config.choices import Encoding, Split
from stepladder.data.decoding.decode import decode_versions
from stepladder.data.prepare.encode import channel_sums, num_summed
from stepladder.data.prepare.near_file import NEAR_NAME
from stepladder.data.prepare.plan import ROW_OVERHEAD_BYTES, check_room
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.reading.threads import map_in_order, one_torch_thread
from stepladder.data.remote.cache_folder import made_folder
from stepladder.data.remote.places import object_place
from stepladder.data.store.manifest import COPY_OF, publish
from stepladder.data.store.pages import decode_path
from stepladder.data.store.store import Store, StoreSplit
from stepladder.errors import DataError, ResourceError
from stepladder.machine.activity import moved
from stepladder.machine.limits import num_cores
from stepladder.records import Manifest, ShardInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AHEAD_PER_WORKER = 4
_OTHERWISE = "run without --data.decode-once"


def copies_folder(store: Path, *, cache_dir: Path | None = None) -> Path:
    """Return the folder of a store's copies: next to it, or in the cache for an object store."""
    place = object_place(store)
    if place is not None:
        return made_folder(cache_dir, place, ".pixels")
    return store.absolute().with_name(f"{store.name}.pixels")


def pixel_copy(store: Store, *, folder: Path | None = None) -> Store:
    """Open the decoded copy of a store of JPEGs; create it if it does not exist.

    Args:
        store: an open store; the copy decodes in the same way. A store of pixels is returned
            unchanged.
        folder: folder of the copies; None: next to the store.

    Returns:
        An open store with the same rows, pixels and fingerprint.

    Raises:
        DataError: if a picture is damaged.
        ResourceError: if the disk is full, or another process is creating the same copy.
    """
    if store.manifest.encoding != Encoding.JPEG:
        return store
    place = (folder or copies_folder(store.path)) / _key(store)
    found = _open(place, store)
    if found is not None:
        return found
    work = WorkFolder.beside(place, elsewhere=_OTHERWISE)
    with _disk_errors_named(place), work.held():
        found = _open(place, store)  # another process may have created it meanwhile
        if found is not None:
            work.remove()
            return found
        try:
            _make(store, work, place)
        finally:
            work.remove()
    made = _open(place, store)
    assert made is not None, "a copy that was just published can be opened"
    return made


def _key(store: Store) -> str:
    facts = [store.fingerprint, store.is_scaled, decode_versions()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _open(place: Path, store: Store) -> Store | None:
    """Open a copy with the original's fingerprint; return None if it is missing or incomplete."""
    try:
        copy = Store.open(place, verify_pages=store.verify_pages)
    except DataError:
        return None
    if copy.manifest.options.get(COPY_OF) != store.fingerprint:
        return None
    manifest = replace(copy.manifest, fingerprint=store.fingerprint)
    return Store(place, manifest, verify_pages=store.verify_pages, is_scaled=store.is_scaled)


def _make(store: Store, work: WorkFolder, place: Path) -> None:
    manifest = store.manifest
    num_rows = sum(manifest.num_rows(split) for split in Split)
    need_bytes = num_rows * (3 * manifest.size**2 + ROW_OVERHEAD_BYTES)
    check_room(need_bytes, work.root, fix=f"Free disk space, or {_OTHERWISE}.")
    work.make()
    train_sums = _Sums()
    infos: list[ShardInfo] = []
    workers = num_cores()
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool, one_torch_thread():
        for split in Split:
            rows = store.split(split)
            if rows is None:
                continue
            sums = train_sums if split is Split.TRAIN else _Sums()
            first = 0
            for info in (info for info in manifest.shards if info.split == split):
                stop = first + info.num_rows
                path = work.store / info.name
                infos.append(_copy_shard(path, rows, range(first, stop), pool, sums))
                first = stop
    if (store.path / NEAR_NAME).is_file():
        shutil.copyfile(store.path / NEAR_NAME, work.store / NEAR_NAME)
    shutil.rmtree(place, ignore_errors=True)  # an existing copy is incomplete: it failed to open
    publish(work.store, place, _manifest(store, infos, train_sums))


@dataclass
class _Sums:
    """Channel sums over pictures, for the manifest."""

    values: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    squares: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))

    def add(self, pixels: NDArray[np.uint8]) -> None:
        values, squares = channel_sums(pixels)
        self.values = self.values + values
        self.squares = self.squares + squares


def _copy_shard(
    path: Path, rows: StoreSplit, some: range, pool: Executor, sums: _Sums
) -> ShardInfo:
    size = rows.picture_shape[0]
    with ShardWriter(path, encoding=Encoding.PIXELS, size=size) as writer:
        ahead = num_cores() * _AHEAD_PER_WORKER
        for row, pixels in zip(
            some, map_in_order(pool, rows.picture, some, ahead=ahead), strict=True
        ):
            moved()
            writer.add(
                sha256=rows.sha256(row),
                path=decode_path(rows.describe(row)),
                label=int(rows.labels[row]),
                picture=pixels,
            )
            sums.add(pixels)
        return writer.close()


def _manifest(store: Store, infos: list[ShardInfo], sums: _Sums) -> Manifest:
    options: dict[str, Any] = {
        **store.manifest.options,
        "encoding": Encoding.PIXELS.value,
        "scaled_decode": store.is_scaled,
        COPY_OF: store.fingerprint,
    }
    values, squares = sums.values.tolist(), sums.squares.tolist()
    return replace(
        store.manifest,
        encoding=Encoding.PIXELS.value,
        channel_sum=(values[0], values[1], values[2]),
        channel_sq_sum=(squares[0], squares[1], squares[2]),
        num_pixels=store.manifest.num_rows(Split.TRAIN) * num_summed(store.manifest.size),
        shards=tuple(infos),
        options=options,
        versions=decode_versions(),
    )


@contextlib.contextmanager
def _disk_errors_named(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ResourceError(
            f"cannot write the decoded copy of the store ({error.strerror})",
            where=str(error.filename or place),
            fix=f"Free disk space, get write permission there, or {_OTHERWISE}.",
        ) from error

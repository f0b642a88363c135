"""Features on disk: a folder for each key, published atomically, checked on every load.

    ROOT/KEY/features.npy    (rows, ...) or, with random views, (rows, views, ...)
    ROOT/KEY/targets.npy     (rows, ...); missing if the examples have no targets
    ROOT/KEY/manifest.json   the facts of the key, the dtype, sha256 of the files

NumPy has no bfloat16: such features are stored as uint16, the upper half of the float32 of the same
value.

KEY is the sha256 of everything that the features depend on, so that different weights, pictures or
settings use a different folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import torch
from torch import Tensor

from stepladder.data.reading.memory import MEMORY_FRAC
from stepladder.data.remote.cache_folder import scratch_folder
from stepladder.data.remote.copies import FolderCopies, copy_folder
from stepladder.data.remote.feature_copies import FeatureCopies
from stepladder.errors import DataError, ResourceError
from stepladder.machine import available_memory_bytes
from stepladder.machine.filesystem import find_abilities, nearest_folder, sha256_of
from stepladder.records import Json, fsync_dir, read_json, to_json, write_json

FEATURES_VERSION: Final = 2  # 1: bfloat16 as float32

_WAIT_S: Final = 0.2

FEATURES: Final = "features.npy"
TARGETS: Final = "targets.npy"
MANIFEST: Final = "manifest.json"
LOCK: Final = "lock"

_PROGRESS: Final = "progress.json"
_SYNC_EVERY_S: Final = 10.0
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class FeatureWriter:
    """Append batches of features; rows on disk are kept if the process is killed.

    Args:
        work: folder to write to.
        num_rows: total number of rows.
        target: folder to which it is renamed.
        facts: the facts of the key, for the manifest.

    Attributes:
        folder: folder that it writes to.
        num_done: rows written.
        seconds: time to compute them.
    """

    def __init__(
        self, work: Path, num_rows: int, *, target: Path, facts: Mapping[str, Json]
    ) -> None:
        self._work, self._target, self._facts = work, target, facts
        self.folder = work
        self._num_rows = num_rows
        self._files: dict[str, _ArrayFile] = {}
        self._dtypes: dict[str, str] = {}
        self.num_done, self.seconds = self._progress()
        self._synced = time.monotonic()

    def append(self, features: Tensor, targets: Tensor | None, *, seconds: float) -> None:
        """Write the features of the next rows.

        Args:
            seconds: time to compute them.

        Raises:
            ResourceError: if the disk has no room for all rows.
        """
        arrays = {FEATURES: _storable(features)}
        if targets is not None:
            arrays[TARGETS] = _storable(targets)
        with disk_errors_named(self._target.parent):
            if not self._files:
                self._dtypes["dtype"] = _dtype_name(features)
                if targets is not None:
                    self._dtypes["targets_dtype"] = _dtype_name(targets)
                self._begin(arrays)
            for name, array in arrays.items():
                self._files[name].append(array)
            self.num_done += len(features)
            self.seconds += seconds
            if time.monotonic() - self._synced > _SYNC_EVERY_S:
                self._sync()

    def publish(self) -> None:
        """Publish the features: hash, sync, write the manifest, rename the folder.

        Raises:
            ResourceError: if the disk is full or cannot be written.
        """
        with disk_errors_named(self._target.parent):
            self._publish()

    def close(self) -> None:
        """Close the files, and save the progress if they are not published."""
        if self._files and self._work.is_dir():
            with contextlib.suppress(OSError):
                self._sync()
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a full disk, which was already reported
                file.close()

    def _begin(self, arrays: Mapping[str, np.ndarray]) -> None:
        row_bytes = sum(array.nbytes // len(array) for array in arrays.values())
        wanted = row_bytes * (self._num_rows - self.num_done)
        free = shutil.disk_usage(self._work).free
        if free < wanted:
            raise ResourceError(
                f"the cached features need {wanted / 1e6:,.0f} MB of disk space, but only "
                f"{free / 1e6:,.0f} MB are free",
                where=str(self._target.parent),
                fix="Free disk space, or train with --features.no-cached.",
            )
        self._files = {
            name: _ArrayFile(
                self._work / name, array, num_rows=self._num_rows, num_done=self.num_done
            )
            for name, array in arrays.items()
        }

    def _publish(self) -> None:
        self._sync()
        manifest = {
            **self._facts,
            "num_rows": self._num_rows,
            **self._dtypes,
            "seconds": self.seconds,
            "sha256": {name: sha256_of(self._work / name) for name in self._files},
        }
        write_json(self._work / MANIFEST, manifest)
        (self._work / _PROGRESS).unlink()
        (self._work / LOCK).unlink(missing_ok=True)
        try:
            self._work.rename(self._target)
        except OSError as error:
            # exists: written by another process on a mount without locks
            if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
                copy_folder(self._work, FolderCopies(self._target), last=MANIFEST)
            shutil.rmtree(self._work, ignore_errors=True)
        fsync_dir(self._target.parent)

    def _sync(self) -> None:
        sizes = {name: file.sync() for name, file in self._files.items()}
        progress = {"num_done": self.num_done, "seconds": self.seconds, "sizes": sizes}
        write_json(self._work / _PROGRESS, progress)
        self._synced = time.monotonic()

    def _progress(self) -> tuple[int, float]:
        """Return the rows that an interrupted process wrote and their seconds, or (0, 0)."""
        try:
            found = read_json(self._work / _PROGRESS)
            sizes = {name: (self._work / name).stat().st_size for name in found["sizes"]}
            is_whole = all(sizes[name] >= size for name, size in found["sizes"].items())
            num_done = int(found["num_done"])
            can_go_on = is_whole and num_done < self._num_rows
            return (num_done, float(found["seconds"])) if can_go_on else (0, 0.0)
        except (DataError, OSError, KeyError, TypeError, ValueError, AttributeError):
            return 0, 0.0


class _ArrayFile:
    """A .npy file that grows by rows; its header has the final number of rows."""

    def __init__(self, path: Path, like: np.ndarray, *, num_rows: int, num_done: int) -> None:
        self._file: BinaryIO = path.open("r+b" if num_done else "w+b")
        header: dict[str, Any] = {
            "descr": np.lib.format.dtype_to_descr(like.dtype),
            "fortran_order": False,
            "shape": (num_rows, *like.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
        end = self._file.tell() + num_done * (like.nbytes // max(len(like), 1))
        self._file.truncate(end)
        self._file.seek(end)

    def append(self, rows: np.ndarray) -> None:
        self._file.write(rows.reshape(-1).view(np.uint8).data)

    def sync(self) -> int:
        """Sync the rows to the disk and return the size of the file."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _storable(tensor: Tensor) -> np.ndarray:
    """Return rows as a NumPy array; bfloat16 as uint16, as NumPy has no bfloat16."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    return np.ascontiguousarray(tensor.numpy())


@contextlib.contextmanager
def disk_errors_named(root: Path) -> Iterator[None]:
    """Convert errors about a full or read-only disk to ResourceError.

    Raises:
        ResourceError: instead of the OSError, with how to fix it.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in _FULL
        raise ResourceError(
            f"the cached features cannot be written ({error.strerror})",
            where=str(root),
            why="The features that are already computed are kept in this folder."
            if is_full
            else None,
            fix="Free disk space, then run the same command again: it resumes from these."
            if is_full
            else "Get write permission there, or train with --features.no-cached.",
        ) from error


@dataclass(frozen=True, kw_only=True)
class Features:
    """Output of a trunk for each example of a split.

    Attributes:
        features: (rows, ...), or (rows, views, ...), in the dtype of the trunk's output.
        targets: (rows, ...), or None.
        seconds: time to compute them.
    """

    features: Tensor
    targets: Tensor | None
    seconds: float


class FeatureFolder:
    """The folder of the features of one key.

    Args:
        root: folder of all keys.
        facts: everything that the features depend on, as JSON.

    Attributes:
        path: folder of this key.
    """

    def __init__(self, root: Path, facts: Mapping[str, Json]) -> None:
        self.facts = {"features_version": FEATURES_VERSION, **facts}
        text = json.dumps(to_json(self.facts), sort_keys=True)
        self.path = root / hashlib.sha256(text.encode()).hexdigest()
        self._copies = FeatureCopies.beside(root)

    def load(self) -> Features | None:
        """Read the features and check their sha256; return None if they do not exist.

        Features larger than a quarter of the free memory are memory-mapped.

        Raises:
            DataError: if they are damaged.
        """
        if not (self.path / MANIFEST).is_file() and not self._copies.fetch(self.path):
            return None
        manifest = read_json(self.path / MANIFEST)
        try:
            digests = {name: sha256_of(self.path / name) for name in manifest["sha256"]}
            held = self._read(manifest) if digests == manifest["sha256"] else None
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        if held is None:
            raise self._damaged("a sha256 differs")
        with contextlib.suppress(OSError):
            os.utime(self.path)  # so that the oldest folder is the least recently used
        return held

    def remove(self) -> None:
        """Remove the features of this key."""
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.old")
        with contextlib.suppress(FileNotFoundError):
            self.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    @contextlib.contextmanager
    def writing(
        self, num_rows: int, *, on_wait: Callable[[], None] = lambda: None
    ) -> Iterator[FeatureWriter | None]:
        """Lock the key and yield its writer, or None if another process has written it meanwhile.

        Resumes the work of an interrupted process. The lock ends with its process.

        Args:
            on_wait: called repeatedly while another process computes the same features; may raise.

        Raises:
            ResourceError: if the disk is full or cannot be written.
        """
        with disk_errors_named(self.path.parent):
            handle = self._lock(on_wait)
        try:
            if (self.path / MANIFEST).is_file():
                shutil.rmtree(self._work, ignore_errors=True)
                yield None
                return
            writer = FeatureWriter(self._work, num_rows, target=self.path, facts=self.facts)
            try:
                yield writer
            finally:
                writer.close()
            self._copies.put(self.path)
        finally:
            os.close(handle)

    @cached_property
    def _work(self) -> Path:
        """Work folder of this key; on a local disk if its own file system cannot be used."""
        name = self.path.name + ".partial"
        abilities = find_abilities(nearest_folder(self.path.parent))
        if abilities is None or abilities.can_hold_work:
            return self.path.with_name(name)
        return scratch_folder() / name

    def _read(self, manifest: Mapping[str, Any]) -> Features:
        has_targets = TARGETS in manifest["sha256"]
        return Features(
            features=_read(self.path / FEATURES, manifest["dtype"]),
            targets=_read(self.path / TARGETS, manifest["targets_dtype"]) if has_targets else None,
            seconds=float(manifest["seconds"]),
        )

    def _damaged(self, why: str) -> DataError:
        return DataError(
            f"the cached features (outputs of the pretrained network) are damaged ({why})",
            where=str(self.path),
            fix=f"Remove the folder, so that the next run computes them again: rm -r {self.path}",
        )

    def _lock(self, on_wait: Callable[[], None]) -> int:
        lock = self._work / LOCK
        while True:
            self._work.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # the lock's holder published the folder in between
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                on_wait()
                time.sleep(_WAIT_S)
                continue
            except OSError:
                return handle  # no locks here; two writers would write the same bytes
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
            os.close(handle)


def _read(path: Path, dtype: str) -> Tensor:
    is_large = path.stat().st_size > MEMORY_FRAC * available_memory_bytes()
    # "c" is a private copy, as torch needs a writable array
    array = np.load(path, mmap_mode="c" if is_large else None, allow_pickle=False)
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

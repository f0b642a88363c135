"""Features on disk: a folder for each key, made beside its place, checked whenever it is read.

    ROOT/KEY/features.npy    (rows, ...) or, with random views, (rows, views, ...)
    ROOT/KEY/targets.npy     (rows, ...); missing where the examples have no targets
    ROOT/KEY/manifest.json   what the key was made of, the number format, sha256 of the files

NumPy lacks bfloat16: such features are kept as their two bytes in a uint16, the upper half of the
float32 of the same value.

KEY is the sha256 of everything that the features depend on, so that other weights, pictures or
settings are another folder.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from stepladder.data.features.feature_writer import (
    FEATURES,
    LOCK,
    MANIFEST,
    TARGETS,
    FeatureWriter,
    disk_errors_named,
    sha256_of,
)
from stepladder.data.reading.memory import MEMORY_FRAC
from stepladder.data.remote.cache_folder import scratch_folder
from stepladder.data.remote.feature_copies import FeatureCopies
from stepladder.errors import DataError
from stepladder.machine import available_memory_bytes
from stepladder.machine.filesystem import find_abilities, nearest_folder
from stepladder.records import Json, read_json, to_json

FEATURES_VERSION: Final = 2  # 1: bfloat16 as float32

_WAIT_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class Features:
    """What a trunk gave for each example of a split.

    Attributes:
        features: (rows, ...), or (rows, views, ...), in the number format that the trunk gave.
        targets: (rows, ...), or None.
        seconds: that it took to compute them.
    """

    features: Tensor
    targets: Tensor | None
    seconds: float


class FeatureFolder:
    """The place of the features of one key.

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
        """Read the features and check their sha256; None if there are none.

        What takes more than a quarter of the free memory stays on disk and is mapped.

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
            os.utime(self.path)  # so that the oldest are those that nobody has used for longest
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
        """Hold the key and give its writer; None if another process has written it meanwhile.

        What an interrupted process wrote is gone on with. The lock dies with its process.

        Args:
            on_wait: called again and again while another process computes the same features; may
                raise.

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
        """Folder that becomes this key's; on a local disk where its place can hold no work."""
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
            f"the features on disk are damaged ({why})",
            where=str(self.path),
            fix="Remove this folder: they are then computed again.",
        )

    def _lock(self, on_wait: Callable[[], None]) -> int:
        lock = self._work / LOCK
        while True:
            self._work.mkdir(parents=True, exist_ok=True)
            try:
                handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # the holder published the folder in between
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                on_wait()
                time.sleep(_WAIT_S)
                continue
            except OSError:
                return handle  # no locks here; two writers then write the same bytes
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), lock.stat()):
                    return handle
            os.close(handle)


def _read(path: Path, dtype: str) -> Tensor:
    is_large = path.stat().st_size > MEMORY_FRAC * available_memory_bytes()
    # "c" is private to us: torch wants an array that may be written
    array = np.load(path, mmap_mode="c" if is_large else None, allow_pickle=False)
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor

"""Weights that training does not change: on disk once a run, named by their content.

`frozen-<sha256>.safetensors` lies beside the checkpoint folders and is hard-linked into each, so
that each folder opens alone and a save each minute writes only what changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, TypeAlias

from torch import Tensor

from stepladder.errors import DataError
from stepladder.machine.filesystem import FileCalls
from stepladder.training.checkpoint.checkpoint_files import (
    FileRecord,
    hash_file,
    hash_tensors,
    write_file,
)
from stepladder.training.checkpoint.tensor_file import serialize

_SHARED: Final = re.compile(r"frozen-([0-9a-f]{64})\.safetensors")
_Identity: TypeAlias = tuple[tuple[str, int, int, tuple[int, ...]], ...]


class FrozenFiles:
    """Keeps frozen weights in a folder; hashes them once, and again only if a tensor changed.

    That a tensor changed is seen by torch's version counter, which every in-place operation
    raises, except one on `.data`.
    """

    def __init__(self, folder: Path, ops: FileCalls) -> None:
        self._folder = folder
        self._ops = ops
        self._seen: tuple[_Identity, Mapping[str, Tensor], FileRecord] | None = None
        self._sound: set[str] = set()

    def link(self, tensors: Mapping[str, Tensor], target: Path) -> tuple[FileRecord, int]:
        """Make `target` hold the tensors: as a link, or where that fails as a file of its own.

        Returns:
            The file's record, and the bytes that were written for it.
        """
        record = self._hash(tensors)
        shared = self._folder / f"frozen-{record.sha256}.safetensors"
        num_written = 0
        if record.sha256 not in self._sound:
            num_written = self._ensure(shared, tensors, record)
            self._sound.add(record.sha256)
        try:
            self._ops.link(shared, target)
        except OSError:  # removed by someone, too many links, or a file system that has none
            self._sound.discard(record.sha256)
            return write_file(target, serialize(tensors)), num_written + record.num_bytes
        return record, num_written

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove the files whose sha256 is not among those used."""
        for path in self._folder.glob("frozen-*.safetensors"):
            match = _SHARED.fullmatch(path.name)
            if match and match[1] not in used:
                path.unlink(missing_ok=True)
                self._sound.discard(match[1])

    def _hash(self, tensors: Mapping[str, Tensor]) -> FileRecord:
        identity = _identify(tensors)
        if identity is not None and self._seen is not None and self._seen[0] == identity:
            return self._seen[2]
        record = hash_tensors(tensors)
        if identity is not None:  # holding the tensors keeps their addresses from being reused
            self._seen = (identity, dict(tensors), record)
        return record

    def _ensure(self, shared: Path, tensors: Mapping[str, Tensor], record: FileRecord) -> int:
        """Write the file unless a sound one is there; gives the bytes written."""
        try:
            if hash_file(self._folder, shared.name) == record:
                return 0
        except DataError:
            pass
        temporary = self._folder / f".{shared.name}.{os.getpid()}.tmp"
        try:
            write_file(temporary, serialize(tensors))
            temporary.replace(shared)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return record.num_bytes


def _identify(tensors: Mapping[str, Tensor]) -> _Identity | None:
    try:
        return tuple(
            (name, tensor.data_ptr(), tensor._version, tuple(tensor.shape))
            for name, tensor in sorted(tensors.items())
        )
    except RuntimeError:  # a tensor made in inference mode counts no versions
        return None

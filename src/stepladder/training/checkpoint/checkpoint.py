"""Checkpoints of a run: one folder each, written atomically.

Saves, loads and prunes them. `checkpoint_folders.py` writes a folder under a temporary name, syncs
it, renames it into place and syncs again; only then are older ones pruned. Frozen weights are
written once per run and hard-linked into each folder (`FrozenFiles`). Incomplete folders after a
kill are ignored, or completed by the next save. docs/checkpoints.md has the file format.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from torch import Tensor

from stepladder.errors import DataError, one_line
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.records import Json
from stepladder.training.checkpoint.checkpoint_files import (
    FROZEN,
    STATE,
    FileRecord,
    Loaded,
    encode_state,
    find_problems,
    group_file,
    hash_file,
    hash_tensors,
    read_folder,
    read_manifest,
    serialize,
    write_file,
    write_manifest,
)
from stepladder.training.checkpoint.checkpoint_folders import CheckpointFolders, is_name, number_of
from stepladder.training.checkpoint.folder_checks import saving

_SHARED: Final = re.compile(r"frozen-([0-9a-f]{64})\.safetensors")
_Identity: TypeAlias = tuple[tuple[str, int, int, tuple[int, ...]], ...]


class FrozenFiles:
    """Keeps frozen weights in a folder; hashes them once, and again only if a tensor changed.

    Changes are detected by torch's version counter, which every in-place operation increments,
    except those on `.data`.
    """

    def __init__(self, folder: Path, ops: FileCalls) -> None:
        self._folder = folder
        self._ops = ops
        self._seen: tuple[_Identity, Mapping[str, Tensor], FileRecord] | None = None
        self._sound: set[str] = set()

    def link(self, tensors: Mapping[str, Tensor], target: Path) -> tuple[FileRecord, int]:
        """Write the tensors to `target`, as a hard link or, if that fails, as a file.

        Returns:
            The file's record, and the number of bytes written.
        """
        record = self._hash(tensors)
        shared = self._folder / f"frozen-{record.sha256}.safetensors"
        num_written = 0
        if record.sha256 not in self._sound:
            num_written = self._ensure(shared, tensors, record)
            self._sound.add(record.sha256)
        try:
            self._ops.link(shared, target)
        except OSError:  # removed, too many links, or a file system without links
            self._sound.discard(record.sha256)
            return write_file(target, serialize(tensors)), num_written + record.num_bytes
        return record, num_written

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove the files whose sha256 is not in `used`."""
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
        if identity is not None:  # keeping the tensors prevents reuse of their addresses
            self._seen = (identity, dict(tensors), record)
        return record

    def _ensure(self, shared: Path, tensors: Mapping[str, Tensor], record: FileRecord) -> int:
        """Write the file unless an intact one exists; return the bytes written."""
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
    except RuntimeError:  # tensors made in inference mode have no version counter
        return None


@dataclass(frozen=True, kw_only=True)
class SavedInfo:
    """Name, time and size of a saved checkpoint.

    Attributes:
        num_bytes: bytes written, without linked frozen weights.
    """

    name: str
    seconds: float
    num_bytes: int


class Checkpoints:
    """Saves, finds and prunes the checkpoints of one run.

    Reading changes nothing on disk. The first save, or `clean`, removes incomplete files of killed
    processes, so the caller of either must hold the run folder's lock.

    Args:
        folder: created by the first save.
        keep_last: number of newest `step-` checkpoints that `prune` keeps.
        file_system: what it supports, as returned by `probe`.
        pinned: names that `prune` keeps while they are in it; another thread may change it.

    Attributes:
        warnings: one line for each damaged checkpoint that was skipped, and for each old one that
            could not be removed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_last: int = 2,
        file_system: FolderAbilities | None = None,
        ops: FileCalls | None = None,
        pinned: AbstractSet[str] = frozenset(),
    ) -> None:
        ops = ops or FileCalls()
        self.warnings: list[str] = []
        self._folder = folder
        self._keep_last = keep_last
        self._pinned = pinned
        self._file_system = file_system or FolderAbilities()
        self._folders = CheckpointFolders(folder, self._file_system, ops)
        self._frozen = FrozenFiles(folder, ops)
        self._newest: _Newest | None = None
        self._damaged: set[str] = set()
        self._is_clean = False

    @property
    def has_hard_links(self) -> bool:
        """Whether checkpoints share one file of frozen weights."""
        return self._file_system.has_hard_links

    def save(
        self,
        name: str,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Json],
        frozen: Mapping[str, Tensor],
    ) -> SavedInfo:
        """Write a checkpoint that survives a kill and a power cut once this returns.

        One of the same name is replaced, and stays readable until the new one is.

        Args:
            name: `step-000000123` or `best-000000123`.
            tensors: by group, then by name; on any device.
            state: JSON values; tuples are loaded as lists, non-finite floats unchanged.
            frozen: tensors that training does not change.

        Raises:
            ResourceError: if it cannot be written; older checkpoints are not affected.
        """
        if not is_name(name):
            raise ValueError(f"not the name of a checkpoint: {name!r}")
        start = time.perf_counter()
        text = encode_state(state)
        files = {group_file(group): members for group, members in tensors.items()}
        why = "Earlier checkpoints are intact, and the run can resume from them."
        with saving(f"the checkpoint {name} could not be saved", where=self._folder, why=why):
            self.clean()
            with self._folders.writing(name) as work:
                records = {file: write_file(work / file, serialize(files[file])) for file in files}
                records[STATE] = write_file(work / STATE, [text])
                num_bytes = sum(record.num_bytes for record in records.values())
                if frozen:
                    records[FROZEN], num_frozen = self._write_frozen(work / FROZEN, frozen)
                    num_bytes += num_frozen
                num_bytes += write_manifest(work, records).num_bytes
        self._damaged.discard(name)
        if name.startswith("step-"):
            self._newest = _Newest(name=name, top=_top(state))
        return SavedInfo(name=name, seconds=time.perf_counter() - start, num_bytes=num_bytes)

    def clean(self) -> None:
        """Remove incomplete files of killed processes, once; needs the run folder's lock."""
        if not self._is_clean:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._folders.clean()
            self._is_clean = True

    def names(self) -> list[str]:
        """List all checkpoints, including damaged ones: `best-` then `step-`, oldest first."""
        return self._folders.names()

    def load(self, name: str) -> Loaded:
        """Load one checkpoint, verifying every byte.

        Raises:
            DataError: if it does not exist or is damaged.
        """
        return read_folder(self._folders.locate(name), name)

    def newest(self) -> Loaded | None:
        """Load the newest intact `step-` checkpoint by number; None if none was ever completed.

        Raises:
            DataError: if all are damaged: the user must decide whether to start from scratch.
        """
        problems = []
        for name in reversed(_steps(self.names())):
            try:
                loaded = self.load(name)
            except DataError as error:
                if self._folders.is_finished(name):
                    problems.append((name, one_line(error)))
                self._damaged.add(name)
                continue
            self.warnings += [
                f"the checkpoint {bad} is damaged, so the older {name} is used instead: {why}"
                for bad, why in problems
            ]
            self._newest = _Newest(name=name, top=_top(loaded.state))
            return loaded
        if problems:
            raise DataError(
                "every checkpoint of this run is damaged",
                where=str(self._folder),
                why="\n  ".join(f"{bad}: {reason}" for bad, reason in problems[:5]),
                fix="Add --overwrite to train from scratch, or restore a copy of a checkpoint.",
            )
        return None

    def prune(self, keep: Collection[str]) -> None:
        """Remove old checkpoints.

        Keeps the names in `keep`, pinned ones, the newest `keep_last` steps that are not known to
        be damaged, and those that the newest intact step lists under "top". Without an intact step,
        all are kept.
        """
        if self._newest is None:
            self.newest()
        newest = self._newest
        if newest is None:
            return
        names = self.names()
        steps = [name for name in _steps(names) if name not in self._damaged]
        kept = {*keep, *self._pinned, newest.name, *newest.top, *steps[-self._keep_last :]}
        try:
            for name in names:
                if name not in kept:
                    self._folders.remove(name)
            with suppress(DataError):  # the files of a damaged checkpoint are unknown
                self._frozen.remove_unused(self._used_frozen())
        except OSError as error:
            self.warnings.append(
                f"old checkpoints could not be removed, and still use disk space: {one_line(error)}"
            )

    def verify(self) -> list[str]:
        """Read every checkpoint and list all problems; empty if all are intact."""
        return [
            problem
            for name in self.names()
            for problem in find_problems(self._folders.locate(name))
        ]

    def _write_frozen(self, path: Path, frozen: Mapping[str, Tensor]) -> tuple[Any, int]:
        if self._file_system.has_hard_links:
            return self._frozen.link(frozen, path)
        record = write_file(path, serialize(frozen))
        return record, record.num_bytes

    def _used_frozen(self) -> set[str]:
        manifests = [read_manifest(self._folders.locate(name)) for name in self.names()]
        return {records[FROZEN].sha256 for records in manifests if FROZEN in records}


def load_best(run: Path) -> Loaded:
    """Load the best weights of a run: the first in the list of its newest intact checkpoint.

    Without validation, those are the newest weights. If a checkpoint is damaged, the next best is
    loaded with a warning.

    Raises:
        DataError: if the run has no intact checkpoint.
    """
    checkpoints = Checkpoints(run / "checkpoints")
    names = checkpoints.names()
    problems = checkpoints.warnings
    last: Loaded | None = None
    try:
        last = checkpoints.newest()
        ranked = _top(last.state) if last else []
    except DataError as error:
        problems.append(one_line(error))
        ranked = [name for name in reversed(names) if name.startswith("best-")]
    best = None
    for name in ranked:
        try:
            best = checkpoints.load(name)
            break
        except DataError as error:
            problems.append(
                f"the checkpoint {name} is damaged and is not used, although its weights were "
                f"among the best: {one_line(error)}"
            )
    for problem in problems:
        warnings.warn(problem, stacklevel=2)
    best = best or last
    if best is None:
        if names:
            fix = "Restore them from a backup, or train again with --overwrite."
            raise DataError("all checkpoints of this run are damaged", where=str(run), fix=fix)
        fix = f"Train first: stepladder train --run.dir {run}"
        raise DataError(
            "this run has no checkpoint, so there are no trained weights to load",
            where=str(run),
            fix=fix,
        )
    return best


def load_last(run: Path) -> Loaded:
    """Load the weights of a run's newest intact checkpoint.

    Raises:
        DataError: if the run has none.
    """
    checkpoints = Checkpoints(run / "checkpoints")
    last = checkpoints.newest()
    for problem in checkpoints.warnings:
        warnings.warn(problem, stacklevel=2)
    return last if last is not None else load_best(run)


def check_fits(model_state: Mapping[str, Tensor], loaded: Loaded) -> None:
    """Check that a checkpoint belongs to the model.

    Raises:
        DataError: if names or shapes differ, with the first five.
    """
    weights = loaded.weights
    differences = [
        f"{name}: checkpoint {_shape(weights, name)}, model {_shape(model_state, name)}"
        for name in sorted(weights.keys() | model_state.keys())
        if _shape(weights, name) != _shape(model_state, name)
    ]
    if differences:
        more = [f"and {len(differences) - 5} more"] if len(differences) > 5 else []
        raise DataError(
            f"the weights in the checkpoint {loaded.name} do not fit the model that the "
            "config describes",
            why="\n  ".join(differences[:5] + more),
            fix="Use the config with which this run began. Or train the new model from "
            "scratch: with --overwrite, or in another folder with --run.dir FOLDER",
        )


@dataclass(frozen=True, kw_only=True)
class _Newest:
    name: str
    top: list[str]


def _steps(names: Collection[str]) -> list[str]:
    return sorted((name for name in names if name.startswith("step-")), key=number_of)


def _top(state: Mapping[str, Any]) -> list[str]:
    """List the best checkpoints according to a state, best first."""
    top = state.get("top")
    entries = top if isinstance(top, list) else []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str) and is_name(name)]


def _shape(tensors: Mapping[str, Tensor], name: str) -> str:
    return str(tuple(tensors[name].shape)) if name in tensors else "absent"

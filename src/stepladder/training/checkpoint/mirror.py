"""A mirror of a run's checkpoints in another place, updated during the run and restored from there.

    MIRROR/config.yaml
    MIRROR/checkpoints/step-000000123/...              as in the run's folder, its manifest last
    MIRROR/checkpoints/frozen-<sha256>.safetensors     frozen tensors, written once

The run's folder is copied after each commit; files that it no longer has are removed once the
newest checkpoint is complete. Failures do not stop training: they are reported when they happen and
at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from stepladder.config.options import RunConfig
from stepladder.data.remote.copies import Copies, open_copies
from stepladder.data.remote.objects import CancelledTransferError
from stepladder.errors import DataError, ResourceError, StepladderError, one_line
from stepladder.machine.filesystem import FileCalls, FolderAbilities
from stepladder.records import write_bytes
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.checkpoint_files import (
    FROZEN,
    MANIFEST,
    find_problems,
    read_manifest,
)
from stepladder.training.checkpoint.checkpoint_folders import CheckpointFolders, is_name, number_of
from stepladder.training.output.display import Display
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG, RunFolder

_END_WAIT_S: Final = 300.0
_STOP_WAIT_S: Final = 8.0  # after a signal, often followed by a kill in ten seconds


class Mirror:
    """Copies checkpoints in the background, as a sink of events: each commit starts a copy.

    Args:
        pinned: contains the checkpoint that is being copied, so that it is not pruned.
    """

    def __init__(self, copies: Copies, run: Path, *, pinned: set[str] | None = None) -> None:
        self._copies = copies
        self._run = run
        self._pinned = set() if pinned is None else pinned
        self._there: dict[str, int] | None = None
        self._changed = threading.Condition()
        self._is_due = False
        self._is_ending = False
        self._is_abandoned = False
        self._failure: Exception | None = None
        self._tell: Callable[[str], None] = _ignore

    def write(self, record: Mapping[str, Any]) -> None:
        """Start a copy after a checkpoint event."""
        if record["event"] == "checkpoint":
            with self._changed:
                self._is_due = True
                self._changed.notify_all()

    def close(self, status: str) -> None:
        """Do nothing: `running` stops the worker."""

    @contextmanager
    def running(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Copy while the block runs; wait for the last copy at its end.

        Args:
            tell: called with failures, from another thread.
        """
        self._tell = tell
        worker = threading.Thread(target=self._work, name="stepladder-mirror", daemon=True)
        worker.start()
        wait_s = _STOP_WAIT_S
        try:
            yield
            wait_s = _END_WAIT_S
        finally:
            with self._changed:
                self._is_ending = True
                self._changed.notify_all()
            worker.join(wait_s)
            self._is_abandoned = True
            self._copies.close()
            if worker.is_alive() or self._failure is not None:
                why = "the copy took too long" if self._failure is None else one_line(self._failure)
                tell(f"the newest checkpoint was not copied to the mirror {self._copies}: {why}")

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_due or self._is_ending)
                if not self._is_due:
                    return
                self._is_due = False
            try:
                self._copy_all()
                self._failure = None
            except CancelledTransferError:
                return
            except (StepladderError, OSError) as error:
                self._failure = error
                self._there = None  # list the mirror again
                if not self._is_abandoned:
                    self._tell(
                        f"a checkpoint could not be copied to the mirror {self._copies} (training "
                        f"continues): {one_line(error)}"
                    )

    def _copy_all(self) -> None:
        """Update the mirror from the run's folder, newest checkpoint first."""
        folder = self._run / CHECKPOINTS
        if self._there is None:
            self._there = self._copies.sizes(f"{CHECKPOINTS}/")
        self._copies.put_bytes(CONFIG, (self._run / CONFIG).read_bytes())
        names = sorted(
            (path.name for path in folder.iterdir() if is_name(path.name)),
            key=lambda name: (name.startswith("step-"), number_of(name)),
            reverse=True,
        )
        copied = {name: self._copy(folder / name) for name in names}
        if names and names[0].startswith("step-") and copied[names[0]] is not None:
            self._prune(copied)

    def _copy(self, folder: Path) -> set[str] | None:
        """Copy one checkpoint; return the shared files it uses, or None if it is incomplete."""
        self._pinned.add(folder.name)
        try:
            return self._copy_pinned(folder)
        except FileNotFoundError:
            if (folder / MANIFEST).exists():
                raise  # the missing file is not ours
            return None  # pruned before it was pinned; a newer one follows
        finally:
            self._pinned.discard(folder.name)

    def _copy_pinned(self, folder: Path) -> set[str] | None:
        assert self._there is not None
        base = f"{CHECKPOINTS}/{folder.name}"
        manifest = (folder / MANIFEST).read_bytes()
        try:
            records = read_manifest(folder)
        except DataError:
            return None  # damaged, which is reported elsewhere
        shared = {_shared(record.sha256) for name, record in records.items() if name == FROZEN}
        manifest_name = f"{base}/{MANIFEST}"
        if manifest_name in self._there and self._copies.read(manifest_name) == manifest:
            return shared
        if manifest_name in self._there:
            self._copies.delete(manifest_name)
            del self._there[manifest_name]
        for name, record in records.items():
            target = _shared(record.sha256) if name == FROZEN else f"{base}/{name}"
            if name == FROZEN and self._there.get(target) == record.num_bytes:
                continue
            self._copies.put_file(
                target,
                folder / name,
                sha256=record.sha256,
                is_cancelled=lambda: self._is_abandoned,
            )
            self._there[target] = record.num_bytes
        self._copies.put_bytes(manifest_name, manifest)
        self._there[manifest_name] = len(manifest)
        return shared

    def _prune(self, copied: Mapping[str, set[str] | None]) -> None:
        """Remove files that the run's folder no longer has, each checkpoint's manifest first.

        Args:
            copied: the shared files that its checkpoints use; None: unknown.
        """
        assert self._there is not None
        used = {name for shared in copied.values() for name in shared or ()}
        is_used_known = None not in copied.values()
        doomed = [
            name
            for name in self._there
            if (_is_member(name) and name.split("/")[1] not in copied)
            or (_is_shared(name) and is_used_known and name not in used)
        ]
        for name in sorted(doomed, key=lambda name: not name.endswith(MANIFEST)):
            self._copies.delete(name)
            del self._there[name]


def begin_mirror(
    config: RunConfig, folder: RunFolder, display: Display, *, brings_back: bool
) -> Mirror | None:
    """Open the mirror of a run, if it has one, and fetch a checkpoint if the folder has none.

    Args:
        brings_back: False if the run starts from scratch: the mirror is of an earlier run.

    Raises:
        UsageError: if the address is invalid, or an extra is missing.
        ResourceError: if it cannot be read.
    """
    if config.mirror is None:
        return None
    copies = open_copies(config.mirror, on_message=display.warning)
    if not brings_back:
        _forget(copies)
    else:
        for sentence in bring_back(copies, folder.path, file_system=folder.file_system):
            display.message(sentence)
    return Mirror(copies, folder.path, pinned=folder.pinned)


def forget_mirrored(config: RunConfig) -> None:
    """Make sure that no checkpoint of an earlier run is fetched from the mirror, if there is one.

    Raises:
        UsageError: if the address is invalid, or an extra is missing.
        ResourceError: if it cannot be read or written.
    """
    if config.mirror is None:
        return
    copies = open_copies(config.mirror)
    try:
        _forget(copies)
    finally:
        copies.close()


def bring_back(copies: Copies, run: Path, *, file_system: FolderAbilities) -> list[str]:
    """Fetch the newest complete checkpoint of a mirror, if a run's folder has none.

    Returns:
        Messages to the user, a sentence each.

    Raises:
        ResourceError: if the mirror cannot be read.
    """
    folder = run / CHECKPOINTS
    if _has_sound(folder):
        return []
    there = copies.sizes(f"{CHECKPOINTS}/")
    whole = {name.split("/")[1] for name in there if name.endswith(f"/{MANIFEST}")}
    steps = sorted((n for n in whole if n.startswith("step-") and is_name(n)), key=number_of)
    config = copies.read(CONFIG)
    if not steps or config is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    folders = CheckpointFolders(folder, file_system, FileCalls())
    said = []
    for name in reversed(steps):
        try:
            _fetch(copies, folders, name)
        except DataError as error:
            said.append(
                f"the copy of the checkpoint {name} in {copies} (run.mirror) is damaged, and an "
                f"older one is used: {one_line(error)}"
            )
            continue
        for best in sorted(n for n in whole if n.startswith("best-") and is_name(n)):
            with suppress(DataError):  # a run can resume without
                _fetch(copies, folders, best)
        if not (run / CONFIG).exists():
            write_bytes(run / CONFIG, config)
        return [*said, f"{name} was fetched from the mirror {copies}"]
    return said


def _forget(copies: Copies) -> None:
    """Remove the manifests; their files are removed once the first new checkpoint is complete."""
    for name in copies.sizes(f"{CHECKPOINTS}/"):
        if _is_member(name) and name.endswith(f"/{MANIFEST}"):
            try:
                copies.delete(name)
            except OSError as error:
                raise ResourceError(
                    "this copy of a checkpoint, of an earlier run, cannot be removed from the "
                    f"folder of copies (run.mirror): {error.strerror}",
                    where=f"{copies}/{name}",
                    fix="Make that folder writable, or choose another one: --run.mirror FOLDER",
                ) from error


def _has_sound(folder: Path) -> bool:
    try:
        return Checkpoints(folder).newest() is not None
    except DataError:
        return False


_OLDER = "An older checkpoint is used, if there is one."


def _fetch(copies: Copies, folders: CheckpointFolders, name: str) -> None:
    base = f"{CHECKPOINTS}/{name}"
    with folders.writing(name) as work:
        manifest = copies.read(f"{base}/{MANIFEST}")
        if manifest is None:
            raise DataError(
                "this copy of a checkpoint is incomplete: it has no manifest.json",
                where=f"{copies}/{base}",
                fix=_OLDER,
            )
        (work / MANIFEST).write_bytes(manifest)
        records = read_manifest(work)
        for member, record in records.items():
            source = _shared(record.sha256) if member == FROZEN else f"{base}/{member}"
            try:
                copies.fetch(source, work / member)
            except FileNotFoundError:
                raise DataError(
                    "this copy of a checkpoint is incomplete: the file is missing",
                    where=source,
                    fix=_OLDER,
                ) from None
        problems = find_problems(work)
        if problems:
            raise DataError(problems[0], where=f"{copies}/{base}", fix=_OLDER)


def _shared(sha256: str) -> str:
    return f"{CHECKPOINTS}/frozen-{sha256}.safetensors"


def _is_member(name: str) -> bool:
    """Return True for a file of a checkpoint; files that are neither this nor shared are kept."""
    parts = name.split("/")
    return len(parts) == 3 and parts[0] == CHECKPOINTS and is_name(parts[1])


def _is_shared(name: str) -> bool:
    return name.startswith(f"{CHECKPOINTS}/frozen-") and name.count("/") == 1


def _ignore(_: str) -> None:
    """Do nothing."""

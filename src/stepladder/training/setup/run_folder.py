"""The folder of a run: create or open it, lock it, compare its config, remove its files."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import yaml

from stepladder.config.yaml_file import entries, read_yaml
from stepladder.data.remote.places import supported_place
from stepladder.errors import UsageError
from stepladder.machine.filesystem import FileCalls, remove
from stepladder.parallel.failures import LOGS
from stepladder.records import write_bytes
from stepladder.records.ledger_file import CLIMB_FILE, LEDGER_FILE, set_ledger_aside
from stepladder.records.run_files import POPULATION_MARKS, has_any
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.folder_checks import probe, saving
from stepladder.training.setup.run_lock import LOCK_FILE, RunLock

CONFIG: Final = "config.yaml"
CHECKPOINTS: Final = "checkpoints"
REPORT: Final = "report.html"
FEATURES: Final = "features"  # of a task whose data is not a store
# In the order in which they are removed: the config last, so that after a kill the folder is still
# recognised as a run, and no checkpoint is left without its config.
_FOLDERS: Final = {
    CHECKPOINTS: re.compile(
        r"\.?(step|best)-\d+(\.\d+\.(tmp|old))?|\.?frozen-[0-9a-f]{64}\.safetensors(\.\d+\.tmp)?"
    ),
    FEATURES: re.compile(r"[0-9a-f]{64}(\.partial)?|\.[0-9a-f]{64}\.\d+\.old"),
    "thumbs": re.compile(r"\d+\.jpg|thumbs\.json"),
    "tensorboard": re.compile(r"events\.out\.tfevents\..+"),
    LOGS: re.compile(
        r"(rank|worker)-\d+\.log|(failure|collectives)-\d+-rank-\d+\.json|collectives-nccl-rank-\d+"
        r"|lost-\d+-rank-\d+|shared-[0-9a-f]+|job\.yaml"
    ),
}
_WRITTEN_FIRST: Final = (LOCK_FILE, LOGS)  # before anything else of a run
_FILES: Final = (
    "summary.json",
    "predictions.csv",
    REPORT,
    "diagnosis.json",
    "diagnosis.html",
    "mlflow.json",
    "events.discarded.jsonl",
    "events.jsonl",
    "env.json",
    CONFIG,
)
_HEAD: Final = "# Resolved by stepladder; read again when the run is resumed.\n"
_MARKS: Final = frozenset({LOCK_FILE, CHECKPOINTS, "events.jsonl"})
_STRAY: Final = re.compile(r"\..+\.\d+\.tmp")


OVERWRITES: Final = "Add --overwrite to train again from scratch"
ABSENT: Final = "absent"
# What may change when a run is resumed: none of it changes what a step computes.
_FREE_GROUPS: Final = ("run.", "loader.", "prepare.", "ladder.", "population.")
_FREE_KEYS: Final = frozenset(
    {
        "auto",  # what it chose is in the config, and is kept
        "data.store",  # a moved store has the same fingerprint, which is compared separately
        "data.table_version",  # likewise
        "data.where",
        "data.verify_pages",
        "data.cache_dir",
        "data.max_cache_bytes",
        "device.threads",
        "device.count",  # the batch and its order are global
        "device.replicas",
        "asynchronous.workers",
        "device.sharded",  # checkpoints are whole
        "device.tensor_parallel",  # likewise
        "device.pipeline_stages",  # likewise
        "device.pipeline_schedule",
        "device.micro_batches",
        "schedule.max_epochs",
        "schedule.max_steps",
        "schedule.max_time_s",
        "schedule.horizon_epochs",
    }
)


def beside(folder: Path) -> str:
    """Return the option for a run folder that does not exist yet, with a similar name."""
    stem, _, number = folder.name.rpartition("-")
    name = stem if stem and number.isdigit() else folder.name
    free = (folder.with_name(f"{name}-{idx}") for idx in count(2))
    return f"--run.dir {shlex.quote(str(next(path for path in free if not path.exists())))}"


def compare_configs(old_file: Path, new_text: str) -> list[str]:
    """List the changes since a config was written, such as `schedule.max_epochs: 60 -> 90`.

    Returns:
        The allowed changes, including keys that only one of the two has.

    Raises:
        UsageError: if any other key changed, or the epochs changed the horizon of the cosine.
    """
    old = _flatten(old_file, read_yaml(old_file))
    new = _flatten(old_file, yaml.compose(new_text, Loader=yaml.SafeLoader))
    changes = {
        key: f"{key}: {old.get(key, ABSENT)} -> {new.get(key, ABSENT)}"
        for key in dict.fromkeys([*old, *new])
        if not _is_same(old.get(key), new.get(key))
    }
    refused = [
        change for key, change in changes.items() if key in old and key in new and not _is_free(key)
    ]
    if refused:
        more = [f"and {len(refused) - 5} more"] if len(refused) > 5 else []
        raise UsageError(
            "this folder already has a run with other options, so the new run cannot use it",
            where=str(old_file),
            why="\n  ".join(refused[:5] + more),
            fix=f"{OVERWRITES}, or {beside(old_file.parent)} to keep both.",
        )
    if _horizon(old) != _horizon(new):
        raise UsageError(
            "this would change the cosine schedule of the learning rate in the middle of the run",
            where=str(old_file),
            why=f"The learning rate decays over {_horizon(old)}; with the new config, it would "
            f"decay over {_horizon(new)}.",
            fix=f"{_keep_horizon(old)}, or {beside(old_file.parent)}.",
        )
    return list(changes.values())


def _is_free(key: str) -> bool:
    return key in _FREE_KEYS or key.startswith(_FREE_GROUPS)


def _flatten(file: Path, node: yaml.Node | None, prefix: str = "") -> dict[str, str]:
    """List the values of a document by dotted key, as text."""
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        is_scalar = isinstance(node, yaml.ScalarNode)
        return {prefix: str(node.value) if is_scalar else yaml.serialize(node).strip()}
    values: dict[str, str] = {}
    for name, _, value in entries(file, node):
        values |= _flatten(file, value, f"{prefix}.{name}" if prefix else name)
    return values


def _is_same(old: str | None, new: str | None) -> bool:
    if old == new or old is None or new is None:
        return old == new
    try:
        return float(old) == float(new)
    except ValueError:
        return False


def _horizon(values: dict[str, str]) -> str | None:
    """Return the horizon over which the learning rate decays, or None if it does not."""
    if values.get("schedule.kind") != "cosine":
        return None
    horizon = values.get("schedule.horizon_epochs", "null")
    if horizon != "null":
        return f"{horizon} epochs"
    steps = values.get("schedule.max_steps", "null")
    epochs = f"{values.get('schedule.max_epochs')} epochs"
    return epochs if steps == "null" else f"{steps} steps, {epochs} at most"


def _keep_horizon(values: dict[str, str]) -> str:
    """Return what to type to keep the horizon of the learning rate."""
    horizon = _horizon(values)
    if horizon and horizon.endswith("epochs"):
        return f"Add --schedule.horizon-epochs {horizon.removesuffix(' epochs')}"
    return "Leave schedule.max_steps and schedule.max_epochs as they were"


def make_folder(path: Path) -> None:
    """Create the folder of a run if it does not exist.

    Raises:
        UsageError: if it is a file, an address in an object store, or another URL.
        ResourceError: if it cannot be created.
    """
    if (place := supported_place(path)) is not None:
        raise UsageError(
            "the folder of a run (run.dir) must be on this machine, but this is an address in an "
            "object store",
            where=str(place),
            fix=f"Set --run.dir to a local folder, and keep copies with --run.mirror {place}.",
        )
    if path.exists() and not path.is_dir():
        fix = "Choose another --run.dir."
        raise UsageError(
            "--run.dir must be a folder for the run, but this is a file", where=str(path), fix=fix
        )
    with saving("the run folder cannot be created", where=path):
        path.mkdir(parents=True, exist_ok=True)


def _require_no_population(folder: Path) -> None:
    """Check that a folder has no population, whose files a run would be mixed with.

    Raises:
        UsageError: if it has.
    """
    if has_any(folder, POPULATION_MARKS):
        raise UsageError(
            "the folder has a population, not a run",
            where=str(folder),
            fix="Choose another folder: --run.dir FOLDER",
        )


class RunFolder:
    """Creates or opens the folder, and tests what its file system supports.

    Args:
        is_population: it is for a population; otherwise the folder must not have one.

    Attributes:
        path: the folder.
        file_system: what it supports.
        holds_run: whether it has a run of an earlier attempt, to resume or to remove.
        pinned: names of checkpoints that are being read and must not be pruned.

    Raises:
        UsageError: if it is a file, or has files of other programs that a run would replace.
        ResourceError: if it cannot be written.
    """

    def __init__(
        self, path: Path, *, ops: FileCalls | None = None, is_population: bool = False
    ) -> None:
        self.path = path
        self._ops = ops or FileCalls()
        make_folder(path)
        if not is_population:
            _require_no_population(path)
        own = [name for name in self._own_names() if name not in _WRITTEN_FIRST]
        if CONFIG not in own and (path / LEDGER_FILE).exists():  # a climb writes it first
            own = [name for name in own if name != REPORT]
        names = set(self._own_names()) - {LOGS}
        is_half_made = CONFIG not in own and len(names) > 1 and bool(_MARKS & names) and bool(own)
        self.holds_run = is_half_made or self._has_our_config()
        if not self.holds_run and own:
            raise UsageError(
                f"the folder for the run already has a file {own[0]} that is not from a run and "
                "would be replaced",
                where=str(path),
                fix=f"Move {own[0]} away, or choose another folder: --run.dir FOLDER",
            )
        if not self.holds_run and (folder := self._foreign_folder()):
            raise UsageError(
                "the folder for the run must be new or empty, or have an earlier run, but it "
                f"contains another folder, {folder}",
                where=str(path),
                why="Files of a run among pictures or other runs could be mistaken for some of "
                "these.",
                fix=f"Choose another folder: --run.dir {path / 'run'}",
            )
        self.file_system = probe(path, self._ops)
        self.pinned: set[str] = set()

    def lock(self) -> RunLock:
        """Return the lock, held within a `with` block.

        Raises:
            ResourceError: on entering, if another process is using the folder.
        """
        return RunLock(self.path / LOCK_FILE, file_system=self.file_system, ops=self._ops)

    def checkpoints(self, *, keep_last: int) -> Checkpoints:
        """Return the checkpoints of this run."""
        return Checkpoints(
            self.path / CHECKPOINTS,
            keep_last=keep_last,
            file_system=self.file_system,
            ops=self._ops,
            pinned=self.pinned,
        )

    def write_config(self, text: str) -> None:
        """Write the resolved config, to be compared by the next attempt.

        Raises:
            ResourceError: if it cannot be written.
        """
        with saving("the config cannot be written", where=self.path / CONFIG):
            write_bytes(self.path / CONFIG, (_HEAD + text).encode())

    def compare_config(self, text: str) -> list[str]:
        """List the allowed changes since the last attempt; empty for a new run.

        Raises:
            UsageError: if something else changed.
        """
        if not (self.path / CONFIG).exists():
            return []
        return compare_configs(self.path / CONFIG, text)

    def overwrite(self, *, keeps_ledger: bool = False) -> None:
        """Remove the files of the earlier run by their names; all other files stay.

        The results of a climb are removed too, and its ledger is set aside: they belong to the
        earlier run. Call it with the lock held.

        Args:
            keeps_ledger: for a climb that trains again itself.

        Raises:
            UsageError: if the folder has other files and is not a run, or a folder in it is a link.
            ResourceError: if a file cannot be removed.
        """
        if not self.holds_run:
            foreign = self._foreign_names()
            if foreign:
                raise UsageError(
                    "--overwrite removes the earlier run in this folder, but the folder is not "
                    f"that of a run: it contains {foreign[0]}",
                    where=str(self.path),
                    fix="Choose another folder: --run.dir FOLDER",
                )
            return
        for name in _FOLDERS:
            if (self.path / name).is_symlink():
                raise UsageError(
                    "--overwrite does not remove this part of the earlier run, because it is a "
                    "symbolic link to another folder",
                    where=str(self.path / name),
                    fix="Remove the link and the folder that it points to yourself.",
                )
        with saving("the earlier run cannot be removed", where=self.path):
            if not keeps_ledger:
                set_ledger_aside(self.path)
            (self.path / CLIMB_FILE).unlink(missing_ok=True)
            self._remove_own()
        self.holds_run = False

    def _has_our_config(self) -> bool:
        try:
            with (self.path / CONFIG).open("rb") as file:
                return file.read(len(_HEAD)) == _HEAD.encode()
        except OSError:
            return False

    def _remove_own(self) -> None:
        for name, pattern in _FOLDERS.items():
            folder = self.path / name
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if pattern.fullmatch(path.name):
                    remove(path)
            with suppress(OSError):  # other files stay
                folder.rmdir()
        for path in sorted(self.path.iterdir()):
            if _STRAY.fullmatch(path.name) and any(name in path.name for name in _FILES):
                remove(path)
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)

    def _own_names(self) -> list[str]:
        names = (*_FOLDERS, *_FILES, LOCK_FILE)
        return [name for name in names if (self.path / name).exists()]

    def _foreign_folder(self) -> str | None:
        """Return a folder in here that is not part of a run; hidden ones do not count."""
        folders = [p.name for p in self.path.iterdir() if p.is_dir() and p.name[0] != "."]
        return min((name for name in folders if name not in _FOLDERS), default=None)

    def _foreign_names(self) -> list[str]:
        return [
            path.name
            for path in sorted(self.path.iterdir())
            if path.name not in _WRITTEN_FIRST and not _STRAY.fullmatch(path.name)
        ]

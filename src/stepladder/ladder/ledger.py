"""trials.jsonl: every prediction, trial and verdict of a climb, one per line, append-only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from stepladder.config.choices import Where
from stepladder.errors import DataError, ResourceError
from stepladder.records import read_jsonl, to_json
from stepladder.records.climb import Baseline
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Prediction, Trial
from stepladder.records.ledger_file import EARLIER_FILE, LEDGER_FILE, set_ledger_aside
from stepladder.records.profile import Profile
from stepladder.training.checkpoint.folder_checks import saving

__all__ = ["EARLIER_FILE", "LEDGER_FILE", "Ledger", "came_of_failure", "trials_of"]

T = TypeVar("T")

_TRIED: Final = (Decision.KEPT, Decision.DROPPED, Decision.UNDECIDED)


@dataclass(frozen=True, kw_only=True)
class KeptTraining:
    """State at the start of the final training; recorded once, also if it is interrupted.

    Attributes:
        ready: keys of the features that were cached already.
        since: when it started, in seconds since the Unix epoch.
        found_s: seconds that computing the cached features took that it used; None: not finished.
    """

    ready: tuple[str, ...]
    since: float
    found_s: float | None = None


class Ledger:
    """Appends lines to a run's ledger, each flushed to disk before the climb continues.

    Each climb, also a resumed one, opens a new Ledger: the first profile of each is marked.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER_FILE
        self._has_profile = False

    def begin(
        self,
        *,
        job: str,
        machine: str,
        options: str,
        commit: str,
        is_fresh: bool,
        where: Where | None = None,
        table_version: int | None = None,
    ) -> bool:
        """Resume the ledger if its verdicts are still valid, or start a new one; nothing is lost.

        An earlier ledger that is not resumed is appended to trials.earlier.jsonl. If only the
        options differ, its profiles and its baseline are copied to the new one; its trainings are
        copied as long as the job is the same.

        Args:
            job, machine, options, commit: keys for which a verdict is valid.
            where: where the job holds its pictures, for a climb that is resumed.
            table_version: of the Delta table that it reads, for the same reason.

        Returns:
            True if an earlier climb is resumed.
        """
        keys = {"job": job, "machine": machine, "options": options, "commit": commit}
        header = self._header()
        if keys.items() <= header.items() and not is_fresh:
            return True
        kinds: tuple[str, ...] = ()
        if header.get("job") == job and not is_fresh:
            is_as_measured = keys.items() <= (header | {"options": options}).items()
            kinds = ("profile", "baseline", "training") if is_as_measured else ("training",)
        held = [record for record in read_jsonl(self.path) if record.get("kind") in kinds]
        set_ledger_aside(self.path.parent)
        self._write("climb", **keys, where=where, table_version=table_version)
        for record in held:
            self._write(**record)
        return False

    def job(self) -> str | None:
        """Return the key of the recorded job; None if there is no ledger."""
        return self._header().get("job")

    def where(self) -> Where | None:
        """Return where the recorded job holds its pictures; None if that is not known."""
        found = self._header().get("where")
        return next((where for where in Where if where.value == found), None)

    def table_version(self) -> int | None:
        """Return the version of the Delta table that the recorded job reads; None: not known."""
        found = self._header().get("table_version")
        return found if isinstance(found, int) else None

    def _header(self) -> dict[str, Any]:
        if not os.access(self.path, os.R_OK):
            return {}
        return next(iter(read_jsonl(self.path)), {})

    def profile(self, profile: Profile, *, recipe: str, at_s: float) -> None:
        """Record a profile; the first one marks where a climb starts from the original job.

        Reused verdicts of earlier climbs are recorded again after it, so that the lines from there
        on hold the whole climb.
        """
        is_first, self._has_profile = not self._has_profile, True
        self._write("profile", recipe=recipe, profile=profile, at_s=at_s, is_first=is_first)

    def prediction(self, prediction: Prediction, *, recipe: str | None = None) -> None:
        """Record a prediction, before its rung is tried.

        Args:
            recipe: key of the recipe that the rung would change, as in a trial.
        """
        self._write("prediction", rung=prediction.rung, recipe=recipe, prediction=prediction)

    def trial(self, trial: Trial) -> None:
        """Record a trial, or why there was none."""
        self._write("trial", trial=trial)

    def baseline(self, baseline: Baseline) -> None:
        """Record the time of the original job."""
        self._write("baseline", baseline=baseline)

    def training(self, training: KeptTraining, *, recipe: str) -> None:
        """Record the state at the start of the final training, and again once it has finished."""
        self._write("training", recipe=recipe, training=training)

    def find_training(self, recipe: str) -> KeptTraining | None:
        """Return the last record of the final training with a recipe."""
        return self._last(KeptTraining, "training", recipe=recipe)

    def spent(self, seconds: float) -> None:
        """Record how long a climb took until it finished or was stopped."""
        self._write("spent", seconds=seconds)

    def spent_s(self) -> float:
        """Return the time of all climbs in this ledger; a killed climb has recorded none."""
        lines = (record for record in read_jsonl(self.path) if record.get("kind") == "spent")
        return sum(float(line["seconds"]) for line in lines)

    def find_profile(self, recipe: str) -> Profile | None:
        """Return the last profile of a recipe in this ledger."""
        return self._last(Profile, "profile", recipe=recipe)

    def find_baseline(self) -> Baseline | None:
        """Return the recorded baseline: the time of the original job."""
        return self._last(Baseline, "baseline")

    def _last(self, kind: type[T], name: str, **fields: str) -> T | None:
        found = None
        for record in read_jsonl(self.path):
            if record.get("kind") == name and fields.items() <= record.items():
                try:
                    found = from_json(kind, record.get(name))
                except DataError:
                    continue
        return found

    def find(
        self, *, job: str, machine: str, options: str, commit: str, recipe: str, rung: str
    ) -> Trial | None:
        """Return the last trial of a rung whose verdict is valid for all of these keys.

        Searches this ledger, then those of other runs in the same parent folder. A rung that failed
        is tried again. A rung that was undone counts as kept: the climb that reads it undoes it
        again at its end.
        """
        keys = (job, machine, options, commit, recipe, rung)
        for trial in self._last_trials(keys):
            if not came_of_failure(trial):
                return trial
        return None

    def _last_trials(self, keys: tuple[str, ...]) -> Iterator[Trial]:
        """Yield the last trial with these keys in each ledger, this one first."""
        beside = sorted(self.path.parent.parent.glob(f"*/{LEDGER_FILE}"))
        for path in (self.path, *(p for p in beside if p != self.path)):
            found = None
            try:
                for trial in trials_of(path):
                    is_tried = trial.verdict.decision in _TRIED and not trial.is_undone
                    if is_tried and _keys_of(trial) == keys:
                        found = trial
            except ResourceError:
                if path == self.path:
                    raise
            if found is not None:
                yield found

    def _write(self, kind: str, **fields: object) -> None:
        line = json.dumps({"kind": kind} | to_json(fields), allow_nan=False) + "\n"
        with (
            saving("the ledger could not be written", where=self.path),
            self.path.open("ab") as file,
        ):
            if _ends_torn(self.path):
                line = f"\n{line}"
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def trials_of(path: Path) -> Iterator[Trial]:
    """Yield the trials of a ledger; lines that are damaged or of another version are skipped.

    Raises:
        ResourceError: if the file cannot be read.
    """
    try:
        for record in read_jsonl(path):
            if record.get("kind") != "trial":
                continue
            try:
                yield from_json(Trial, record.get("trial"))
            except DataError:
                continue
    except OSError as error:
        raise ResourceError(
            f"the record of earlier trials cannot be read ({error.strerror})",
            where=str(path),
            fix=f"Make it readable: chmod u+r {path}. Or move it away, and all trials are "
            "repeated.",
        ) from error


def came_of_failure(trial: Trial) -> bool:
    """Return True if a rung was dropped because of an error, with nothing measured."""
    verdict = trial.verdict
    is_measured = verdict.speed or verdict.accuracy or verdict.loss or verdict.exactness
    return verdict.decision is Decision.DROPPED and not is_measured


def _keys_of(trial: Trial) -> tuple[str, ...]:
    return trial.job, trial.machine, trial.options, trial.commit, trial.recipe, trial.rung


def _ends_torn(path: Path) -> bool:
    """Return True if the last line is incomplete, as a killed process leaves it."""
    size = path.stat().st_size
    if size == 0:
        return False
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) != b"\n"

"""Train a population: an interval of training, a selection, and again until something ends it."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from stepladder.config.choices import Monitor
from stepladder.config.options import PopulationConfig
from stepladder.errors import DivergedError, UsageError
from stepladder.populations.genes import Gene, Scale, Value, Values
from stepladder.populations.members import IntervalCancelled, Members
from stepladder.populations.selection import first_values, ranked, select
from stepladder.records import read_jsonl, to_json, write_bytes, write_json
from stepladder.records.from_json import from_json, read_record
from stepladder.records.population import LINEAGE_FILE, Moment, Score

STATE_FILE: Final = "population.state.json"
_SAVED: Final = "members"
TARGET: Final = "target"
NO_PROGRESS: Final = "no_progress"
MAX_EPOCHS: Final = "max_epochs"
MAX_TIME: Final = "max_time"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a population ends, in addition to the options of PopulationConfig.

    Attributes:
        examples: most examples of each member.
        seconds: most seconds of all attempts; None: no limit.
    """

    examples: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that decides how a population continues, apart from its members' weights.

    Attributes:
        key: of the job; another job does not resume from it.
        generation: the next interval.
        examples: that each member was trained on.
        values: genes of each member in the next interval.
        parents: whose weights each of them has.
        best: the best moment so far.
        since: selections since then.
        seconds: of all attempts.
        saved: name of the saved members.
        ended: why it ended; None: it has not.
    """

    key: str
    generation: int = 0
    examples: int = 0
    values: tuple[tuple[float | int | str, ...], ...]
    parents: tuple[int, ...]
    best: Moment | None = None
    since: int = 0
    seconds: float = 0.0
    saved: str = ""
    ended: str | None = None


@dataclass(kw_only=True)
class Population:
    """A population that is trained in a folder.

    The state is one file, replaced at once after the members are saved: whenever the process is
    killed, the same call continues from the last selection, to the same result.

    Attributes:
        genes, config, seed, limits, monitor: see the options.
        key: of the job and its options.
        show: called with the moments of each interval.
        is_cancelled: called between intervals.
    """

    members: Members
    genes: tuple[Gene, ...]
    config: PopulationConfig
    seed: int
    limits: Limits
    interval: int
    folder: Path
    key: str
    monitor: Monitor = Monitor.VAL_LOSS
    own: Sequence[Value | None] = ()
    show: Callable[[Sequence[Moment], State], None] = lambda *_: None
    is_cancelled: Callable[[], bool] = lambda: False
    moments: list[Moment] = field(default_factory=list)

    def run(self) -> State:
        """Train until the target, the limits or no progress end it; resume if it has begun.

        Returns:
            The last state; its `ended` is None if it was cancelled.

        Raises:
            DivergedError: if all members diverged in one interval.
            DataError: if the saved state is damaged.
            UsageError: if the folder has another population.
        """
        state = self._begin()
        with suppress(IntervalCancelled):
            while state.ended is None and not self.is_cancelled():
                state = self._interval(state)
        return state

    def _begin(self) -> State:
        self.folder.mkdir(parents=True, exist_ok=True)
        state = read_state(self.folder)
        if state is not None:
            refuse_other(self.folder, self.key)
            self.moments = [
                moment
                for moment in read_moments(self.folder)
                if moment.generation < state.generation
            ]
            self.members.load(self.folder, state.saved)
            return state
        forget(self.folder)
        state = State(
            key=self.key,
            values=first_values(self.genes, self.config.members, seed=self.seed, own=self.own),
            parents=tuple(range(self.config.members)),
        )
        self.moments = []
        return self._save(state)

    def _interval(self, state: State) -> State:
        """Train an interval, judge the members, and select."""
        started = time.monotonic()
        num = min(self.interval, self.limits.examples - state.examples)
        self.members.train(state.values, num)
        scores = self.members.scores()
        found = self._moments(state, scores)
        if not any(score.is_finite for score in scores):
            if state.generation == 0:
                forget(self.folder)  # with other ranges, it begins again here
            raise all_diverged(self.folder, state.generation, self.genes)
        _require_accuracy(self.monitor, scores)
        losses = [self._loss(score) for score in scores]
        best, since = state.best, state.since + 1
        first = found[ranked(losses)[0]]
        if best is None or self._loss(first.score) < self._loss(best.score):
            best, since = first, 0
            self.members.keep(first.member)
        heirs = select(
            losses,
            state.values,
            self.genes,
            self.config,
            seed=self.seed,
            generation=state.generation,
        )
        state = replace(
            state,
            generation=state.generation + 1,
            examples=state.examples + num,
            best=best,
            since=since,
            values=tuple(heir.values for heir in heirs),
            parents=tuple(heir.parent for heir in heirs),
            seconds=state.seconds + time.monotonic() - started,
        )
        state = replace(state, ended=self._ended(state))
        if state.ended is None:
            self.members.inherit(state.parents)
        self.moments += found
        state = self._save(state)
        self.show(found, state)
        return state

    def _moments(self, state: State, scores: Sequence[Score]) -> list[Moment]:
        return [
            Moment(
                generation=state.generation,
                member=idx,
                parent=state.parents[idx],
                genes=self._named(state.values[idx]),
                score=score,
            )
            for idx, score in enumerate(scores)
        ]

    def _named(self, values: Values) -> Mapping[str, float | int | str]:
        return {gene.key: value for gene, value in zip(self.genes, values, strict=True)}

    def _loss(self, score: Score) -> float:
        return ranking_loss(self.monitor, score)

    def _ended(self, state: State) -> str | None:
        """Return why a population ends after a selection, or None."""
        assert state.best is not None
        if self.config.target is not None and self._is_reached(state.best.score):
            return TARGET
        if state.since >= self.config.patience:
            return NO_PROGRESS
        if state.examples >= self.limits.examples:
            return MAX_EPOCHS
        limit = self.limits.seconds
        return MAX_TIME if limit is not None and state.seconds >= limit else None

    def _is_reached(self, score: Score) -> bool:
        assert self.config.target is not None
        if self.monitor is Monitor.VAL_LOSS or score.accuracy is None:
            return score.loss <= self.config.target
        return score.accuracy >= self.config.target

    def _save(self, state: State) -> State:
        """Save the members, then the state that names them, then remove the ones before."""
        before = state.saved
        state = replace(state, saved=f"{_SAVED}-{state.generation:06d}")
        _remove(self.folder / state.saved)
        self.members.save(self.folder, state.saved)
        write_moments(self.folder, self.moments)
        write_json(self.folder / STATE_FILE, to_json(state))
        if before and before != state.saved:
            _remove(self.folder / before)
        return state


def _require_accuracy(monitor: Monitor, scores: Sequence[Score]) -> None:
    """Raise UsageError if members are to be ranked by an accuracy that they do not have."""
    has_none = any(score.is_finite and score.accuracy is None for score in scores)
    if monitor is not Monitor.VAL_LOSS and has_none:
        raise UsageError(
            "members cannot be chosen by accuracy: metrics() of the Task has none",
            where="stopping.monitor",
            fix="Choose by loss, --stopping.monitor val_loss, or return sums and counts of "
            "'accuracy' from metrics().",
        )


def ranking_loss(monitor: Monitor, score: Score) -> float:
    """Return what members are ranked by, lower is better; equal accuracies by their loss."""
    if monitor is Monitor.VAL_LOSS or score.accuracy is None or not score.is_finite:
        return score.loss
    return -score.accuracy + 1e-6 * math.tanh(score.loss)


def read_state(folder: Path) -> State | None:
    """Return the state of a population in a folder, or None.

    Raises:
        DataError: if it is damaged.
    """
    path = folder / STATE_FILE
    return read_record(State, path) if path.is_file() else None


def refuse_other(folder: Path, key: str) -> None:
    """Check that a folder has no population of another job.

    Args:
        key: of the job and its options.

    Raises:
        UsageError: if it has.
        DataError: if its state is damaged.
    """
    state = read_state(folder)
    if state is None or state.key == key:
        return
    raise UsageError(
        "the folder has another population: its job, its genes, its data or another option differ",
        where=str(folder),
        fix="Choose another folder with --run.dir FOLDER, or add --overwrite to remove that "
        "population.",
    )


def read_moments(folder: Path) -> list[Moment]:
    """Return all moments that were written.

    Raises:
        DataError: if a line is damaged.
    """
    return [from_json(Moment, line) for line in read_jsonl(folder / LINEAGE_FILE)]


def write_moments(folder: Path, moments: Sequence[Moment]) -> None:
    """Replace the lines of all moments at once."""
    text = "".join(json.dumps(to_json(moment)) + "\n" for moment in moments)
    write_bytes(folder / LINEAGE_FILE, text.encode())


def forget(folder: Path) -> None:
    """Remove the population of a folder."""
    for path in (folder / STATE_FILE, folder / LINEAGE_FILE, *folder.glob(f"{_SAVED}-*")):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def all_diverged(folder: Path, generation: int, genes: Sequence[Gene]) -> DivergedError:
    """Return the error of an interval in which all members diverged."""
    rate = next((gene for gene in genes if gene.key == "batch.lr"), None)
    lower = "Lower the learning rate, --batch.lr"
    if rate is not None:
        scale = " log" if rate.scale is Scale.LOG else ""
        lower = (
            f"Lower the range of {rate.key}, such as {rate.low / 100:g}..{rate.high / 100:g}{scale}"
        )
    again = " Then begin again: add --overwrite." if generation > 0 else ""
    return DivergedError(
        f"the losses of all members became NaN or infinite in interval {generation + 1}",
        where=str(folder),
        why="No member is left whose weights the others could take.",
        fix=f"{lower}, or clip the gradient (--optimizer.clip-norm 1).{again}",
    )

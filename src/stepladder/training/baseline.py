"""Stop a run that is worse than an earlier one at the same point, by more than noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from stepladder.config.choices import BaselineAt, Monitor
from stepladder.config.load import load_job
from stepladder.config.options import RunConfig
from stepladder.errors import StepladderError, UsageError
from stepladder.records import read_json, read_jsonl
from stepladder.stats import Estimate, binomial_sem, mean_estimate
from stepladder.stats.scatter import scatter
from stepladder.training.checkpoint.checkpoint_files import STATE
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.events import EVENTS_FILE
from stepladder.training.setup.run_folder import CHECKPOINTS, CONFIG

STOP_REASON = "worse_than_baseline"
MAX_EXAMPLES: Final = 512  # larger validations do not keep per-example losses
CLEAR = 2.0  # standard deviations of the combined noise
_SUMMARY = "summary.json"


@dataclass(frozen=True)
class Mark:
    """One validation of the earlier run.

    Attributes:
        at: training samples seen, or seconds.
        value: the compared value, lower is better.
        sem: its standard error; 0 if unknown.
        examples: the value of each example, in the order of the split; empty if not kept.
    """

    at: float
    value: float
    sem: float
    examples: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The validations of an earlier run.

    Attributes:
        run: its folder, as given by the user.
        at: the unit of its marks.
        losses, errors: marks by loss, and by error rate; the latter is empty without classes.
        num_val: its number of validation examples; None: unknown.
        task, fingerprint: its task, and the identity of its training data; None: unknown.
    """

    run: str
    at: BaselineAt
    losses: tuple[Mark, ...]
    errors: tuple[Mark, ...]
    num_val: int | None = None
    task: str | None = None
    fingerprint: str | None = None

    def best_until(self, marks: Sequence[Mark], at: float) -> Mark | None:
        """Return the best mark up to a point; None if there is no mark yet."""
        return _best([mark for mark in marks if mark.at <= at])

    def last_gain(self, marks: Sequence[Mark], at: float) -> float:
        """Return by how much the last mark up to a point improved on those before it, or 0."""
        made = [mark for mark in marks if mark.at <= at]
        best, before = _best(made), _best(made[:-1])
        return 0.0 if best is None or before is None else before.value - best.value


def read_baseline(config: RunConfig) -> Baseline | None:
    """Read the validations of the run in `run.baseline`; None if it is not set.

    Raises:
        UsageError: if it is this run, not a folder, or has no validation.
    """
    if config.baseline is None:
        return None
    folder, flag = config.baseline, "run.baseline"
    _require_folder(folder, config.dir, flag)
    events = [e for e in read_jsonl(folder / EVENTS_FILE) if e.get("event") == "validation"]
    summary = _summary(folder)
    num_val, num_train = (_count(summary.get(key)) for key in ("num_val", "num_train"))
    batch = _count(summary.get("global_batch_size")) or _batch_of(folder)
    by_time = config.baseline_at is BaselineAt.WALL_TIME
    losses, errors = [], []
    for event in events:
        at = _finite(event.get("elapsed_s")) if by_time else samples_seen(event, num_train, batch)
        loss, share = _finite(event.get("val_loss")), _finite(event.get("val_accuracy"))
        if at is None:
            continue
        if loss is not None:
            sem = _finite(event.get("val_loss_sem")) or 0.0
            losses.append(Mark(at, loss, sem, _losses(event.get("val_losses"))))
        if share is not None:
            sem = binomial_sem(share, num_val) if num_val else 0.0
            errors.append(Mark(at, 1 - share, sem, _errors(event.get("val_right"))))
    if not losses and not errors:
        raise UsageError(
            "the earlier run that was named as baseline recorded no validations, so this run "
            "cannot be compared with it",
            where=f"{flag}: {folder}",
            fix="Name the folder of a run that reached its first validation, or leave out "
            "--baseline.",
        )
    return Baseline(
        run=str(folder),
        at=config.baseline_at,
        losses=_lean(losses),
        errors=_lean(errors),
        num_val=num_val,
        task=_task_of(folder),
        fingerprint=_text(summary.get("fingerprint")),
    )


def _require_folder(folder: Path, own: Path, flag: str) -> None:
    """Check that a folder can be an earlier run.

    Raises:
        UsageError: if it cannot.
    """
    what, fix = None, "Name the folder of an earlier run."
    if folder.resolve() == own.resolve():
        what = "this is the folder of the run itself, which cannot be compared with itself"
    elif folder.is_file():
        what = "this is a file, but a baseline is the folder of a run"
        fix = f"Name the folder: --baseline {folder.parent}"
    elif not folder.exists():
        what = "this folder does not exist"
    if what is not None:
        raise UsageError(what, where=f"{flag}: {folder}", fix=fix)


def examples_of(result: Evaluation) -> dict[str, Any]:
    """Return the per-example fields of a validation's event.

    Empty for more than `MAX_EXAMPLES` examples.
    """
    if len(result.losses) > MAX_EXAMPLES:
        return {}
    fields: dict[str, Any] = {"val_losses": [float(f"{loss:.5g}") for loss in result.losses]}
    if result.predicted is not None and result.targets is not None:
        is_right = np.equal(result.predicted, result.targets)
        fields["val_right"] = "".join("1" if right else "0" for right in is_right)
    return fields


def samples_seen(
    event: Mapping[str, Any], num_train: float | None, batch: float | None
) -> float | None:
    """Return the training samples that a run had used at an event; None: unknown.

    Args:
        num_train: examples per epoch, whose last batch may be smaller; None: unknown.
        batch: examples per step.
    """
    seen, step, epoch = (_finite(event.get(key)) for key in ("samples_seen", "step", "epoch"))
    if seen is not None:
        return seen
    if step is None or not batch:
        return None
    if not num_train or epoch is None:
        return step * batch
    steps = math.ceil(num_train / batch)
    rest = min(max(step - epoch * steps, 0) * batch, num_train)
    return epoch * num_train + rest


class Against:
    """Counts validations at which a run is worse than an earlier one by more than noise.

    The best values so far of the two runs are compared at the same point. A validation counts if
    this run's is worse by more than twice the noise plus the earlier run's improvement at its last
    validation: with another seed, an equally good run may be one validation behind. The noise
    combines the standard error of the difference with the scatter of the earlier run's curve, once
    for each run. The difference is paired per example if both runs kept their per-example values
    (up to 512 examples); otherwise the errors are combined as if independent. A validation that is
    not worse resets the count; the run stops when the count reaches patience.

    Args:
        baseline: the earlier run; None: nothing is compared.
        patience: validations in a row.
        min_frac: a run worse by less than this fraction of the earlier value never counts.
    """

    def __init__(
        self, baseline: Baseline | None = None, *, patience: int = 1, min_frac: float = 0.0
    ) -> None:
        self.baseline = baseline
        self.patience = patience
        self.min_frac = min_frac
        self.num_worse = 0
        self._best: Estimate | None = None
        self._best_examples: tuple[float, ...] = ()
        self._last: dict[str, Any] = {}

    @property
    def is_exhausted(self) -> bool:
        """Whether the run has been worse for long enough."""
        return self.baseline is not None and self.num_worse >= self.patience

    def judge(
        self, result: Evaluation, monitor: Monitor, *, seen: int, wall_s: float
    ) -> dict[str, Any]:
        """Judge one validation, and return the fields of its event.

        Args:
            monitor: what early stopping monitors; without classes, the loss.
            seen: training samples used.
            wall_s: seconds of the run.
        """
        if self.baseline is None:
            return {}
        monitored = result.monitored(monitor)
        values = mean_estimate(monitored)
        value = values.mean if math.isfinite(values.mean) else math.inf
        sem = values.sem if math.isfinite(values.sem) else 0.0
        if self._best is None or value < self._best.mean:
            self._best = Estimate(value, sem)
            few = monitored if len(monitored) <= MAX_EXAMPLES else monitored[:0]
            self._best_examples = tuple(float(one) for one in few)
        is_loss = monitor is Monitor.VAL_LOSS or result.predicted is None
        marks = self.baseline.losses if is_loss else self.baseline.errors
        at = wall_s if self.baseline.at is BaselineAt.WALL_TIME else float(seen)
        mark = self.baseline.best_until(marks, at)
        if mark is None:
            return {}
        noise = math.hypot(self._error(mark, self._best), _jumps(marks))
        allowed = CLEAR * noise + self.baseline.last_gain(marks, at)
        margin = max(allowed, self.min_frac * abs(mark.value))
        is_worse = self._best.mean - mark.value > margin
        self.num_worse = self.num_worse + 1 if is_worse else 0
        best = self._best.mean if math.isfinite(self._best.mean) else None
        self._last = {
            "run": self.baseline.run,
            "compared": "val_loss" if is_loss else "val_error",
            "at": self.baseline.at.value,
            "point": at,
            "value": best,
            "baseline_value": mark.value,
            "margin": margin,
            "num_worse": self.num_worse,
        }
        return {
            "baseline_value": mark.value,
            "baseline_margin": margin,
            "num_worse_than_baseline": self.num_worse,
        }

    def last(self) -> dict[str, Any] | None:
        """Return the numbers of the last comparison; None without one."""
        return dict(self._last) or None

    def reset(self) -> None:
        """Forget this run's validations, for new data."""
        self.num_worse, self._best, self._best_examples, self._last = 0, None, (), {}

    def state(self) -> dict[str, Any]:
        """Return the JSON values that restore this object, with the earlier run's validations."""
        return {
            "baseline": None if self.baseline is None else asdict(self.baseline),
            "num_worse": self.num_worse,
            "best": None if self._best is None else asdict(self._best),
            "best_examples": list(self._best_examples),
            "last": self._last,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state.

        With the same baseline, its validations are restored from the state: the earlier run may
        have continued since, which an uninterrupted run would not have seen. With a different one,
        or if none was saved, the count starts at 0.
        """
        saved, best = state["baseline"], state["best"]
        self._best = None if best is None else Estimate(float(best["mean"]), float(best["sem"]))
        self._best_examples = tuple(state.get("best_examples", ()))
        if saved is None or self.baseline is None:
            return
        if (saved["run"], saved["at"]) != (self.baseline.run, self.baseline.at):
            return
        losses, errors = (
            tuple(
                Mark(float(m["at"]), float(m["value"]), float(m["sem"]), tuple(m["examples"]))
                for m in saved[name]
            )
            for name in ("losses", "errors")
        )
        self.baseline = replace(
            self.baseline, losses=losses, errors=errors, num_val=saved["num_val"]
        )
        self.num_worse, self._last = int(state["num_worse"]), dict(state["last"])

    def _error(self, mark: Mark, best: Estimate) -> float:
        """Return the standard error of the difference between a mark and this run's best."""
        ours, theirs = np.array(self._best_examples), np.array(mark.examples)
        if len(ours) == len(theirs) > 1:
            paired = mean_estimate(ours - theirs).sem
            if math.isfinite(paired):
                return paired
        return math.hypot(mark.sem, best.sem)


def _best(marks: Sequence[Mark]) -> Mark | None:
    return min(marks, key=lambda mark: mark.value, default=None)


def _jumps(marks: Sequence[Mark]) -> float:
    """Return the noise of the difference between two runs, from the scatter of one curve."""
    return math.sqrt(2) * (scatter([m.value for m in marks][len(marks) // 3 :]) or 0.0)


def _lean(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Keep the examples only of marks that were the best so far: no others are compared."""
    kept, best = [], math.inf
    for mark in marks:
        is_best = mark.value < best
        best = min(best, mark.value)
        kept.append(mark if is_best else replace(mark, examples=()))
    return tuple(kept)


def _losses(value: object) -> tuple[float, ...]:
    numbers = [_finite(one) for one in value] if isinstance(value, list) else [None]
    known = [number for number in numbers if number is not None]
    return tuple(known) if len(known) == len(numbers) else ()


def _errors(value: object) -> tuple[float, ...]:
    is_plain = isinstance(value, str) and set(value) <= {"0", "1"}
    return tuple(float(mark == "0") for mark in str(value)) if is_plain else ()


def _task_of(folder: Path) -> str | None:
    """Return the task named in a run's checkpoints; None if none can be read."""
    for state in sorted((folder / CHECKPOINTS).glob(f"*/{STATE}")):
        try:
            value = read_json(state)
        except (StepladderError, OSError):
            continue
        if isinstance(value, Mapping) and (task := _text(value.get("task"))):
            return task
    return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _summary(folder: Path) -> Mapping[str, Any]:
    try:
        value = read_json(folder / _SUMMARY)
    except (StepladderError, OSError):
        return {}
    return value if isinstance(value, Mapping) else {}


def _batch_of(folder: Path) -> int | None:
    """Return the batch size in the run's config, for a run without a summary."""
    try:
        return load_job(folder / CONFIG).recipe.batch.global_batch_size
    except (StepladderError, OSError):
        return None


def _finite(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and value >= 1 else None


def baseline_line(baseline: Baseline, patience: int) -> str:
    """Describe in one line the run to compare with, and when the comparison stops this run."""
    point = "seconds" if baseline.at is BaselineAt.WALL_TIME else "training examples"
    times = "validation" if patience == 1 else f"{patience} validations in a row"
    return (
        f"{baseline.run}, after the same {point}; stops if it is worse by more than noise at "
        f"{times}"
    )


def baseline_warnings(
    baseline: Baseline | None,
    num_val: int | None,
    *,
    task: str | None = None,
    fingerprint: str | None = None,
) -> list[str]:
    """List reasons why a comparison with an earlier run may be misleading.

    Args:
        num_val: number of validation examples of this run; None without validation.
        task, fingerprint: of this run and its training data; None: unknown.
    """
    if baseline is None:
        return []
    if num_val is None:
        return ["run.baseline has no effect: this run has no validation split"]
    warnings = _other_ground(baseline, task, fingerprint)
    if baseline.num_val is not None and baseline.num_val != num_val:
        warnings.append(
            f"the earlier run (run.baseline) was validated on {baseline.num_val:,} examples, but "
            f"this run is on {num_val:,}, so a difference between them may be due to the examples"
        )
    if baseline.at is BaselineAt.WALL_TIME:
        warnings.append(
            "run.baseline_at is wall_time, so this run is compared with the earlier one after "
            "equal times: whether it stops depends on the speed of the machine"
        )
    return warnings


def _other_ground(baseline: Baseline, task: str | None, fingerprint: str | None) -> list[str]:
    """List differences between the earlier run's task and data and this run's."""
    found = []
    if task and baseline.task and _plain(task) != _plain(baseline.task):
        found.append(
            f"the earlier run (run.baseline) trained another Task, {baseline.task}, than this run, "
            f"{task}, so their losses cannot be compared"
        )
    if fingerprint and baseline.fingerprint and fingerprint != baseline.fingerprint:
        found.append(
            f"the earlier run (run.baseline) used other training data (fingerprint "
            f"{baseline.fingerprint[:12]}, here {fingerprint[:12]}), so a difference between the "
            "runs may be due to the data"
        )
    return found


def _plain(task: str) -> str:
    """Return a task's name without the folders of its file."""
    return task.rpartition("/")[2]

"""Diagnose one run from its folder: read its records, and measure what can still be measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from torch import nn

from stepladder.diagnosis.fit.chain import measure_chain
from stepladder.diagnosis.fit.curves import Curves
from stepladder.diagnosis.fit.equal_terms import measure_equal_terms
from stepladder.diagnosis.fit.fit import judge_fit
from stepladder.diagnosis.fit.learning_curve import (
    NUM_TRAININGS,
    has_enough,
    measure_learning_curve,
)
from stepladder.diagnosis.fit.levels import levels_of
from stepladder.diagnosis.fit.range_test import range_test
from stepladder.diagnosis.fit.remedies import MORE_DATA, Known, lacks_training, remedies_for
from stepladder.diagnosis.runs.machine_use import judge_machine
from stepladder.diagnosis.runs.opened_run import OpenedRun, open_run
from stepladder.diagnosis.runs.run_curves import RunFiles, curves_of_run, read_run
from stepladder.diagnosis.runs.run_state import is_of_own_task, number
from stepladder.errors import DataError, StepladderError
from stepladder.records.diagnosis import Chain, Diagnosis, LearningCurve, RangeTest
from stepladder.task.contract import Task
from stepladder.task.load import BUILT_IN
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.output.wording import duration

T = TypeVar("T")
MAX_TIME_S = 120.0
_OWN = "FILE.py:NAME"
_AS_LOGGED = (
    "training values are as logged: in training mode, with dropout and augmentation, averaged "
    "over the epoch"
)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user wants of a diagnosis.

    Attributes:
        remeasure: open the data again, and measure training on equal terms.
        learning_curve: train on parts of the data, even if that takes long; it is also done if more
            data would be recommended and it takes less than half of `max_time_s`.
        target_error: share of examples that cannot be predicted correctly, in [0, 1).
        max_time_s: time limit for measuring, without a requested learning curve.
    """

    remeasure: bool = True
    learning_curve: bool = False
    target_error: float = 0.0
    max_time_s: float = MAX_TIME_S


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A diagnosis, and the curves that it is based on."""

    diagnosis: Diagnosis
    curves: Curves


def diagnose(
    run: Path,
    *,
    make_task: Callable[[], Task] | None,
    task_name: str,
    wishes: Wishes,
    say: Callable[[str], None],
) -> Diagnosed:
    """Diagnose a run, finished or not. Nothing in the run is changed.

    If something cannot be measured, the diagnosis gives the reason and does without it.

    Args:
        run: its folder.
        make_task: creates the run's Task; None if it is a custom one that was not passed.
        task_name: the Task that the run was trained with.
        wishes: what to measure.
        say: called with what is about to be measured, and how long it may take.

    Raises:
        DataError: if the folder contains no run.
        UsageError: if the target error is not in [0, 1).
    """
    started = time.perf_counter()
    files = read_run(run)
    if task_name == BUILT_IN and is_of_own_task(files.summary, files.events):
        make_task, task_name = None, _OWN  # the name would be in its first checkpoint
    work = _Work(files=files, say=say, could_not=list(files.missing))
    curves = curves_of_run(files, target_error=wishes.target_error)
    opened = work.open(make_task, task_name) if wishes.remeasure else None
    terms = _AS_LOGGED
    if opened is not None:
        curves, terms = work.on_equal_terms(opened, curves, wishes.max_time_s / 4)
    layers = _Layers() if opened is None else work.layers(opened)
    known = _known(files, curves, layers, task_name)
    chain = None
    if opened is not None:
        tested = work.range_test(opened, known, wishes.max_time_s / 2)
        known = replace(known, range_test=tested)
        if wishes.learning_curve or work.is_curve_due(opened, known, wishes.max_time_s / 2):
            known = replace(known, learning_curve=work.learning_curve(opened))
        chain = work.chain(opened, wishes.max_time_s / 4) if layers.is_chain else None
    diagnosis = Diagnosis(
        run=run.resolve().name,
        status=_status(files),
        fit=known.fit,
        terms=terms,
        remedies=remedies_for(known),
        machine=judge_machine(files, is_built_in=task_name == BUILT_IN),
        range_test=known.range_test,
        learning_curve=known.learning_curve,
        chain=chain,
        num_norms=layers.num_norms,
        could_not=tuple(work.could_not),
        took_s=time.perf_counter() - started,
    )
    return Diagnosed(diagnosis=diagnosis, curves=curves)


def _known(files: RunFiles, curves: Curves, layers: _Layers, task_name: str) -> Known:
    is_own = task_name != BUILT_IN
    return Known(
        fit=judge_fit(curves),
        levels=levels_of(curves),
        recipe=files.job.recipe if files.job is not None else None,
        run=files.path,
        is_built_in=not is_own,
        stop_reason=files.summary.get("stop_reason"),
        num_norms=layers.num_norms,
        num_dropouts=layers.num_dropouts,
        augments=layers.augments,
        task_name=task_name if is_own else None,
    )


@dataclass(frozen=True, kw_only=True)
class _Layers:
    """What the model and the Task contain."""

    num_norms: int | None = None
    num_dropouts: int | None = None
    augments: bool | None = None
    is_chain: bool = False


@dataclass(kw_only=True)
class _Work:
    """Runs one measurement after the other, and records the ones that failed."""

    files: RunFiles
    say: Callable[[str], None]
    could_not: list[str] = field(default_factory=list)

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Measure, or record why that failed; a user's Task may raise any exception."""
        try:
            return measure()
        except StepladderError as error:
            why = f"{error.where}: {error.what}" if error.where else error.what
            fix = f" {error.fix}" if error.fix else ""
            self.could_not.append(f"{what}: {_ended(why)}{fix}")
        except Exception as error:
            why = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.could_not.append(f"{what}: {_ended(why)}")
        return None

    def open(self, make_task: Callable[[], Task] | None, task_name: str) -> OpenedRun | None:
        """Open the run's Task and data again."""
        job = self.files.job
        if job is None:
            self.could_not.append(
                "the model was not evaluated again, because the run's config.yaml cannot be read."
            )
            return None
        if make_task is None:
            named = "" if task_name == _OWN else f", {task_name}"
            self.could_not.append(
                f"the model was not evaluated again, because only the Task of the run{named} can "
                f"build it. Pass that Task: --task {task_name}"
            )
            return None
        make = make_task

        def opened() -> OpenedRun:
            try:
                return open_run(self.files.path, job, make())
            except DataError as error:
                if task_name != BUILT_IN:
                    raise
                raise DataError(error.what, where=error.where, fix=self._instead()) from error

        return self.attempt("the run's data could not be opened", opened)

    def _instead(self) -> str:
        """Return what to do if the data that the built-in Task reads is missing."""
        fix = "Restore it, or pass --no-remeasure."
        if not Checkpoints(self.files.path / "checkpoints").names():  # they name the Task
            fix += f" If the run used a custom Task, pass it with --task {_OWN}"
        return fix

    def on_equal_terms(
        self, opened: OpenedRun, curves: Curves, budget_s: float
    ) -> tuple[Curves, str]:
        """Measure training under the terms of validation; return the curves and the terms."""
        found = self.attempt(
            "training could not be measured on equal terms",
            lambda: measure_equal_terms(opened, curves, budget_s=budget_s, say=self.say),
        )
        if found is None:
            return curves, _AS_LOGGED
        if found.note:
            self.could_not.append(_ended(found.note))
        terms = (
            f"training was remeasured on {found.num_rows:,} of its examples, in eval mode and "
            f"without augmentation, in {duration(found.took_s)}"
        )
        return found.curves, terms

    def layers(self, opened: OpenedRun) -> _Layers:
        """Count the layers of the model, and check the Task for augmentation and stages."""

        def look() -> _Layers:
            with opened.model() as model:
                modules = list(model.modules())
                is_chain = bool(opened.task.stages(model))
            return _Layers(
                num_norms=sum("norm" in type(module).__name__.lower() for module in modules),
                num_dropouts=sum(
                    "dropout" in type(m).__name__.lower() and getattr(m, "p", 1) > 0
                    for m in modules
                    if not isinstance(m, nn.Sequential)
                ),
                augments=_augments(opened.task),
                is_chain=is_chain,
            )

        return self.attempt("the model could not be built", look) or _Layers()

    def range_test(self, opened: OpenedRun, known: Known, budget_s: float) -> RangeTest | None:
        """Train briefly with a rising learning rate, if the training error is high."""
        if not lacks_training(known):
            return None
        self.say(f"running a learning-rate range test, at most {duration(budget_s)}")
        return self.attempt(
            "the learning-rate range test failed",
            lambda: range_test(opened, budget_s=budget_s),
        )

    def is_curve_due(self, opened: OpenedRun, known: Known, budget_s: float) -> bool:
        """Return True if more data would be recommended, and a learning curve takes little time."""
        train_s = number(self.files.summary.get("train_s"))
        if train_s is None or NUM_TRAININGS * train_s > budget_s or self.files.is_running:
            return False
        is_advised = any(remedy.name == MORE_DATA for remedy in remedies_for(known))
        return is_advised and has_enough(opened)

    def learning_curve(self, opened: OpenedRun) -> LearningCurve | None:
        """Train on parts of the data."""
        train_s = number(self.files.summary.get("train_s"))
        return self.attempt(
            "the learning curve could not be measured",
            lambda: measure_learning_curve(opened, say=self.say, train_s=train_s),
        )

    def chain(self, opened: OpenedRun, budget_s: float) -> Chain | None:
        """Measure the stages of a chain."""
        return self.attempt(
            "the stages could not be measured", lambda: measure_chain(opened, budget_s=budget_s)
        )


def _augments(task: Task) -> bool | None:
    """Return True if a custom Task augments training batches; None for the built-in one."""
    if type(task).__module__ == "stepladder.task.image_classification":
        return None
    return type(task).augment is not Task.augment


def _status(files: RunFiles) -> str:
    if files.is_diverged:
        return "diverged"
    if files.is_running:
        return "running"
    return str(files.summary.get("status", "interrupted"))


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "!", "?")) else f"{sentence}."

"""Diagnose a run: its fit, what would improve it, and how it used the machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import reported, run_folder, task_of
from stepladder.errors import ResourceError, StepladderError
from stepladder.records import write_json

if TYPE_CHECKING:
    from stepladder.records.diagnosis import Diagnosis
    from stepladder.records.findings import Finding
    from stepladder.task.contract import Task

DIAGNOSIS_FILE = "diagnosis.json"


def diagnose(
    run: Path | str,
    *,
    task: Task | str | None = None,
    remeasure: bool = True,
    learning_curve: bool = False,
    target_error: float = 0.0,
    max_time_s: float | None = None,
    on_message: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Diagnose a run, finished or not; write diagnosis.json and diagnosis.html.

    If the run has a report.html, it is written again, with the result of the diagnosis.

    Args:
        run: run folder.
        task: your own Task, if the run used one, or "FILE.py:NAME".
        remeasure: read the data again, to evaluate the training data like the validation data, and
            to run the learning rate range test and the test of the stages.
        learning_curve: train on subsets of the data, even if that takes long. By default, this is
            only done if it is fast and more data may be advised.
        target_error: irreducible error, in [0, 1).
        max_time_s: time limit in seconds, without a learning curve that was requested; None: 120.
        on_message: called with what is measured next, and how long it may take.

    Raises:
        UsageError: if a number is out of range.
        DataError: if the folder does not contain a run.
        ResourceError: if the diagnosis cannot be written to the folder.
    """
    from stepladder.diagnosis.diagnose import MAX_TIME_S, Wishes
    from stepladder.diagnosis.diagnose import diagnose as diagnose_run
    from stepladder.reporting.pages.diagnosis_page import write_diagnosis_page
    from stepladder.reporting.pages.report_page import refresh_report
    from stepladder.task.load import name_of

    folder = run_folder(run)
    named = task if isinstance(task, str) else name_of(task) if task is not None else None
    with reported(f"diagnosing {folder}"):
        found = diagnose_run(
            folder,
            make_task=_maker(folder, task),
            task_name=named or _task_name(folder),
            wishes=Wishes(
                remeasure=remeasure,
                learning_curve=learning_curve,
                target_error=target_error,
                max_time_s=MAX_TIME_S if max_time_s is None else max_time_s,
            ),
            say=on_message or (lambda _: None),
        )
    findings = (_against_baselines(folder),)
    found = replace(found, diagnosis=replace(found.diagnosis, findings=findings))
    try:
        write_json(folder / DIAGNOSIS_FILE, found.diagnosis)
        write_diagnosis_page(folder, found)
        refresh_report(folder)
    except OSError as error:
        raise ResourceError(
            f"the diagnosis cannot be written ({error.strerror or error})",
            where=str(folder),
            fix="Free some disk space, get write permission for the folder, or copy the run to "
            "another folder and diagnose that.",
        ) from error
    return found.diagnosis


def _against_baselines(folder: Path) -> Finding:
    """Compare the validation accuracy of a run with baselines that need no training."""
    from stepladder.checks.report_file import read_checks
    from stepladder.diagnosis.fit.baseline import baseline_finding
    from stepladder.reporting.tables import read_run

    probe = None
    report = read_checks(folder)
    for finding in report.findings if report is not None else ():
        accuracy = finding.numbers.get("probe_accuracy")
        probe = accuracy if isinstance(accuracy, float) else probe
    return baseline_finding(read_run(folder).outcomes.get("val", {}), probe_accuracy=probe)


def _maker(folder: Path, task: Task | str | None) -> Callable[[], Task] | None:
    """Return a function that makes the Task of the run; None for a custom Task that was not given.

    A config never runs code: the file named in a checkpoint is only executed if the user gives it.
    """
    from stepladder.task.load import BUILT_IN

    if task is None and _task_name(folder) != BUILT_IN:
        return None

    def make() -> Task:
        made = task_of(folder, BUILT_IN if task is None else task)
        assert made is not None
        return made

    return make


def _task_name(folder: Path) -> str:
    """Return the name of the Task in the latest checkpoint."""
    from stepladder.task.load import BUILT_IN
    from stepladder.training.checkpoint.checkpoint import Checkpoints

    with suppress(StepladderError, OSError):
        loaded = Checkpoints(folder / "checkpoints").newest()
        if loaded is not None:
            return str(loaded.state.get("task", BUILT_IN))
    return BUILT_IN

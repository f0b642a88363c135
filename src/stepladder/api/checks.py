"""Run the checks of `check`, and those before a training or a climb."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, is_own, job_of, made_task, reported
from stepladder.api.devices import joined_for, shake_hands
from stepladder.api.pictures import on_store
from stepladder.config.choices import Checks
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import UnsoundJob, UsageError
from stepladder.parallel.place import place_of
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.records.run_files import CONFIG_FILE

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stepladder.checks.machine.compared import Compared
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display
    from stepladder.training.setup.build import Sources

    _Look = Callable[[JobConfig, Sources, nn.Module, torch.device], tuple[list[str], str | None]]


def check(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    fresh: bool = False,
    **settings: object,
) -> CheckReport:
    """Check a job for mistakes before training it; write checks.json and checks.html.

    Args:
        recipe, store, dir, task, config, settings: see `train`.
        fresh: run all checks again, and ignore saved results.

    Raises:
        UsageError, DataError, ResourceError: if the job cannot be checked. Findings do not raise.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    with default_display() as display:
        job = on_store(job, display, has_own_task=is_own(task))
    with reported("checking the job"):
        return check_job(job, task=task, fresh=fresh)


def check_job(
    job: JobConfig,
    *,
    task: Task | str | None = None,
    fresh: bool = False,
    limit_s: float | None = None,
    is_fast: bool = False,
    on_finding: Callable[[Finding], None] = lambda _: None,
    display: Display | None = None,
) -> CheckReport:
    """Check a resolved job, or return the saved report if nothing has changed since.

    If checks were left out before, only these are run, and the other findings are kept.

    Args:
        limit_s: time limit in seconds of the checks that run; None: 55.
        is_fast: run only the checks that do not train.
        on_finding: called with each finding.
        display: display of the progress.

    Raises:
        UsageError, ResourceError: if the report cannot be written to the folder of the job.
    """
    from stepladder.checks.contract import Tier
    from stepladder.checks.job import open_job
    from stepladder.checks.order import CHECKS
    from stepladder.checks.report_file import add_checks, find_some, missing, write_checks
    from stepladder.checks.run import FAST_S, FULL_S, run_checks
    from stepladder.reporting.pages.checks_page import write_checks_page
    from stepladder.reporting.pages.report_page import refresh_report
    from stepladder.training.checkpoint.folder_checks import probe
    from stepladder.training.setup.build import use_threads
    from stepladder.training.setup.run_folder import make_folder

    with display or default_display() as shown:
        job = on_store(job, shown, has_own_task=is_own(task))
    made, name = made_task(task, job.recipe)
    use_threads(job.recipe)
    tier = Tier.FAST if is_fast else Tier.FULL
    opened = open_job(job, made, task_name=name)
    key = _key(job, made, name, opened.sources)
    kept = None if fresh else find_some(job.run.dir, key=key)
    wanted = CHECKS if kept is None else missing(kept, tier)
    for finding in kept.findings if kept is not None else ():
        if finding.check not in {check.name for check in wanted}:
            on_finding(finding)
    if kept is not None and not wanted:
        return kept
    make_folder(job.run.dir)  # before the checks, as the report is written there
    probe(job.run.dir)
    opened.require_memory()
    report = run_checks(
        opened,
        wanted,
        tier=tier,
        key=key,
        limit_s=limit_s or (FAST_S if is_fast else FULL_S),
        on_finding=on_finding,
    )
    if kept is None:
        write_checks(job.run.dir, report)
    else:
        report = add_checks(job.run.dir, report)
    write_checks_page(job.run.dir)
    refresh_report(job.run.dir)
    return report


def check_ranks(job: JobConfig, task: Task | str | None) -> Compared | None:
    """Compare the ranks that torchrun or srun has started; None: this process is alone.

    Versions, options, and whether all see the run folder; then data, devices, clocks, and the speed
    of an all-reduce.

    Raises:
        UsageError, ResourceError: if they could not train together at all.
    """
    place = place_of()
    if place is None or place.size == 1:
        return None
    from stepladder.checks.machine.compared import compare_ranks
    from stepladder.training.setup.attempt import fingerprints_of
    from stepladder.training.setup.build import open_device, open_sources

    with joined_for(job, place) as world:
        hosts = shake_hands(job, world)
        if hosts is not None and world.is_main:
            default_display().message(hosts)
        if world.is_main:
            with default_display() as shown:
                job = on_store(job, shown, has_own_task=is_own(task))
        settled = world.from_main(job)
        device = open_device(settled.recipe, local_rank=world.local_rank)

        def read() -> dict[str, str]:
            made, _ = made_task(task, settled.recipe)
            return fingerprints_of(open_sources(made))

        return compare_ranks(world, device, read)


def checks_before_training(job: JobConfig, task: Task, name: str) -> _Look | None:
    """Return the function with which `train` checks a job before its first step; None: no checks.

    It returns the alarms, one sentence each, and a line about the checks that did not run, if any.
    It raises UnsoundJob if a check failed and `run.checks` is stop.
    """
    if job.run.checks is Checks.OFF:
        return None

    def look(
        config: JobConfig, sources: Sources, model: nn.Module, device: torch.device
    ) -> tuple[list[str], str | None]:
        from stepladder.checks.job import CheckedJob
        from stepladder.checks.preflight import check_before_training
        from stepladder.checks.report_file import add_checks
        from stepladder.checks.wording import not_run_line, sentence
        from stepladder.task.blame import exits_told

        ready = CheckedJob(
            config=config,
            task=copy.copy(task),
            task_name=name,
            sources=sources,
            device=device,
            given=model,
        )
        with exits_told(task):
            report = check_before_training(
                ready, key=lambda: _key(config, task, name, sources), folder=config.run.dir
            )
        not_run = not_run_line(report, command=_command(config, task))
        if isinstance(report, str):
            return [], not_run
        add_checks(config.run.dir, report)
        _stop_if_asked(config, report)
        return [sentence(finding) for finding in report.findings if finding.is_alarm], not_run

    return look


def checks_before_climb(job: JobConfig, task: Task, *, message: Callable[[str], None]) -> None:
    """Check a job before a climb, and print the alarms.

    With a budget, the checks take at most a tenth of it.

    Raises:
        UnsoundJob: if a check failed, and `run.checks` is stop.
    """
    if job.run.checks is Checks.OFF:
        return
    from stepladder.checks.run import FULL_S
    from stepladder.checks.wording import earlier_line, sentence, total_line

    started = datetime.now(UTC)
    budget_s = job.ladder.budget_s
    limit_s = FULL_S if budget_s is None else min(FULL_S, 0.1 * budget_s)
    message("checking the job …")
    report = check_job(job, task=task, limit_s=limit_s)
    for finding in report.findings:
        if finding.is_alarm:
            message(sentence(finding))
    message(f"checks: {total_line(report)}; report: {job.run.dir / 'checks.html'}")
    earlier = earlier_line(report, before=started)
    if earlier is not None:
        message(f"checks: {earlier}")
    _stop_if_asked(job, report)


def _stop_if_asked(job: JobConfig, report: CheckReport) -> None:
    failed = [finding for finding in report.findings if finding.outcome is Outcome.FAILED]
    if failed and job.run.checks is Checks.STOP:
        first = failed[0]
        raise UnsoundJob(
            f"the check {first.check} failed: {first.evidence}",
            why=None
            if len(failed) == 1
            else f"{len(failed)} checks failed; this is the first of them.",
            fix=f"{first.fix} To train anyway: --run.checks warn.",
        )


def _command(job: JobConfig, task: Task) -> str:
    """Return what to type to check the job of a run folder."""
    from stepladder.task.load import BUILT_IN, name_for_others

    try:
        name = name_for_others(task)
    except UsageError:  # such as a class of a notebook
        return "stepladder.check, with the same arguments"
    words = [] if name == BUILT_IN else ["--task", name]
    return shlex.join(["stepladder", "check", str(job.run.dir / CONFIG_FILE), *words])


def _key(job: JobConfig, task: Task, name: str, sources: Sources) -> str:
    """Return a key of job, data, code and machine; findings with the same key are reused."""
    from stepladder.ladder.keys import findings_key, task_facts
    from stepladder.task.blame import exits_told

    with exits_told(task):  # it may build the model
        return findings_key(name, job, sources, task_facts(task, job.recipe))

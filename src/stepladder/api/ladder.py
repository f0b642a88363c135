"""Climb, advise, and the ledger of all climbs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, is_own, job_of, made_task, refuse_random_trunk
from stepladder.api.checks import checks_before_climb
from stepladder.api.devices import for_ladder, launch
from stepladder.api.pictures import on_store
from stepladder.api.runs import Run
from stepladder.config.choices import ClimbAim
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import DataError, InterruptedRun, UsageError
from stepladder.parallel.fleet import opened_fleet, serve
from stepladder.parallel.place import place_of

if TYPE_CHECKING:
    from stepladder.ladder.advise import Advice
    from stepladder.ladder.summary.calibration import Calibration
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display


def climb(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    fresh: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
    **settings: object,
) -> Run:
    """Try speed-ups one by one, keep those that help, train with them, and write the report.

    Args:
        recipe, store, dir, task, config, display, settings: see `train`.
        fresh: try every rung again, and ignore the results of earlier climbs.
        overwrite: replace a run in the folder that is not a climb of this job.

    Raises:
        UsageError, DataError, ResourceError, DivergedError, InterruptedRun: if the climb fails.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    return _climb(job, task=task, fresh=fresh, overwrite=overwrite, display=display)


def fit_recipe(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    fresh: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
    **settings: object,
) -> Run:
    """Grow the model until it overfits, add remedies one at a time, train, and write the report.

    Args:
        recipe, store, dir, task, config, display, settings: see `train`.
        fresh, overwrite: see `climb`.

    Raises:
        UsageError, DataError, ResourceError, DivergedError, InterruptedRun: if the climb fails.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    job = replace(job, ladder=replace(job.ladder, aim=ClimbAim.FIT))
    return _climb(job, task=task, fresh=fresh, overwrite=overwrite, display=display)


def _climb(
    job: JobConfig,
    *,
    task: Task | str | None = None,
    fresh: bool = False,
    overwrite: bool = False,
    display: Display | None = None,
) -> Run:
    """Climb with a resolved config; if interrupted before the training, write a partial report."""
    from stepladder.ladder.climb_run import climb as climb_run

    place = place_of()
    job = for_ladder(job, place)
    run = Run(job.run.dir)
    if place is not None and place.rank:
        serve(place, meet_s=job.run.meet_s)
        return run
    try:
        with (
            display or default_display() as shown,
            opened_fleet(place, meet_s=job.run.meet_s) as fleet,
        ):
            job = on_store(job, shown, has_own_task=is_own(task))
            made, name = made_task(task, job.recipe)
            refuse_random_trunk(job.recipe, made)
            climb_run(
                job,
                made,
                task_name=name,
                display=shown,
                is_fresh=fresh,
                may_overwrite=overwrite,
                check=lambda: checks_before_climb(job, made, message=shown.message),
                launch=lambda found: launch(
                    found,
                    task,
                    dry_run=False,
                    overwrite=False,
                    accept_new_data=False,
                    fleet=fleet,
                ),
                fleet=fleet,
            )
    except InterruptedRun:
        if not (run.path / "config.yaml").exists():  # else the report is that of a training
            with suppress(Exception, KeyboardInterrupt):  # must not hide the interruption
                run.report()
        raise
    run.report()
    return run


def advise(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    display: Display | None = None,
    **settings: object,
) -> Advice:
    """Measure a job and return the next step to make it faster; nothing is tried or written.

    Args:
        recipe, store, task, config, display, settings: see `train`.

    Raises:
        UsageError, DataError, ResourceError: if the job cannot be measured.
    """
    job = job_of(recipe, store=store, dir=None, config=config, settings=settings, task=task)
    return advise_job(job, task=task, display=display)[0]


def advise_job(
    job: JobConfig, *, task: Task | str | None = None, display: Display | None = None
) -> tuple[Advice, str]:
    """Return the advice for a resolved config, and the same as text."""
    from stepladder.ladder.climb_run import advise as advise_run

    if place_of() is not None:
        raise UsageError(
            "advise measures one machine, and cannot join other processes",
            where="environment",
            fix="Start it without torchrun or srun: stepladder advise JOB --devices NUMBER",
        )
    job = for_ladder(job)
    with display or default_display() as shown:
        job = on_store(job, shown, has_own_task=is_own(task))
        made, name = made_task(task, job.recipe)
        refuse_random_trunk(job.recipe, made)
        return advise_run(job, made, task_name=name, display=shown)


def ledger(path: Path | str = "runs") -> tuple[Calibration, str]:
    """Compare predicted and measured gains over all climbs in a folder.

    Returns:
        The calibration, and the same as a table.

    Raises:
        DataError: if there is no ledger.
    """
    from stepladder.ladder.ledger import EARLIER_FILE, LEDGER_FILE
    from stepladder.ladder.summary.calibration import calibration_of, calibration_table

    folder = Path(path)
    if not folder.is_dir():
        raise DataError(
            "the folder does not exist",
            where=str(folder),
            fix="Use a folder written by `stepladder climb`, or a parent of it, such as runs.",
        )
    files = sorted(p for name in (LEDGER_FILE, EARLIER_FILE) for p in folder.rglob(name))
    if not files:
        raise DataError(
            "this is not the folder of a climb, nor does it contain one",
            where=str(folder),
            fix="Pass the folder that stepladder climb wrote (its --run.dir), or climb first.",
        )
    calibration = calibration_of(files)
    return calibration, calibration_table(calibration)

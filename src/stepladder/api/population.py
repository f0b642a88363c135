"""Train a population of models, and choose the best."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, is_own, job_of, made_task, refuse_random_trunk
from stepladder.api.pictures import on_store
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepladder.populations.population import State
    from stepladder.records.population import Moment, PopulationSummary
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display


def population(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
    **settings: object,
) -> PopulationSummary:
    """Train many models at once whose settings change while they train, and choose the best.

    Writes population.json, population.jsonl and population.html into the run folder, and the best
    model into its folder `winner`. The same call resumes a population that was interrupted.

    Args:
        recipe, store, dir, task, config, display, settings: see `train`. Genes are declared by
            `population.genes`.
        overwrite: remove an earlier population in the folder first.

    Raises:
        UsageError: if a gene or the job does not fit.
        DataError, ResourceError, DivergedError, InterruptedRun: see `train`.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    return train_job(job, task=task, display=display, overwrite=overwrite)[0]


def train_job(
    job: JobConfig,
    *,
    task: Task | str | None = None,
    display: Display | None = None,
    overwrite: bool = False,
) -> tuple[PopulationSummary, str]:
    """Return the population of a resolved config, and the same as text."""
    from stepladder.populations.run import train_population
    from stepladder.reporting.pages.population_page import (
        interval_line,
        population_text,
        write_population_page,
    )

    with display or default_display() as shown:
        job = on_store(job, shown, has_own_task=is_own(task))
        made, name = made_task(task, job.recipe)
        refuse_random_trunk(job.recipe, made)

        def show(moments: Sequence[Moment], state: State) -> None:
            shown.table(interval_line(moments, state.best), {"event": "interval"})

        found = train_population(
            job, made, task_name=name, display=shown, overwrite=overwrite, show=show
        )
        page = write_population_page(job.run.dir)
    return found, f"{population_text(found)}page: {page}"

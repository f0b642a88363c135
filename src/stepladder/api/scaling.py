"""Measure how training scales with devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.call import default_display, is_own, job_of, made_task, refuse_random_trunk
from stepladder.api.devices import for_ladder
from stepladder.api.pictures import on_store
from stepladder.config.options import JobConfig
from stepladder.config.recipe import Recipe

if TYPE_CHECKING:
    from stepladder.records.scaling import Scaling
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display


def scaling(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    counts: Sequence[int] | None = None,
    layouts: Sequence[tuple[int, int]] = (),
    display: Display | None = None,
    **settings: object,
) -> Scaling:
    """Measure efficiency on several numbers of devices, and what the rest of it is lost to.

    Writes scaling.json and scaling.html into the run folder.

    Args:
        recipe, store, dir, task, config, display, settings: see `train`.
        counts: numbers of devices; None: 1, 2, 4, … up to `devices`.
        layouts: pairs of machines and devices in each, to predict.

    Raises:
        UsageError, DataError, ResourceError: if the job cannot be measured.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    return scale_job(job, task=task, counts=counts, layouts=layouts, display=display)[0]


def scale_job(
    job: JobConfig,
    *,
    task: Task | str | None = None,
    counts: Sequence[int] | None = None,
    layouts: Sequence[tuple[int, int]] = (),
    display: Display | None = None,
) -> tuple[Scaling, str]:
    """Return the scaling of a resolved config, and the same as text."""
    from stepladder.ladder.climb_run import scale
    from stepladder.ladder.scaling import Layout, counts_up_to
    from stepladder.reporting.pages.scaling_page import scaling_text, write_scaling_page

    wanted = tuple(counts) if counts is not None else counts_up_to(job.recipe.device.count)
    device = replace(job.recipe.device, count=1)  # more than there are of them are predicted
    job = for_ladder(replace(job, recipe=replace(job.recipe, device=device)))
    with display or default_display() as shown:
        job = on_store(job, shown, has_own_task=is_own(task))
        made, _ = made_task(task, job.recipe)
        refuse_random_trunk(job.recipe, made)
        found = scale(
            job,
            made,
            name=job.run.dir.name,
            counts=wanted,
            layouts=[Layout(*one) for one in layouts],
            display=shown,
        )
        page = write_scaling_page(job.run.dir)
    return found, f"{scaling_text(found)}page: {page}"

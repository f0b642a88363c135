"""Prepare, publish, train, report, predict and export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.api.call import (
    default_display,
    is_own,
    job_of,
    made_task,
    refuse_random_trunk,
    reported,
    resolved_call,
    run_folder,
    task_of,
)
from stepladder.api.checks import checks_before_training
from stepladder.api.devices import (
    joined_for,
    launch,
    log_display,
    log_of_main,
    of_world,
    require_same_source,
    shake_hands,
)
from stepladder.api.pictures import on_store, prepared
from stepladder.api.targets import FACTS, MODEL, refuse_to_replace
from stepladder.config.choices import ExportFormat, PublishFormat
from stepladder.config.options import JobConfig, PrepareConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import UsageError
from stepladder.machine.activity import doing, on_its_own
from stepladder.parallel.failures import attempt_number
from stepladder.parallel.place import Place, place_of
from stepladder.records import read_json
from stepladder.records.from_json import read_record
from stepladder.records.population import POPULATION_FILE
from stepladder.records.scaling import SCALING_FILE
from stepladder.records.watch import WATCH_FILE, WatchReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from stepladder.data.prepare.prepare import PrepareResult
    from stepladder.data.store.publish import PublishedTable
    from stepladder.exporting.predict import PicturePrediction
    from stepladder.reporting.pages.report_page import ReportView
    from stepladder.task.contract import Task
    from stepladder.training.output.display import Display


@dataclass(frozen=True)
class Run:
    """A finished or interrupted training run, stored in a folder."""

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`."""
        summary: dict[str, Any] = read_json(self.path / "summary.json")
        return summary

    def report(self) -> Path:
        """Write `report.html` and return its path."""
        return report(self.path)

    def show(self) -> ReportView:
        """Show the report in a notebook."""
        from stepladder.reporting.pages.report_page import ReportView

        return ReportView(self.path)

    def predict(self, *pictures: Path | str) -> list[PicturePrediction]:
        """Classify pictures, or folders of pictures, with the best weights."""
        return predict(self.path, pictures)

    def export(self, format: ExportFormat | str, out: Path | str | None = None) -> Path:
        """Export the model for use without stepladder, and return the path."""
        return export(self.path, format, out)


def prepare(
    source: Path | str | DataFrame | None = None,
    out: Path | str | None = None,
    *,
    config: PrepareConfig | Path | str | None = None,
    display: Display | None = None,
    **settings: object,
) -> PrepareResult:
    """Create a store from pictures.

    Args:
        source: folder, CSV or files of pictures; sets `prepare.source`. Or a Spark DataFrame with a
            column of pictures and a column of labels, or of paths whose folders are the classes;
            the Spark executors do the work.
        out: store folder to write; sets `prepare.out`.
        config: a PrepareConfig, or the path of a YAML file.
        display: display of the progress; default: lines on stderr, or in the notebook.
        settings: options of `prepare` by name, such as size=96.

    Raises:
        UsageError, DataError, ResourceError: if the store cannot be created.
    """
    frame = None if source is None or isinstance(source, (str, Path)) else source
    named = {"source": source if frame is None else Path(type(frame).__name__), "out": out}
    settings |= {key: value for key, value in named.items() if value is not None}
    prefixed = {key if "." in key else f"prepare.{key}": value for key, value in settings.items()}
    base = JobConfig(prepare=config) if isinstance(config, PrepareConfig) else None
    file = config if isinstance(config, (str, Path)) else None
    job = resolved_call(base, file, prefixed).job
    with display or default_display() as shown:
        return prepared(job.prepare, shown, frame=frame)


def publish(store: Path | str, to: PublishFormat | str = PublishFormat.DELTA) -> PublishedTable:
    """Publish a store as a Delta table; its files are not copied or changed.

    Args:
        store: store folder, written by `prepare`.
        to: format of the table.

    Raises:
        UsageError: if the extra is not installed, or the folder has the log of another table.
        DataError: if the folder is not a store.
    """
    from stepladder.data.store.publish import publish_as_delta

    PublishFormat(to)  # the only format so far
    return publish_as_delta(Path(store))


def train(
    recipe: Recipe | None = None,
    *,
    store: Path | str | None = None,
    dir: Path | str | None = None,
    task: Task | str | None = None,
    config: JobConfig | Path | str | None = None,
    dry_run: bool = False,
    overwrite: bool = False,
    accept_new_data: bool = False,
    display: Display | None = None,
    **settings: object,
) -> Run:
    """Train a classifier, or your own Task; the same call with the same folder resumes the run.

    Args:
        recipe: the recipe to train.
        store: store folder, written by `prepare`; or a folder of pictures, for which a store is
            prepared beside it. Sets `data.store`.
        dir: run folder; sets `run.dir`.
        task: a Task, or "FILE.py:NAME"; default: image classification on the store.
        config: a JobConfig, or the path of a YAML file.
        dry_run: test two steps, validation, save and load; write no run.
        overwrite: remove an earlier run in the folder first.
        accept_new_data: resume even if the store has changed.
        display: display of the progress; default: lines on stderr, or in the notebook.
        settings: options by their dotted names, or model, epochs, batch_size and lr; they override
            recipe and config.

    Raises:
        UsageError, DataError, ResourceError, DivergedError, InterruptedRun: if training fails.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings, task=task)
    flags: dict[str, Any] = {
        "dry_run": dry_run,
        "overwrite": overwrite,
        "accept_new_data": accept_new_data,
    }
    place = place_of()
    if place is None and job.recipe.device.count > 1 and not dry_run:
        launch(job, task, **flags)
        return Run(job.run.dir)
    is_shown = place is None or place.rank == 0
    with (display or default_display()) if is_shown else log_display() as shown:
        return _train(job, task, place, shown, **flags)


def _train(
    job: JobConfig,
    task: Task | str | None,
    place: Place | None,
    display: Display,
    *,
    dry_run: bool,
    overwrite: bool,
    accept_new_data: bool,
) -> Run:
    """Train in this process, as one of the ranks that `place` says."""
    from stepladder.training.run import train as train_run

    with joined_for(job, place) as world, log_of_main(job, world, display):
        hosts = shake_hands(job, world)
        if hosts is not None:
            display.message(hosts)
        if world.is_main:
            with on_its_own("opening the store"):
                job = on_store(job, display, has_own_task=is_own(task))
        job = of_world(world.from_main(job), world)
        with on_its_own("loading the Task"):
            made, name = made_task(task, job.recipe)
            require_same_source(world, made, name)
        refuse_random_trunk(job.recipe, made)
        train_run(
            job,
            made,
            task_name=name,
            display=display,
            dry_run=dry_run,
            overwrite=overwrite and not (attempt_number() or world.is_restart),
            accept_new_data=accept_new_data,
            check=checks_before_training(job, made, name),
            world=world,
        )
    run = Run(job.run.dir)
    if world.is_main and not dry_run:
        with doing("writing the report"):
            run.report()
    return run


def report(run: Path | str) -> Path:
    """Write `report.html` from the files of a run, and return its path.

    In the folder of a watched script, write `watch.html`, for example if the script was killed; in
    that of a population, `population.html`.

    Raises:
        DataError: if the folder does not contain a run.
    """
    from stepladder.reporting.pages.population_page import write_population_page
    from stepladder.reporting.pages.report_page import write_report
    from stepladder.reporting.pages.scaling_page import write_scaling_page
    from stepladder.reporting.pages.watch_page import write_watch_page

    folder = Path(run)
    if (folder / WATCH_FILE).is_file():
        return write_watch_page(read_record(WatchReport, folder / WATCH_FILE), folder)
    if (folder / POPULATION_FILE).is_file():
        return write_population_page(folder)
    folder = run_folder(run, or_watched=True)
    if (folder / SCALING_FILE).is_file():
        write_scaling_page(folder)
    return write_report(folder)


def predict(
    run: Path | str, pictures: Sequence[Path | str], *, task: Task | str | None = None
) -> list[PicturePrediction]:
    """Classify pictures, or folders of pictures, with the best weights of a run.

    Args:
        run: run folder.
        pictures: files, and folders to search for pictures.
        task: your own Task, if the run used one, or "FILE.py:NAME".

    Raises:
        UsageError: if the run needs a task that was not given.
        DataError: if a path or the run cannot be read.
    """
    from stepladder.exporting import predict as predict_run

    folder = run_folder(run)
    with reported("predicting"):
        return predict_run(folder, [Path(item) for item in pictures], task=task_of(folder, task))


def export(
    run: Path | str,
    format: ExportFormat | str,
    out: Path | str | None = None,
    *,
    task: Task | str | None = None,
) -> Path:
    """Export the best model of a run for use without stepladder, and return the path.

    Args:
        run: run folder.
        format: onnx or torch.
        out: file to write; default: in the run folder.
        task: your own Task, if the run used one, or "FILE.py:NAME".

    Raises:
        UsageError: if the format is unknown, the run needs a task that was not given, or the file
            exists and was not written by stepladder.
        DataError: if the run cannot be read.
    """
    from stepladder.exporting import export_run

    if format not in list(ExportFormat):
        raise UsageError(
            f"{format} is not one of {', '.join(ExportFormat)}",
            where="format",
            fix=f'Call stepladder.export(run, "{ExportFormat.ONNX}").',
        )
    folder = run_folder(run)
    file = Path(out) if out is not None else None
    if file is not None:
        refuse_to_replace(file, MODEL, option="--out")
        # a JSON file with the same name describes the model's input and output
        refuse_to_replace(file.with_suffix(".json"), FACTS, option="--out", inputs=[file])
    with reported("exporting the model"):
        return export_run(folder, ExportFormat(format), file, task=task_of(folder, task))

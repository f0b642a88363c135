"""Prepare, train, report, predict, export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.api.call import (
    default_display,
    job_of,
    made_task,
    resolved_call,
    run_folder,
    task_of,
)
from stepladder.api.checks import checks_before_training
from stepladder.api.targets import FACTS, MODEL, refuse_to_replace
from stepladder.config.choices import ExportFormat, PublishFormat
from stepladder.config.options import JobConfig, PrepareConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import UsageError
from stepladder.records import read_json
from stepladder.records.from_json import from_json
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
    """A finished or interrupted training: a folder of plain files."""

    path: Path

    @property
    def summary(self) -> dict[str, Any]:
        """What `summary.json` says."""
        summary: dict[str, Any] = read_json(self.path / "summary.json")
        return summary

    def report(self) -> Path:
        """Write `report.html` and give its path."""
        return report(self.path)

    def show(self) -> ReportView:
        """Show the report in a notebook."""
        from stepladder.reporting.pages.report_page import ReportView

        return ReportView(self.path)

    def predict(self, *pictures: Path | str) -> list[PicturePrediction]:
        """Classify pictures, and the pictures of folders, by the best weights."""
        return predict(self.path, pictures)

    def export(self, format: ExportFormat | str, out: Path | str | None = None) -> Path:
        """Write a model that runs without this package, and give its path."""
        return export(self.path, format, out)


def prepare(
    source: Path | str | DataFrame | None = None,
    out: Path | str | None = None,
    *,
    config: PrepareConfig | Path | str | None = None,
    display: Display | None = None,
    **settings: object,
) -> PrepareResult:
    """Make a store of pictures.

    Args:
        source: folder or CSV of pictures, or files that hold them; sets `prepare.source`. Or a
            DataFrame of Spark with a column of pictures, and one of labels, or of paths whose
            folders are the classes; its executors do the work.
        out: folder of the store; sets `prepare.out`.
        config: options as an object, or a YAML file.
        display: where progress goes; none: stderr on a terminal, else nowhere.
        settings: options of `prepare` by name, such as size=96.

    Raises:
        UsageError, DataError, ResourceError: as the message says.
    """
    frame = None if source is None or isinstance(source, (str, Path)) else source
    named = {"source": source if frame is None else Path(type(frame).__name__), "out": out}
    settings |= {key: value for key, value in named.items() if value is not None}
    prefixed = {key if "." in key else f"prepare.{key}": value for key, value in settings.items()}
    base = JobConfig(prepare=config) if isinstance(config, PrepareConfig) else None
    file = config if isinstance(config, (str, Path)) else None
    job = resolved_call(base, file, prefixed).job
    from stepladder.data.prepare.prepare import PreparePhase, PrepareProgress
    from stepladder.data.prepare.prepare import prepare as prepare_store

    with display or default_display() as shown:

        def on_progress(progress: PrepareProgress) -> None:
            show = {
                PreparePhase.HASH: shown.hash,
                PreparePhase.WRITE: shown.prepare,
                PreparePhase.UPLOAD: shown.upload,
            }
            show[progress.phase](progress.done, progress.total, progress.per_s, progress.left_s)

        result = prepare_store(job.prepare, frame=frame, on_progress=on_progress)
        for warning in result.warnings:
            shown.warning(warning)
    return result


def publish(store: Path | str, to: PublishFormat | str = PublishFormat.DELTA) -> PublishedTable:
    """Make a store readable as a table of another kind too; its files stay as they are.

    Args:
        store: folder that `prepare` wrote.
        to: the kind.

    Raises:
        UsageError: if the extra is not installed, or a log of other files lies there.
        DataError: if it is no store.
    """
    from stepladder.data.store.publish import publish_as_delta

    PublishFormat(to)  # one so far
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
    """Train a classifier, or a Task of your own; the same call on the same folder resumes.

    Args:
        recipe: what to train, as an object.
        store: folder that `prepare` wrote; sets `data.store`.
        dir: folder of the run; sets `run.dir`.
        task: a Task, or "FILE.py:NAME"; none: image classification on the store.
        config: a whole job as an object, or a YAML file.
        dry_run: rehearse two steps, validation, save and load; writes no run.
        overwrite: remove an earlier run in the folder first.
        accept_new_data: resume although the store has changed.
        display: where progress goes; none: stderr on a terminal, else nowhere.
        settings: options by their dotted names, over recipe and config.

    Raises:
        UsageError, DataError, ResourceError, DivergedError, InterruptedRun: as the message says.
    """
    job = job_of(recipe, store=store, dir=dir, config=config, settings=settings)
    from stepladder.training.run import train as train_run

    made, name = made_task(task, job.recipe)
    with display or default_display() as shown:
        train_run(
            job,
            made,
            task_name=name,
            display=shown,
            dry_run=dry_run,
            overwrite=overwrite,
            accept_new_data=accept_new_data,
            check=checks_before_training(job, made, name),
        )
    run = Run(job.run.dir)
    if not dry_run:
        run.report()
    return run


def report(run: Path | str) -> Path:
    """Write a run's `report.html` from its files, and give its path.

    Of a watched script's folder it is `watch.html`, as after one that was killed.

    Raises:
        DataError: if the folder holds no run.
    """
    from stepladder.reporting.pages.report_page import write_report
    from stepladder.reporting.pages.watch_page import write_watch_page

    folder = Path(run)
    if (folder / WATCH_FILE).is_file():
        return write_watch_page(from_json(WatchReport, read_json(folder / WATCH_FILE)), folder)
    return write_report(run_folder(run, or_watched=True))


def predict(
    run: Path | str, pictures: Sequence[Path | str], *, task: Task | str | None = None
) -> list[PicturePrediction]:
    """Classify pictures, and the pictures of folders, by a run's best weights.

    Args:
        run: folder of the run.
        pictures: files, and folders that are searched.
        task: for a run of your own Task: it, or "FILE.py:NAME".

    Raises:
        UsageError: if the run needs a task and none is given.
        DataError: if a path or the run cannot be read.
    """
    from stepladder.exporting import predict as predict_run

    folder = run_folder(run)
    return predict_run(folder, [Path(item) for item in pictures], task=task_of(folder, task))


def export(
    run: Path | str,
    format: ExportFormat | str,
    out: Path | str | None = None,
    *,
    task: Task | str | None = None,
) -> Path:
    """Write a run's best model so that it runs without this package, and give its path.

    Args:
        run: folder of the run.
        format: onnx or torch.
        out: file to write; none: in the run's folder.
        task: for a run of your own Task: it, or "FILE.py:NAME".

    Raises:
        UsageError: for an unknown format, if the run needs a task and none is given, or if the file
            would replace what is no model of ours.
        DataError: if the run cannot be read.
    """
    from stepladder.exporting import export_run

    if format not in list(ExportFormat):
        raise UsageError(
            f"{format} is not one of {', '.join(ExportFormat)}",
            where="format",
            fix=f'Write stepladder.export(run, "{ExportFormat.ONNX}").',
        )
    folder = run_folder(run)
    file = Path(out) if out is not None else None
    if file is not None:
        refuse_to_replace(file, MODEL, option="--out")
        # beside it goes a JSON file of its name, which says what the model takes and gives
        refuse_to_replace(file.with_suffix(".json"), FACTS, option="--out", inputs=[file])
    return export_run(folder, ExportFormat(format), file, task=task_of(folder, task))

"""Read any log as trainings: detect its format, and choose the reader."""

from __future__ import annotations

import codecs
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.data.decoding.formats import MARKUP, SUFFIXES, name_format
from stepladder.diagnosis.logs.files.binary_log import read_arrays
from stepladder.diagnosis.logs.files.csv_log import has_header, read_csv
from stepladder.diagnosis.logs.files.json_log import (
    find_dicts,
    read_dicts,
    read_json_lines,
    read_json_log,
    read_metrics_files,
)
from stepladder.diagnosis.logs.files.notebook_log import printed_text, read_notebook, shown_tables
from stepladder.diagnosis.logs.files.wrapped_log import unwrap
from stepladder.diagnosis.logs.folders.log_folders import (
    files_of_epochs,
    has_own_log,
    is_tensorboard,
    likely_logs,
    log_file,
    plain_file,
    run_folders,
    training_name,
)
from stepladder.diagnosis.logs.folders.mlflow_log import (
    is_mlflow_uri,
    mlflow_runs,
    read_mlflow_folder,
    read_mlflow_uri,
)
from stepladder.diagnosis.logs.folders.run_folder_log import read_run_log
from stepladder.diagnosis.logs.folders.tensorboard_csv import (
    files_of_run,
    is_tag_file,
    read_tag_files,
    tag_files,
)
from stepladder.diagnosis.logs.folders.tensorboard_log import has_event_files, read_tensorboard
from stepladder.diagnosis.logs.folders.tracker_stores import (
    WANDB_START,
    refuse_store,
    refuse_tables_of_metrics,
    wandb_error,
)
from stepladder.diagnosis.logs.meaning.column_names import SPLIT_OF_WORD
from stepladder.diagnosis.logs.meaning.rows import Table, to_run_log
from stepladder.diagnosis.logs.printed.boosting_log import is_boosting_log, read_boosting_log
from stepladder.diagnosis.logs.printed.crash import (
    explain,
    is_out_of_memory,
    last_error,
    planned_epochs,
)
from stepladder.diagnosis.logs.printed.darknet_log import is_darknet_log, read_darknet_log
from stepladder.diagnosis.logs.printed.keras_log import is_keras_output, read_keras_output
from stepladder.diagnosis.logs.printed.printed_tables import is_printed_table, read_printed_table
from stepladder.diagnosis.logs.printed.processes import split_processes
from stepladder.diagnosis.logs.printed.stated_sizes import stated_sizes
from stepladder.diagnosis.logs.printed.text_log import is_text_log, read_text
from stepladder.errors import DataError
from stepladder.records.audit import LogFormat, LogRow, RunLog
from stepladder.records.run_files import RUN_FILES, did_you_mean, run_of
from stepladder.training.output.events import EVENTS_FILE

_SVG_START = 4096  # bytes that may precede the tag: comments and a document type
MAX_BYTES = 200_000_000
_PRINTED = (LogFormat.TEXT, LogFormat.KERAS_OUTPUT)
_MAX_BEGUN = 2  # epochs: the first one, and one that an error ended
_OF_FOLDERS = frozenset(  # names of files that are the same for each training
    {
        *("metrics", "trainer_state", "training", "history", "log", "progress", "result"),
        *("all_results", "eval_results", "predict_results", "train_results"),
    }
)
_JSON = re.compile(r"\ufeff?\s*(?:\{\s*[\"}]|\[\s*[\[{\"\]])")  # and no `[10:21:33]`
_FORMATS = (
    "Logs that can be read: Keras output, History and CSVLogger, Lightning's metrics.csv, Hugging "
    "Face's trainer_state.json, TensorBoard files, MLflow runs, stepladder run folders, CSV, JSON "
    "lines, notebooks with their output, tables of spaCy and Ultralytics, and printed lines such "
    "as 'epoch 3 train loss 0.5 val acc 0.9'."
)


def one_of_each_run(words: Sequence[str]) -> list[str]:
    """Leave out files of TensorBoard's download button that another one is read together with."""
    read: set[Path] = set()
    left = []
    for word in words:
        path = Path(word)
        is_file = not is_mlflow_uri(word) and is_tag_file(path)
        if is_file and path in read:
            continue
        if is_file:
            read.update(files_of_run(path))
        left.append(word)
    return left


def logs_in(word: str) -> list[str]:
    """Return the folders of trainings in a folder without a log of its own, else the word itself.

    They are in the order of their numbers: `version_2` comes before `version_10`.
    """
    path = Path(word)
    if is_mlflow_uri(word) or not path.is_dir() or has_own_log(path):
        return [word]
    return [str(run) for run in run_folders(path)] or [word]


def read_logs(word: str, *, metric: str | None = None) -> list[RunLog]:
    """Read all trainings in a log; its format is detected from its content.

    Args:
        word: a file, a folder, or an MLflow address.
        metric: the column to judge; None: validation accuracy, else validation loss.

    Raises:
        DataError: if it contains no training that can be read; says why.
        MissingExtraError: if a package that reads it is not installed.
    """
    if is_mlflow_uri(word):
        return _checked(_run_logs([read_mlflow_uri(word)], metric), word)
    path = Path(word)
    if path.is_dir():
        return _checked(_read_folder(path, metric), word)
    if not path.is_file():
        raise DataError(
            "the training log does not exist: there is no such file or folder",
            where=word,
            fix="Correct the path of the log. " + _FORMATS,
        )
    run = run_of(path, (EVENTS_FILE,)) if path.name in RUN_FILES - {EVENTS_FILE} else None
    if run is not None:
        what = f"this file belongs to the run {run}, but is not its training log"
        raise DataError(what, where=word, fix=did_you_mean([run]))
    return _checked(_read_file(path, metric), word)


def _run_logs(tables: Sequence[Table], metric: str | None) -> list[RunLog]:
    return [to_run_log(replace(table, metric=metric or table.metric)) for table in tables]


def _read_folder(path: Path, metric: str | None) -> list[RunLog]:
    name = training_name(path)
    if (path / EVENTS_FILE).is_file():
        return [read_run_log(path)]
    if runs := mlflow_runs(path):
        return _run_logs(read_mlflow_folder(runs), metric)
    refuse_tables_of_metrics(path)  # its metrics.json has only the last values
    if file := log_file(path):
        return _named(_read_file(file, metric), name)
    if tables := _tables_of_files(path, name):
        return _run_logs(tables, metric)
    if (file := plain_file(path)) and has_own_log(path):
        return _named(_read_file(file, metric), name)
    if runs := run_folders(path):
        if len(runs) == 1:
            return _read_folder(runs[0], metric)
        raise DataError(
            f"this folder contains no training log itself, but {len(runs)} of its folders do, and "
            "only one can be read here",
            where=str(path),
            fix=did_you_mean(runs),
        )
    refuse_store(path)
    listed = sorted(item.name for item in path.iterdir())[:8]
    files = likely_logs(path)
    raise DataError(
        "this folder contains no training log of a known format, "
        + (f"only {', '.join(listed)}" if listed else "because it is empty"),
        where=str(path),
        fix=f"{did_you_mean(files)} Pass one file." if files else _FORMATS,
    )


def _tables_of_files(path: Path, name: str) -> list[Table]:
    """Read a folder with one file per epoch, per writer or per metric; empty for any other one."""
    if files := files_of_epochs(path):
        return read_metrics_files(files, name=name, path=str(path))
    if is_tensorboard(path):
        return read_tensorboard(path, name=name)
    files = tag_files(path)
    return read_tag_files(files, name=name, path=str(path)) if files else []


def _named(logs: Sequence[RunLog], name: str) -> list[RunLog]:
    """Name trainings after their folder; several in one file keep their number or their name."""
    if len(logs) == 1:
        return [replace(logs[0], name=name)]
    numbers = [log.name.rpartition("#")[2] for log in logs]
    if all(map(str.isdigit, numbers)):
        return [replace(log, name=f"{name}#{num}") for log, num in zip(logs, numbers, strict=True)]
    return list(logs)


def _read_file(path: Path, metric: str | None) -> list[RunLog]:
    if has_event_files(path):
        return _run_logs(read_tensorboard(path, name=path.stem), metric)
    if is_tag_file(path):
        files = files_of_run(path)
        name = path.resolve().parent.name
        return _run_logs(read_tag_files(files, name=name, path=str(path)), metric)
    text = _text_of(path)
    if path.name == EVENTS_FILE or '"event":' in text[:200]:
        return [read_run_log(path)]
    if (notebook := read_notebook(text)) is not None:
        return _read_notebook(notebook, path, metric)
    notes: tuple[str, ...] = ()
    if (wrapped := unwrap(text)) is not None:
        text = wrapped.text
        notes = (f"the output was stored as JSON ({wrapped.service}), and its text is read",)
    tables = [replace(table, notes=(*notes, *table.notes)) for table in _tables(text, path)]
    if _is_evaluation(path):
        tables = [replace(table, is_evaluation=True) for table in tables]
    logs = _run_logs(tables, metric)
    _refuse_stopped_early(logs, text, str(path))
    if (error := _error_beside(path)) is not None:
        logs = [replace(log, ended_by=log.ended_by or error) for log in logs]
    return logs


def _text_of(path: Path) -> str:
    """Return the text of a file; of a file with arrays, the arrays as JSON.

    Raises:
        DataError: if it is too large, empty, a picture, or not text.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DataError(
            f"the file has {size / 1e6:,.0f} MB, and logs up to {MAX_BYTES / 1e6:,.0f} MB are read",
            where=str(path),
            fix="If it is a training log, pass the lines of its epochs and validations only, such "
            f"as: grep -iE 'epoch|val' {shlex.quote(str(path))} > short.log",
        )
    data = path.read_bytes()
    text = data.decode(_encoding(data), "replace")
    if not text.strip():
        said = _error_beside(path)
        raise DataError(
            "this log is an empty file"
            + (f": the program stopped with {said!r}" if said is not None else ""),
            where=str(path),
            fix="Pass the log of a training that has finished at least one epoch.",
        )
    if data.startswith(WANDB_START):
        raise wandb_error(path, [path])
    if (arrays := read_arrays(path, data, max_bytes=MAX_BYTES)) is not None:
        return arrays
    if (kind := _picture_kind(data)) is not None:
        raise DataError(
            f"this file is a picture ({kind}), not a training log: the numbers in it cannot be "
            "read",
            where=str(path),
            fix="Pass the log that the picture was drawn from. " + _FORMATS,
        )
    if "\x00" in text:
        raise DataError(
            "this file is not a training log, because it is not text",
            where=str(path),
            fix=_FORMATS,
        )
    return text


def _error_beside(path: Path) -> str | None:
    """Return the last error in `error.txt`, which Ray Tune writes beside the log of a trial."""
    file = path.with_name("error.txt")
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        return None
    error = last_error(file.read_text(encoding="utf-8", errors="replace"))
    return None if error is None else error[0]


def _picture_kind(data: bytes) -> str | None:
    """Return the format of a picture, or of a page that is one; None if a file is neither."""
    kind = name_format(data)
    if kind in MARKUP:
        return "SVG" if b"<svg" in data[:_SVG_START].lower() else None
    is_text = kind == "PPM" and b"\x00" not in data  # "P1 " may begin a line of a log
    return kind if kind in {*SUFFIXES, "PDF"} and not is_text else None


def _read_notebook(notebook: Mapping[str, Any], path: Path, metric: str | None) -> list[RunLog]:
    """Read what the cells of a notebook printed, or the tables that they show.

    What `trainer.train()` or `trainer.evaluate()` returns after the table of its epochs is printed,
    too.
    """
    tables: list[Table] = []
    given = {"name": path.stem, "path": str(path)}
    text = printed_text(notebook)
    if is_keras_output(text):
        tables = [*read_keras_output(text, **given)]
    elif is_printed_table(text):
        tables = [*read_printed_table(text, **given)]
    elif len(items := find_dicts(text)) > 1:
        tables = read_dicts(items, **given)
    elif is_text_log(text):
        tables = read_text(text, **given)
    logs = _fuller(_run_logs(tables, metric), _run_logs(_shown(notebook, **given), metric))
    if not _is_judgeable(logs):
        raise DataError(
            "this is a notebook without training output: none of its cells printed a loss or "
            "accuracy that can be read",
            where=str(path),
            fix="Run the cells that train, and save the notebook with their output. " + _FORMATS,
        )
    return logs


def _shown(notebook: Mapping[str, Any], *, name: str, path: str) -> list[Table]:
    """Read the tables that the cells of a notebook show; one that is not a log is left out."""
    tables: list[Table] = []
    for text in shown_tables(notebook):
        with suppress(DataError):
            tables += read_csv(text, name=name, path=path)
    if len(tables) < 2:
        return tables
    return [replace(one, name=f"{name}#{idx + 1}") for idx, one in enumerate(tables)]


def _fuller(printed: list[RunLog], shown: list[RunLog]) -> list[RunLog]:
    """Return the trainings with more evaluations, or else with more rows; equal: those printed.

    The only training of a table takes over a test result that was printed.
    """
    sizes = [
        (sum(map(_has_evaluation, rows)), sum(map(_has_numbers, rows)))
        for rows in ([row for log in logs for row in log.rows] for logs in (printed, shown))
    ]
    if sizes[0] >= sizes[1]:
        return printed
    if len(shown) == 1 and len(printed) == 1 and not printed[0].is_val_test:
        test_accuracy, test_loss = printed[0].test_accuracy, printed[0].test_loss
        if test_accuracy is not None or test_loss is not None:
            return [replace(shown[0], test_accuracy=test_accuracy, test_loss=test_loss)]
    return shown


def _encoding(data: bytes) -> str:
    """Return the encoding of a text; PowerShell redirects output as UTF-16."""
    return "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"


def _is_evaluation(path: Path) -> bool:
    """Return True if a file's name says that it has the results of a validation only."""
    words = re.split(r"[^a-z]+", path.stem.lower())
    return {SPLIT_OF_WORD[word] for word in words if word in SPLIT_OF_WORD} == {"val"}


def _tables(text: str, path: Path) -> Sequence[Table]:
    """Choose the reader by the first characters, and by lines that only one trainer prints."""
    given = {"name": path.stem, "path": str(path)}
    if path.stem in _OF_FOLDERS:
        given["name"] = training_name(path.resolve().parent)  # of a version or a trial
    is_lines = path.suffix in (".jsonl", ".ndjson") or "\n{" in text
    if not is_lines and is_keras_output(text):
        return _printed(text, **given)
    if _JSON.match(text):
        return read_json_lines(text, **given) if is_lines else read_json_log(text, **given)
    return _printed(text, **given) or read_csv(text, **given)


def _printed(text: str, *, name: str, path: str) -> list[Table]:
    """Read what a trainer printed, of each of its processes; empty for a CSV file."""
    tables: list[Table] = []
    for part in split_processes(text):
        title = f"{name} {part.name}".strip()
        found = _of_one_process(part.text, name=title, path=path)
        tables += [replace(table, notes=(*part.notes, *table.notes)) for table in found]
    sizes = stated_sizes(text)
    tables = [replace(table, known={**sizes, **table.known}) for table in tables]
    error = last_error(text, is_text_log)
    if error is None:
        return tables
    said, after = error
    if not tables and not has_header(text):
        raise _stopped_early(said, path)
    if not tables or is_text_log(after):
        return tables
    ended = {"ended_by": said, "max_epochs": planned_epochs(text)}
    return [*tables[:-1], replace(tables[-1], known={**ended, **tables[-1].known})]


def _stopped_early(said: str, path: str) -> DataError:
    why: str | None = None
    fix = "Correct that error"
    if (explained := explain(said)) is not None:
        why, fix = explained[0], explained[1].removesuffix(".")
    elif is_out_of_memory(said):
        fix = "Train with a smaller batch size or smaller images"
    return DataError(
        "this log contains no evaluation: no loss or accuracy of held-out data was printed before "
        f"the program stopped with {said!r}",
        where=path,
        why=why,
        fix=f"{fix}. Then pass the log of a training that has finished at least one epoch."
        if why
        else f"{fix}, and pass the log of a training that has finished at least one epoch.",
    )


def _refuse_stopped_early(logs: Sequence[RunLog], text: str, path: str) -> None:
    """Raise an error for printed output of a program that stopped before its first evaluation.

    A training without validation is judged by what it logged, from its second epoch on.
    """
    if any(log.format not in _PRINTED or _has_result(log) for log in logs):
        return
    num_epochs = max((len({row.epoch for row in log.rows}) for log in logs), default=0)
    error = last_error(text, is_text_log) if num_epochs <= _MAX_BEGUN else None
    if error is not None:
        raise _stopped_early(error[0], path)


def _has_result(log: RunLog) -> bool:
    is_tested = (log.test_accuracy, log.test_loss) != (None, None)
    return is_tested or any(map(_has_evaluation, log.rows))


def _of_one_process(text: str, *, name: str, path: str) -> Sequence[Table]:
    given = {"name": name, "path": path}
    if is_keras_output(text):
        return read_keras_output(text, **given)
    if is_printed_table(text):
        return read_printed_table(text, **given)
    if is_boosting_log(text):
        return read_boosting_log(text, **given)
    if is_darknet_log(text):
        return read_darknet_log(text, **given)
    if len(items := find_dicts(text)) > 1:
        return read_dicts(items, **given)
    return read_text(text, **given) if not has_header(text) and is_text_log(text) else []


def _checked(logs: Sequence[RunLog], word: str) -> list[RunLog]:
    """Raise an error for a log without a single number of a training."""
    if not _is_judgeable(logs):
        said = next(
            (note for log in logs for note in log.notes),
            "it has no loss or accuracy that is a number",
        )
        raise DataError(
            f"nothing can be judged from this training log: {said}", where=word, fix=_FORMATS
        )
    return list(logs)


def _is_judgeable(logs: Sequence[RunLog]) -> bool:
    return any(log.test_accuracy is not None or any(map(_has_numbers, log.rows)) for log in logs)


def _has_evaluation(row: LogRow) -> bool:
    return any(value is not None for value in (row.val_loss, row.val_accuracy, row.score))


def _has_numbers(row: LogRow) -> bool:
    values = (row.train_loss, row.train_accuracy, row.val_loss, row.val_accuracy, row.score)
    return any(value is not None for value in values)

"""Folders of trainings: the file that is the log of a folder, and the folders that have one."""

from __future__ import annotations

import re
from pathlib import Path

from stepladder.diagnosis.logs.folders.mlflow_log import mlflow_runs
from stepladder.diagnosis.logs.folders.tensorboard_csv import tag_files
from stepladder.diagnosis.logs.folders.tensorboard_log import has_event_files
from stepladder.training.output.events import EVENTS_FILE

_KNOWN_FILES = (
    "metrics.csv",
    "trainer_state.json",
    "training.log",
    "history.json",
    "log.csv",
    "results.csv",
    "summary.csv",
    "metrics.json",
    "scalars.json",
)
_OF_TRIALS = (  # Ray Tune, with the same rows in both; MMEngine
    "progress.csv",
    "result.json",
    "vis_data/scalars.json",
)
_PLAIN_FILES = (  # read only if nothing else is in the folder
    "train.log",
    "train_log.txt",
    "log.txt",
    "log.jsonl",
    "metrics.jsonl",
    "all_results.json",  # of Hugging Face, without the course of the training
    "eval_results.json",
    "predict_results.json",
    "train_results.json",
)
_OF_EPOCHS = "metrics_epoch_*.json"  # AllenNLP
_OF_LOGS = frozenset(  # endings of files that may be a log
    {".csv", ".tsv", ".log", ".out", ".txt", ".json", ".jsonl", ".ipynb"}
)
_NO_LOG = re.compile(  # files with such an ending that settings and vocabularies are stored in
    r"(?:.*[_-])?config|params|hparams|args|experiment_state.*|basic-variant-state.*|tokenizer.*|"
    r"vocab|merges|special_tokens_map|added_tokens|.*\.index|id2label|label2id|labels|classes|"
    r"requirements.*|package(?:-lock)?",
    re.IGNORECASE,
)


def files_of_epochs(path: Path) -> list[Path]:
    """List the files of a folder with one file per epoch, as AllenNLP writes."""
    return list(path.glob(_OF_EPOCHS))


def has_own_log(path: Path) -> bool:
    """Return True if a folder is that of a training, or of several that are read together."""
    return _has_course(path) or (plain_file(path) is not None and not _has_inner_course(path))


def _has_course(path: Path) -> bool:
    return (
        (path / EVENTS_FILE).is_file()
        or bool(mlflow_runs(path))
        or log_file(path) is not None
        or bool(files_of_epochs(path))
        or is_tensorboard(path)
        or bool(tag_files(path))
    )


def _has_inner_course(path: Path) -> bool:
    return any(item.is_dir() and _has_course(item) for item in path.iterdir())


def is_tensorboard(path: Path) -> bool:
    """Return True for event files, unless they are those of trials that have a log beside them."""
    return has_event_files(path) and not any(
        item.is_dir() and any(map(_has_bytes, _files_of_trial(item))) for item in path.iterdir()
    )


def run_folders(path: Path) -> list[Path]:
    """Return the folders directly in a folder that contain a log, or checkpoints with one.

    They are in the order of their numbers: `version_2` comes before `version_10`. A link to one of
    them is left out, such as `latest`.
    """
    folders = [item for item in path.iterdir() if item.is_dir()]
    own = {item.resolve() for item in folders if not item.is_symlink()}
    found = [
        item
        for item in folders
        if has_own_log(item) and not (item.is_symlink() and item.resolve() in own)
    ]
    return sorted(found, key=lambda run: [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", run.name)
    ])  # fmt: skip


def log_file(path: Path) -> Path | None:
    """Find the log in the folder of a run, or that of the newest checkpoint in it."""
    known = next(filter(Path.is_file, (path / name for name in _KNOWN_FILES)), None)
    if (found := known or _newest_trainer_state(path)) is not None:
        return found
    return next(filter(_has_bytes, _files_of_trial(path)), None)


def plain_file(path: Path) -> Path | None:
    """Find printed output or end results, or else an empty log, in the folder of a run.

    MMEngine stores the output of a training beside its values: of one that stored no values, that
    is what there is.
    """
    plain = [*(path / name for name in _PLAIN_FILES), path / f"{path.resolve().name}.log"]
    return next(filter(Path.is_file, [*plain, *_files_of_trial(path)]), None)


def _files_of_trial(path: Path) -> list[Path]:
    return [*(path / name for name in _OF_TRIALS), *sorted((path / "vis_data").glob("*.json"))]


def _has_bytes(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _newest_trainer_state(path: Path) -> Path | None:
    """Find the log of the last checkpoint: it includes those of all earlier ones."""
    found = [
        file
        for file in path.glob("checkpoint-*/trainer_state.json")
        if file.parent.name.removeprefix("checkpoint-").isdigit()
    ]
    return max(found, key=lambda f: int(f.parent.name.removeprefix("checkpoint-")), default=None)


def likely_logs(path: Path) -> list[Path]:
    """List the files of a folder that may be a log, else those of the folders in it.

    Files of settings or of a tokenizer are left out.
    """
    return _likely(path) or [
        file for item in sorted(path.iterdir()) if item.is_dir() for file in _likely(item)
    ]


def _likely(path: Path) -> list[Path]:
    return sorted(
        item
        for item in path.iterdir()
        if item.is_file() and item.suffix.lower() in _OF_LOGS and not _NO_LOG.fullmatch(item.stem)
    )


def training_name(path: Path) -> str:
    """Return the name of a training after its folder.

    Ray Tune names the folder of a trial after its id, its settings and its time: the settings and
    the time are left out.
    """
    name = path.resolve().name
    trial = re.match(r"(.*_[0-9a-f]{5,8}_\d{5})_\d+_.*\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$", name)
    return trial[1] if trial else name

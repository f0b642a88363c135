"""Flags of commands that read a job: a config file or a Task, and all options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import tyro
from tyro.conf import Positional

from stepladder.cli.parse import (
    CONFIG_FLAG,
    Output,
    Switch,
    Unprefixed,
    flag_settings,
    given_flags,
    is_config,
    job_before_flags,
    one_file,
    parse,
    write,
)
from stepladder.config.choices import AllReduce, Buckets, Launcher
from stepladder.config.load import settings_of_file
from stepladder.config.naming import with_run_folder
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    ModelConfig,
    Recipe,
    ScheduleConfig,
)
from stepladder.config.resolve import Resolved, Setting, resolve, settings_of_flags
from stepladder.config.schema import ALIASES, options
from stepladder.config.show import show, show_json
from stepladder.data.remote.places import is_address
from stepladder.errors import UsageError
from stepladder.records.near_paths import did_you_mean_path
from stepladder.records.run_files import CONFIG_FILE, RUN_MARKS, has_any

_TARGET = tyro.conf.arg(metavar="[CONFIG.yaml|FILE.py:NAME|PHOTOS]")
_TASK = re.compile(r".+\.py:\w+")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", re.ASCII)
_SHORT_FORMS = {"budget": "ladder.budget_s", "aim": "ladder.aim", "try_all": "ladder.try_all"}
_TABLES = (
    ".csv",
    ".tsv",
    ".jsonl",
    ".parquet",
    ".tar",
    ".tgz",
    ".gz",
)  # of pictures
_GROUPS = ("ladder", "population")  # of options that only some of the commands have
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """Flags of `train`, `features` and the other commands that read a job."""

    target: Annotated[Positional[Path | None], _TARGET] = None
    """YAML file of options, which flags override; your own Task, as FILE.py:NAME; or a folder of
    pictures or a store, as with --data."""
    data: Path = DataConfig.store
    """Store to train on, or folder of pictures, for which a store is prepared beside it; same as
    --data.store."""
    model: str = ModelConfig.name
    """Name of a timm model; same as --model.name."""
    epochs: int = ScheduleConfig.max_epochs
    """Maximum number of epochs; same as --schedule.max-epochs."""
    batch_size: int = BatchConfig.global_batch_size
    """Examples per optimizer step; same as --batch.global-batch-size."""
    lr: float = BatchConfig.lr
    """Learning rate; same as --batch.lr."""
    devices: int = DeviceConfig.count
    """Number of devices that train together, one process each; same as --device.count."""
    launch: Launcher = RunConfig.launch
    """What starts their processes; same as --run.launch."""
    all_reduce: AllReduce = DeviceConfig.all_reduce
    """How they add up gradients; same as --device.all-reduce."""
    buckets: Buckets = DeviceConfig.buckets
    """How gradients are grouped for sending; same as --device.buckets."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """YAML file of options; flags override it."""
    task: str | None = None
    """Your own Task, as FILE.py:NAME; the file is executed."""
    show_config: Switch = False
    """Print the value of each option and where it was set, and exit."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True, kw_only=True)
class LadderFlags(JobFlags):
    """Additional flags of `climb` and the other commands that measure."""

    ladder: LadderConfig = field(default_factory=LadderConfig)
    budget: str | None = None
    """Time limit of measurements, trials and the final training (if that takes at most a fifth of
    it), such as 90s or 10m; same as --ladder.budget-s."""


F = TypeVar("F", bound=JobFlags)


def read_job(
    flags: type[F],
    argv: Sequence[str],
    *,
    command: str,
    fixed: Mapping[str, Setting] | None = None,
) -> tuple[F, Resolved]:
    """Return the flags and the resolved config.

    Args:
        fixed: options that the command sets, by dotted name; they override the file.

    Raises:
        UsageError: if a value is not valid.
    """
    words = _task_as_flag(argv)
    before = job_before_flags(words)
    aliased = {name: options()[key].value(before) for name, key in ALIASES.items()}
    default = replace(flags(), recipe=before.recipe, run=before.run, **aliased)
    extra = [name for name in _GROUPS if hasattr(default, name)]
    default = replace(default, **{name: getattr(before, name) for name in extra})
    read = parse(flags, words, command=command, default=default)
    data = read.target if read.target is not None and _is_data(read.target) else None
    file = one_file(read.config_flag, None if data is not None else read.target)
    if file is not None and file.suffix == ".py":
        raise UsageError(
            "the command does not say which Task of this Python file to use",
            where=str(file),
            fix=f"Add the name of the class after a colon: stepladder {command} {file}:MyTask",
        )
    job = JobConfig(recipe=read.recipe, run=read.run)
    job = replace(job, **{name: getattr(read, name) for name in extra})
    settings = flag_settings(job, given_flags(words))
    for key, setting in (fixed or {}).items():
        if key in settings:
            where = settings[key].origin
            raise UsageError(
                "this option cannot be changed here, because it is already set by "
                f"{setting.origin}",
                where=where,
                fix=f"Leave out this option, or {setting.origin}.",
            )
        settings[key] = setting
    short = _short_settings(read, words)
    if data is not None:
        short.append(("data.store", Setting(value=data, origin=str(data))))
    for key, setting in short:
        if key in settings:
            what = f"this sets the same option as {settings[key].origin}, so it is unclear which "
            what += "value is meant"
            raise UsageError(what, where=setting.origin, fix="Use only one of the two.")
        settings[key] = setting
    resolved = resolve(settings_of_file(file) if file else {}, settings)
    return read, with_run_folder(resolved, file=file, task=read.task)


def _short_settings(read: JobFlags, words: Sequence[str]) -> list[tuple[str, Setting]]:
    """Return the settings of the flags that have another name than their option."""
    typed = {flag[2:].replace("-", "_"): flag for flag in (w.partition("=")[0] for w in words)}
    aliased = {key: (typed[name], name) for name, key in ALIASES.items() if name in typed}
    found = settings_of_flags(
        {key: (flag, getattr(read, name)) for key, (flag, name) in aliased.items()}
    )
    settings = list(found.items())
    for name, key in _SHORT_FORMS.items():
        flag, value = f"--{name.replace('_', '-')}", getattr(read, name, None)
        if value is None or value is False:
            continue
        value = seconds_of(value, where=flag) if name == "budget" else value
        settings.append((key, Setting(value=value, origin=flag)))
    return settings


def _is_data(target: Path) -> bool:
    """Return True if an argument names pictures or a store, False if it names a file of options.

    Raises:
        UsageError: if it is the folder of a run, or a folder that does not exist.
    """
    if is_config(str(target)) or target.suffix == ".py":
        return False
    if has_any(target, RUN_MARKS):
        raise UsageError(
            "this is the folder of an earlier run, not of pictures or a store",
            where=str(target),
            fix=f"To resume that run, pass its config instead: {target / CONFIG_FILE}",
        )
    if target.is_dir() or is_address(target):
        return True
    if not target.exists() and not target.suffix:
        raise UsageError(
            "the folder does not exist",
            where=str(target),
            fix=did_you_mean_path(
                target, "Pass a folder of pictures, a store, or a YAML file.", fits=_is_named
            ),
        )
    return target.suffix.lower() in _TABLES


def _is_named(path: Path) -> bool:
    """Return True for a folder or file that a job can be named by."""
    return path.is_dir() or is_config(str(path)) or path.suffix.lower() in _TABLES


def print_config(resolved: Resolved, output: Output) -> int:
    """Print each option's value and origin, and return the exit code."""
    write(json.dumps(show_json(resolved), indent=2) if output.json else show(resolved))
    return 0


def seconds_of(text: str, *, where: str) -> float:
    """Read a time span such as 90s, 10m or 2h.

    Raises:
        UsageError: if it is not a time span, or zero.
    """
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(
            f"{text!r} is not a length of time above 0",
            where=where,
            fix="Write it with s, m or h, such as 90s, 10m or 2h.",
        )
    return seconds


def _task_as_flag(argv: Sequence[str]) -> list[str]:
    """Replace an argument FILE.py:NAME by --task FILE.py:NAME.

    Raises:
        UsageError: if two Tasks are given.
    """
    words: list[str] = []
    for word, before in zip(argv, ["", *argv], strict=False):
        is_task = _TASK.fullmatch(word) is not None and not word.startswith("-")
        words += ["--task", word] if is_task and before != "--task" else [word]
    named = [word for word in words if word == "--task" or word.startswith("--task=")]
    if len(named) > 1:
        raise UsageError(
            "the command names two Tasks, but a run has only one",
            where="--task",
            fix="Name only one Task.",
        )
    return words

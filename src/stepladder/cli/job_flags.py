"""The flags of the commands that read a job: a config file or a Task, and every option under it."""

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
    job_before_flags,
    one_file,
    parse,
    write,
)
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import Resolved, Setting, resolve
from stepladder.config.show import show, show_json
from stepladder.errors import UsageError

_TARGET = tyro.conf.arg(metavar="[CONFIG.yaml|FILE.py:NAME]")
_TASK = re.compile(r".+\.py:\w+")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", re.ASCII)
_SHORT_FORMS = {"budget": "ladder.budget_s", "aim": "ladder.aim", "try_all": "ladder.try_all"}
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """What `train`, `climb` and their like take."""

    target: Annotated[Positional[Path | None], _TARGET] = None
    """A file of options, which flags go over, or a Task of your own as FILE.py:NAME."""
    config_flag: Annotated[Path | None, CONFIG_FLAG] = None
    """The file of options, as a flag."""
    task: str | None = None
    """A Task of your own, as FILE.py:NAME; that file is run."""
    show_config: Switch = False
    """Print each option's value and where it came from, and do nothing else."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)
    recipe: Annotated[Recipe, Unprefixed] = field(default_factory=Recipe)
    run: RunConfig = field(default_factory=RunConfig)


@dataclass(frozen=True, kw_only=True)
class LadderFlags(JobFlags):
    """What `climb` and its like take besides."""

    ladder: LadderConfig = field(default_factory=LadderConfig)
    budget: str | None = None
    """Time for measurements, trials and the training at the end, as far as that takes no more than
    a fifth of it, such as 90s or 10m; the same as --ladder.budget-s."""


F = TypeVar("F", bound=JobFlags)


def read_job(
    flags: type[F],
    argv: Sequence[str],
    *,
    command: str,
    fixed: Mapping[str, Setting] | None = None,
) -> tuple[F, Resolved]:
    """Read the flags, and resolve the config under them.

    Args:
        fixed: options that the command itself sets, by dotted name; a file's are replaced.

    Raises:
        UsageError: for a value that does not fit.
    """
    words = _task_as_flag(argv)
    before = job_before_flags(words)
    default = replace(flags(), recipe=before.recipe, run=before.run)
    if isinstance(default, LadderFlags):
        default = replace(default, ladder=before.ladder)
    read = parse(flags, words, command=command, default=default)
    file = _config_of(read.config_flag, read.target, command)
    job = JobConfig(recipe=read.recipe, run=read.run)
    if isinstance(read, LadderFlags):
        job = replace(job, ladder=read.ladder)
    settings = flag_settings(job, given_flags(words))
    for key, setting in (fixed or {}).items():
        if key in settings:
            where = settings[key].origin
            raise UsageError(f"{setting.origin} sets it itself", where=where, fix="Leave it out.")
        settings[key] = setting
    for name, key in _SHORT_FORMS.items():
        flag, value = f"--{name.replace('_', '-')}", getattr(read, name, None)
        if value is None or value is False:
            continue
        if key in settings and value is not True:
            what = f"{settings[key].origin} says the same in another way"
            raise UsageError(what, where=flag, fix="Give one of the two.")
        value = seconds_of(value, where=flag) if name == "budget" else value
        settings[key] = Setting(value=value, origin=flag)
    return read, resolve(settings_of_file(file) if file else {}, settings)


def print_config(resolved: Resolved, output: Output) -> int:
    """Print each option's value and origin, and return the exit code."""
    write(json.dumps(show_json(resolved), indent=2) if output.json else show(resolved))
    return 0


def seconds_of(text: str, *, where: str) -> float:
    """Read a time span such as 90s, 10m or 2h.

    Raises:
        UsageError: if it is none, or zero.
    """
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{text!r} is no time span", where=where, fix="Write 90s, 10m or 2h.")
    return seconds


def _config_of(flag: Path | None, word: Path | None, command: str) -> Path | None:
    """Return the one file of options that was named.

    Raises:
        UsageError: if there are two, or one is a Task's file without the Task's name.
    """
    if word is not None and word.suffix == ".py":
        raise UsageError(
            "which Task of this file?",
            where=str(word),
            fix=f"Add its name, such as `stepladder {command} {word}:MyTask`.",
        )
    return one_file(flag, word)


def _task_as_flag(argv: Sequence[str]) -> list[str]:
    """Turn a word FILE.py:NAME, wherever it stands, into --task FILE.py:NAME.

    Raises:
        UsageError: if two Tasks are named.
    """
    words: list[str] = []
    for word, before in zip(argv, ["", *argv], strict=False):
        is_task = _TASK.fullmatch(word) is not None and not word.startswith("-")
        words += ["--task", word] if is_task and before != "--task" else [word]
    named = [word for word in words if word == "--task" or word.startswith("--task=")]
    if len(named) > 1:
        raise UsageError("two Tasks are named", where="--task", fix="Give one of them.")
    return words

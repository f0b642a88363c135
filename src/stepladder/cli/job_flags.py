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
    """Flags of `train`, `features` and the other commands that read a job."""

    target: Annotated[Positional[Path | None], _TARGET] = None
    """YAML file of options, which flags override, or your own Task as FILE.py:NAME."""
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
            raise UsageError(
                f"this option is set by {setting.origin}", where=where, fix="Remove it."
            )
        settings[key] = setting
    for name, key in _SHORT_FORMS.items():
        flag, value = f"--{name.replace('_', '-')}", getattr(read, name, None)
        if value is None or value is False:
            continue
        if key in settings and value is not True:
            what = f"this flag sets the same option as {settings[key].origin}"
            raise UsageError(what, where=flag, fix="Use one of the two.")
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
        UsageError: if it is not a time span, or zero.
    """
    match = _SPAN.fullmatch(text.strip())
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(
            f"{text!r} is not a time span", where=where, fix="Write it as 90s, 10m or 2h."
        )
    return seconds


def _config_of(flag: Path | None, word: Path | None, command: str) -> Path | None:
    """Return the file of options that was given.

    Raises:
        UsageError: if there are two, or if it is a Python file without the name of a Task.
    """
    if word is not None and word.suffix == ".py":
        raise UsageError(
            "the name of the Task is missing",
            where=str(word),
            fix=f"Add it after a colon, such as `stepladder {command} {word}:MyTask`.",
        )
    return one_file(flag, word)


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
        raise UsageError("two Tasks are given", where="--task", fix="Use one of them.")
    return words

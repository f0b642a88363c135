"""What `climb` and `advise` take: a config file or a task, a budget, and the recipe's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from stepladder.cli.parse import (
    flag_settings,
    given_flags,
    job_before_flags,
    one_file,
    parse,
)
from stepladder.config.load import settings_of_file
from stepladder.config.options import JobConfig, LadderConfig, RunConfig
from stepladder.config.recipe import Recipe
from stepladder.config.resolve import Resolved, Setting, resolve
from stepladder.errors import UsageError

_TASK = re.compile(r".+\.py:\w+")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", re.ASCII)
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class LadderFlags(Protocol):
    """The flags that both commands have."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def target(self) -> Path | None:
        """The word in front."""

    @property
    def config_flag(self) -> Path | None:
        """--config."""

    @property
    def task(self) -> str | None:
        """--task."""

    @property
    def budget(self) -> str | None:
        """--budget."""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""

    @property
    def run(self) -> RunConfig:
        """Where it is written."""

    @property
    def ladder(self) -> LadderConfig:
        """How it is climbed."""


F = TypeVar("F", bound=LadderFlags)


def read_job(
    flags: type[F],
    argv: Sequence[str],
    *,
    command: str,
    examples: str,
    fixed: Mapping[str, Setting] | None = None,
) -> tuple[F, Resolved, str | None]:
    """Read the flags, resolve the config under them, and find the task.

    Args:
        fixed: options that the command itself sets, by dotted name; a file's are replaced.

    Returns:
        The flags, the config, and the task's FILE.py:NAME or None.

    Raises:
        UsageError: for a value that does not fit.
    """
    words = task_as_flag(argv)
    before = job_before_flags(words)
    default = replace(flags(), recipe=before.recipe, run=before.run, ladder=before.ladder)
    read = parse(flags, words, command=command, examples=examples, default=default)
    file = config_of(read.config_flag, read.target, command)
    job = JobConfig(recipe=read.recipe, run=read.run, ladder=read.ladder)
    settings = flag_settings(job, given_flags(words))
    if read.budget is not None:
        if "ladder.budget_s" in settings:
            raise _said_twice(settings["ladder.budget_s"].origin, where="--budget")
        seconds = seconds_of(read.budget, where="--budget")
        settings["ladder.budget_s"] = Setting(value=seconds, origin="--budget")
    for key, setting in (fixed or {}).items():
        if key in settings:
            where = settings[key].origin
            raise UsageError(f"{setting.origin} sets it itself", where=where, fix="Leave it out.")
        settings[key] = setting
    aim = getattr(read, "aim", None)
    if aim is not None:
        if "ladder.aim" in settings:
            raise _said_twice(settings["ladder.aim"].origin, where="--aim")
        settings["ladder.aim"] = Setting(value=aim, origin="--aim")
    if getattr(read, "try_all", False):
        settings["ladder.try_all"] = Setting(value=True, origin="--try-all")
    return read, resolve(settings_of_file(file) if file else {}, settings), read.task


def _said_twice(other: str, *, where: str) -> UsageError:
    what = f"{other} says the same in another way"
    return UsageError(what, where=where, fix="Give one of the two.")


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


def config_of(flag: Path | None, word: Path | None, command: str) -> Path | None:
    """Give the one file of options that was named.

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


def task_as_flag(argv: Sequence[str]) -> list[str]:
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

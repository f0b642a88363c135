"""`stepladder climb train.py`: the flags of a climb with an unmodified script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from tyro.conf import Positional, arg

from stepladder.api.scripts import climb_script
from stepladder.cli.job_flags import seconds_of
from stepladder.cli.parse import Output, Switch, Unprefixed, parse
from stepladder.cli.script_words import split
from stepladder.errors import UsageError
from stepladder.scripts.metric import metric_of
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.rungs import SCRIPT_RUNGS

_WITH_VALUE: Final = frozenset(
    {
        "--out",
        "--budget",
        "--metric",
        "--max-wait",
        "--seeds",
        "--steps",
        "--min-gain",
        "--only",
        "--module",
        "-m",
    }
)
_SCRIPTS: Final = (".py", ".ipynb")
_TASK: Final = re.compile(r"^class \w+\(.*\bTask\b.*\)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class ScriptFlags:
    """Try speed-ups of an unmodified script, keep those that pay, and write them as a diff.

    The original and each candidate run in two processes, in turn, with the same seed; the script
    is not changed, and its files are kept apart.

    Examples:
      stepladder climb train.py -- --epochs 2           its own arguments follow --
      stepladder climb train.py --budget 10m            in about ten minutes
      stepladder climb --metric 'accuracy: ([0-9.]+)' train.py
                                                        judge by what it prints at its end
      stepladder climb --metric results.json:accuracy train.py
                                                        or by what it writes
    """

    script: Annotated[Positional[str | None], arg(metavar="SCRIPT.py [-- ITS ARGS]")] = None
    """The script or notebook, followed by its own arguments."""
    module: Annotated[str | None, arg(aliases=["-m"], metavar="MODULE")] = None
    """A module instead, as with `python -m`."""
    out: Path | None = None
    """Folder for the diff and the pages; default: climb-NAME in the current folder."""
    budget: str | None = None
    """Time after which no other speed-up is tried, such as 90s or 10m."""
    metric: str | None = None
    """A number by which changes that are not exact are compared at the end of training, not by
    the losses: a regular expression whose group is a number that the script prints (the last one
    counts), `results.json:accuracy` for a key of a file that it writes, or `score.py:accuracy` for
    a function that is called without arguments where the script has run."""
    lower_is_better: Switch = False
    """A smaller metric is better."""
    seeds: int = ScriptOptions.num_seeds
    """Runs of each version where several seeds are compared; 3 or more."""
    min_gain: float = ScriptOptions.min_gain
    """Smallest gain of a step for which a speed-up is tried and kept."""
    steps: int | None = None
    """Steps that the script takes in all, for changes that cost time at its start, such as
    compiling. Default: they are counted where that matters, for at most three minutes."""
    max_wait: str = "10m"
    """Time that the script may take to its first step, and with --metric to its end."""
    allow_writes: Switch = False
    """Let the script write its files where it does, each time that it is run."""
    try_all: Switch = False
    """Try every speed-up, regardless of its predicted gain."""
    only: str | None = None
    """Names of the speed-ups to try, separated by commas; default: all."""
    fresh: Switch = False
    """Try every speed-up again, and ignore the results of earlier climbs."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def names_script(argv: Sequence[str]) -> bool:
    """Return True if a command line of `climb` names a script, not a job."""
    ours = list(argv[: argv.index("--")] if "--" in argv else argv)
    if any(word in ("-m", "--module") or word.startswith("--module=") for word in ours):
        return True
    for before, word in zip(["", *ours], ours, strict=False):
        if word.startswith("-") or before in ("--task", "--config"):
            continue
        if word.endswith(_SCRIPTS):
            return not _has_task(Path(word))
    return False


def _has_task(file: Path) -> bool:
    """Return True if a file defines a Task, and is no script."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "stepladder" in text and _TASK.search(text) is not None


def run_script_climb(argv: Sequence[str]) -> int:
    """Run the command."""
    ours, args = split(_script_first(argv), _WITH_VALUE)
    flags = parse(ScriptFlags, ours, command="climb")
    target = flags.module or flags.script
    if target is None:
        raise UsageError(
            "the command does not say which script to climb with",
            fix="Type: stepladder climb train.py",
        )
    if flags.seeds < 3:
        raise UsageError(f"{flags.seeds} is not 3 or more", where="--seeds", fix="Use 3 or more.")
    if flags.steps is not None and flags.steps < 1:
        raise UsageError(f"{flags.steps} is not 1 or more", where="--steps", fix="Use 1 or more.")
    if flags.min_gain < 0:
        raise UsageError(
            f"{flags.min_gain} is not 0 or more", where="--min-gain", fix="Use 0.03 or another one."
        )
    options = ScriptOptions(
        budget_s=None if flags.budget is None else seconds_of(flags.budget, where="--budget"),
        min_gain=flags.min_gain,
        num_seeds=flags.seeds,
        num_steps=flags.steps,
        metric=None if flags.metric is None else metric_of(flags.metric),
        is_higher_better=not flags.lower_is_better,
        max_wait_s=seconds_of(flags.max_wait, where="--max-wait"),
        allows_writes=flags.allow_writes,
        is_fresh=flags.fresh,
        try_all=flags.try_all,
        only=_names(flags.only),
    )
    with flags.output.display() as display:
        climb_script(
            target,
            args,
            display=display,
            is_module=flags.module is not None,
            out=flags.out,
            options=options,
        )
    return 0


def _script_first(argv: Sequence[str]) -> list[str]:
    """Return the words with all of our flags before the script; its own ones follow a `--`."""
    at = argv.index("--") if "--" in argv else len(argv)
    ours, args = list(argv[:at]), list(argv[at:])
    script = next((word for word in ours if word.endswith(_SCRIPTS) and word[0] != "-"), None)
    if script is None:
        return list(argv)
    ours.remove(script)
    return [*ours, script, *args]


def _names(only: str | None) -> tuple[str, ...]:
    """Return the names of rungs in a list.

    Raises:
        UsageError: if one is not the name of a rung.
    """
    names = tuple(name.strip() for name in only.split(",")) if only is not None else ()
    known = [rung.name for rung in SCRIPT_RUNGS]
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name} is not the name of a speed-up of scripts",
                where="--only",
                fix=f"Use names of these: {', '.join(known)}",
            )
    return names

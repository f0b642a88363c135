"""`stepladder watch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from tyro.conf import Positional, arg

from stepladder.api.watch import watch_job
from stepladder.cli.parse import Output, Switch, Unprefixed, parse
from stepladder.cli.script_words import split
from stepladder.errors import UsageError

WITH_VALUE: Final = frozenset(
    {"--out", "--steps", "--baseline", "--max-slower", "--module", "-m", "--nproc-per-node"}
)
_AFTER: Final = ("--baseline", "--max-slower")
"""Flags that are ours after the script as well, if both are there."""


@dataclass(frozen=True, kw_only=True)
class _Output(Output):
    """What is printed."""

    json: Switch = False
    """Print JSON to stderr; stdout is the script's."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run an unmodified PyTorch script; report what is slow or wrong in it, and where.

    The script runs as with `python`: its output and its exit code are unchanged. The report is
    printed to stderr and saved in a folder.

    Examples:
      stepladder watch train.py -- --epochs 2     where the time goes, and what is wrong
      stepladder watch --steps 300 train.py       stop after 300 optimizer steps
      stepladder watch train.ipynb                a notebook, cell by cell
      stepladder watch --probe -m package.train   also test other settings at the end
      stepladder watch --baseline watch-train --max-slower 0.1 train.py
                                                  exit code 7 if it became slower, or worse
      stepladder watch --nproc-per-node 4 train.py
                                                  four ranks, as with torchrun; one report
    """

    script: Annotated[Positional[str | None], arg(metavar="SCRIPT.py [-- ITS ARGS]")] = None
    """The script or notebook, followed by its own arguments."""
    module: Annotated[str | None, arg(aliases=["-m"], metavar="MODULE")] = None
    """Run a module instead, as with `python -m`."""
    out: Path | None = None
    """Folder for watch.json and watch.html; default: watch-NAME in the current folder."""
    steps: int | None = None
    """Stop the script after this number of optimizer steps, with exit code 0."""
    probe: Switch = False
    """After the last step, replay steps with other settings on a copy, and test how gradients are
    cleared."""
    baseline: Path | None = None
    """Folder of an earlier report: the exit code is 7 if steps became slower, or a fault is new."""
    max_slower: str = "0.1"
    """Share by which a step may take longer than in the earlier report, such as 0.1, or a
    percentage."""
    nproc_per_node: int | None = None
    """Run the script in this number of processes of this machine, as torchrun does, and report on
    all ranks. A script that torchrun starts (`torchrun … -m stepladder watch train.py`) needs no
    flag."""
    output: Annotated[_Output, Unprefixed] = field(default_factory=_Output)


def run(argv: list[str]) -> int:
    """Run the command; return the exit code of the script."""
    ours, args = split(_ours_first(argv), WITH_VALUE)
    flags = parse(Flags, ours, command="watch")
    target = flags.module or flags.script
    if target is None:
        raise UsageError(
            "the command does not say which script to run and watch",
            fix="Type: stepladder watch train.py",
        )
    _refuse_launcher(flags, args)
    if flags.steps is not None and flags.steps < 1:
        raise UsageError(f"{flags.steps} is not 1 or more", where="--steps", fix="Use 1 or more.")
    num = flags.nproc_per_node
    if num is not None and num < 1:
        raise UsageError(f"{num} is not 1 or more", where="--nproc-per-node", fix="Use 1 or more.")
    ending = watch_job(
        target,
        args,
        out=flags.out,
        steps=flags.steps,
        probe=flags.probe,
        is_module=flags.module is not None,
        as_json=flags.output.json,
        quiet=flags.output.quiet,
        baseline=flags.baseline,
        max_slower=_share(flags.max_slower),
        num_processes=num,
    )
    return ending.exit_code


def _refuse_launcher(flags: Flags, args: Sequence[str]) -> None:
    """Reject a launcher command, such as python, in place of the script.

    Raises:
        UsageError: if the file does not exist, and a script is among its arguments.
    """
    if flags.module is not None or flags.script is None or Path(flags.script).is_file():
        return
    script = next((word for word in args if word.endswith(".py")), None)
    if script is not None:
        raise UsageError(
            "the script does not exist",
            where=flags.script,
            why="stepladder runs the script itself, without a launcher such as python.",
            fix=f"Start with the script: stepladder watch {script}",
        )


def _ours_first(argv: Sequence[str]) -> list[str]:
    """Return the words with `--baseline A --max-slower B` first, where they follow the script."""
    words = list(argv[: argv.index("--")] if "--" in argv else argv)
    if not all(flag in words for flag in _AFTER):
        return list(argv)
    left, first = list(argv), []
    for flag in _AFTER:
        at = left.index(flag)
        first += left[at : at + 2]
        del left[at : at + 2]
    return [*first, *left]


def _share(text: str) -> float:
    """Return a share from text such as 0.1, or from a percentage.

    Raises:
        UsageError: if it is not one, or below 0.
    """
    number = text.strip()
    try:
        share = float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise UsageError(
            f"{text} is not a share of 0 or more",
            where="--max-slower",
            fix="Type one such as: --max-slower 0.1",
        )
    return share

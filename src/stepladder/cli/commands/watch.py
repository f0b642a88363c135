"""`stepladder watch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from tyro.conf import Positional, arg

from stepladder.api.watch import watch_job
from stepladder.cli.parse import Output, Switch, Unprefixed, parse
from stepladder.errors import UsageError

_WITH_VALUE: Final = frozenset({"--out", "--steps", "--module", "-m"})


@dataclass(frozen=True, kw_only=True)
class _Output(Output):
    """What is printed."""

    json: Switch = False
    """Print JSON, for programs, to stderr: stdout is the script's."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run a PyTorch script that knows nothing of us; say what is slow or wrong with it, and where.

    The script runs as under `python`; what it prints and its exit code are its own. The report goes
    to stderr and into a folder.

    Examples:
      stepladder watch train.py -- --epochs 2     where time goes, and what is wrong with it
      stepladder watch --steps 300 train.py       stop after 300 steps of the optimiser
      stepladder watch --probe -m package.train   replay steps with other settings, at the end
    """

    script: Annotated[Positional[str | None], arg(metavar="SCRIPT.py [-- ITS ARGS]")] = None
    """The script; what follows it is its own."""
    module: Annotated[str | None, arg(aliases=["-m"], metavar="MODULE")] = None
    """A module instead, as `python -m` takes it."""
    out: Path | None = None
    """Folder for watch.json and watch.html; watch-NAME under the working folder otherwise."""
    steps: int | None = None
    """End the script after so many steps of its optimiser, with exit code 0."""
    probe: Switch = False
    """After its last step, test on a copy how gradients are cleared, and replay steps."""
    output: Annotated[_Output, Unprefixed] = field(default_factory=_Output)


def run(argv: list[str]) -> int:
    """Watch a script; the exit code is the script's."""
    ours, args = split(argv)
    flags = parse(Flags, ours, command="watch")
    target = flags.module or flags.script
    if target is None:
        raise UsageError("no script was named", fix="Type `stepladder watch train.py`.")
    _refuse_launcher(flags, args)
    if flags.steps is not None and flags.steps < 1:
        raise UsageError(f"{flags.steps} steps are none", where="--steps", fix="Give 1 or more.")
    ending = watch_job(
        target,
        args,
        out=flags.out,
        steps=flags.steps,
        probe=flags.probe,
        is_module=flags.module is not None,
        as_json=flags.output.json,
        quiet=flags.output.quiet,
    )
    return ending.exit_code


def _refuse_launcher(flags: Flags, args: Sequence[str]) -> None:
    """Refuse a command that would start the script, such as python, where the script belongs.

    Raises:
        UsageError: if there is no such file, and a script among what follows.
    """
    if flags.module is not None or flags.script is None or Path(flags.script).is_file():
        return
    script = next((word for word in args if word.endswith(".py")), None)
    if script is not None:
        raise UsageError(
            "there is no such script",
            where=flags.script,
            why="The script runs in this process: no other command starts it.",
            fix=f"Begin with the script: stepladder watch {script}",
        )


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part our own words from the script's: all that follows its name, a `--` apart."""
    idx = 0
    while idx < len(argv):
        word = argv[idx]
        is_named = word in ("-m", "--module") or word.startswith("--module=")
        idx += 2 if word in _WITH_VALUE else 1
        if is_named or not word.startswith("-"):
            rest = list(argv[idx:])
            return list(argv[:idx]), rest[1:] if rest[:1] == ["--"] else rest
    return list(argv), []

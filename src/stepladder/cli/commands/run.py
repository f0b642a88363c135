"""`stepladder run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from tyro.conf import Positional, arg

from stepladder.api.scripts import run_script_with
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.cli.script_words import split
from stepladder.errors import UsageError

WITH_VALUE: Final = frozenset({"--with", "--module", "-m"})


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Run an unmodified script with speed-ups that are applied from outside.

    The script runs as with `python`: its arguments, output and exit code are unchanged.

    Examples:
      stepladder run --with climb train.py                  what the last climb with it kept
      stepladder run --with climb-train train.py -- --lr 1  what the climb in this folder kept
      stepladder run --with channels_last,compile train.py  rungs by name
    """

    script: Annotated[Positional[str | None], arg(metavar="SCRIPT.py [-- ITS ARGS]")] = None
    """The script, followed by its own arguments."""
    module: Annotated[str | None, arg(aliases=["-m"], metavar="MODULE")] = None
    """Run a module instead, as with `python -m`."""
    with_: Annotated[str, arg(name="with", metavar="CLIMB")] = "climb"
    """Folder of a climb with a script, `climb` for that of this script, or names of rungs."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command; return the exit code of the script."""
    ours, args = split(argv, WITH_VALUE)
    flags = parse(Flags, ours, command="run")
    target = flags.module or flags.script
    if target is None:
        raise UsageError(
            "the command does not say which script to run",
            fix="Type: stepladder run --with climb train.py",
        )
    return run_script_with(flags.with_, target, args, is_module=flags.module is not None)

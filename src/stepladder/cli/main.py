"""Dispatch: the first word names the command, the rest is the command's; errors become exit codes.

Nothing heavy is imported here: `stepladder --help` and a mistyped command answer at once.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stepladder import __version__
from stepladder.cli.commands import COMMANDS
from stepladder.cli.crash import exit_of_task, known_error, line_of_task, save_trace
from stepladder.errors import StepladderError, UsageError

_EXAMPLES = (
    ("stepladder prepare photos --out store", "folders of pictures, one a class"),
    ("stepladder train --data.store store --run.dir runs/first", "to a trained classifier"),
    ("stepladder predict runs/first new_photos", "what is on these?"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code.

    0 done; 1 an error of ours; 2 usage; 3 data; 4 resources; 5 diverged; 6 an unsound job;
    128 + n signal n.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _own_warnings_as_lines():
            code = _dispatch(words)
        if sys.stdout is not None and not sys.stdout.closed:  # a script that we ran may close it
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # `| head` has seen enough
        _silence_stdout()
        return 128 + 13
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 128 + 2
    except SystemExit as error:
        told = exit_of_task(error)
        if told is None:  # the end of --help, of a watched script, after a mistyped option
            raise
        return _report(told, error, words)
    except Exception as error:
        known = known_error(error)
        if known is None:
            return _report_crash(error, words)
        return _report(known, error, words)


@contextlib.contextmanager
def _own_warnings_as_lines() -> Iterator[None]:
    """Show our own warnings as a line, without their place in our code."""
    before = warnings.formatwarning
    package = f"{Path(__file__).parents[1]}{os.sep}"

    def form(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if filename.startswith(package):
            return f"warning: {message}\n"
        return before(message, category, filename, lineno, line)

    warnings.formatwarning = form
    try:
        yield
    finally:
        warnings.formatwarning = before


def _dispatch(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name == "help" and words[1:]:
        words = [words[1], "--help"]  # `help climb` asks for what `climb --help` says
        name = words[0]
    if name in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if name in ("-V", "--version"):
        sys.stdout.write(f"stepladder {__version__}\n")
        return 0
    commands = {command.name: command for command in COMMANDS}
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        meant = f"Did you mean `stepladder {close[0]}`?" if close else None
        listed = f"Commands: {', '.join(commands)}."
        raise UsageError(f"{name}: there is no such command", fix=meant or listed)
    run: Callable[[list[str]], int] = importlib.import_module(commands[name].module).run
    return run(words[1:])


def _help() -> str:
    lines = ["Scale deep-learning training in the right order, with proof.", ""]
    lines += ["usage: stepladder COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {command.name:<12}{command.summary}" for command in COMMANDS]
    lines += ["", "examples:"]
    lines += [f"  {line}\n      {text}" for line, text in _EXAMPLES]
    lines += ["", "`stepladder COMMAND --help` lists the options of a command.", ""]
    return "\n".join(lines)


def _report(error: StepladderError, cause: BaseException, words: list[str]) -> int:
    """Print an error that a person can act on."""
    if "--debug" in words:
        traceback.print_exception(cause)
    sys.stderr.write(f"{error}\n")
    if "--json" in words:
        parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
        event = {"event": "error", "exit_code": error.exit_code, "kind": type(error).__name__}
        sys.stdout.write(json.dumps(event | parts) + "\n")
    return error.exit_code


def _report_crash(error: Exception, words: list[str]) -> int:
    """Print three lines on an error of the user's Task, or one that is probably ours."""
    if "--debug" in words:
        traceback.print_exception(error)
    path = save_trace(error)
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    line = line_of_task(error)
    if line is not None:
        sys.stderr.write(
            f"your Task failed: {what}\n"
            f"  {line}\n"
            f"  The whole trace is in {path}; `stepladder check` tries each part of a Task alone.\n"
        )
        return 1
    sys.stderr.write(
        f"unexpected error: {what}\n"
        f"  The whole trace is in {path}.\n"
        f"  If this looks like our mistake, send it along with what `stepladder doctor` prints.\n"
    )
    return 1


def _silence_stdout() -> None:
    """Keep Python from failing again when it flushes a closed pipe at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main())

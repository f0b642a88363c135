"""Dispatch to a command by the first argument, and turn errors into exit codes.

Slow modules are not imported here, so that `stepladder --help` and usage errors are fast.
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
from stepladder.cli.resuming import with_resuming_command
from stepladder.errors import StepladderError, UsageError

_EXAMPLES = (
    (
        "stepladder prepare photos --out store",
        "create a store from one folder of pictures per class",
    ),
    ("stepladder train --data.store store --run.dir runs/first", "train a classifier"),
    ("stepladder predict runs/first new_photos", "classify new pictures"),
)


_NAME_WIDTH = 2 + max(len(command.name) for command in COMMANDS)
_SILENT = ("watch", "init", "completion")  # of them, the last two take no time


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 success; 1 unexpected error; 2 usage; 3 data; 4 resources; 5 diverged; 6 unsound job; 8 some
    checks did not run; 128 + n signal n.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        with _own_warnings_as_lines():
            code = _dispatch(words)
        if sys.stdout is not None and not sys.stdout.closed:  # a watched script may close it
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # such as by `| head`
        _silence_stdout()
        return 128 + 13
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 128 + 2
    except SystemExit as error:
        known_exit = exit_of_task(error)
        if known_exit is None:  # the end of --help, of a watched script, after a mistyped option
            raise
        return _report(known_exit, error, words)
    except Exception as error:
        known = known_error(error)
        if known is None:
            return _report_crash(error, words)
        return _report(known, error, words)


@contextlib.contextmanager
def _own_warnings_as_lines() -> Iterator[None]:
    """Print warnings of stepladder on one line, without their place in the code."""
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
        words = [words[1], "--help"]  # `help climb` is `climb --help`
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
        raise UsageError(f"{name}: unknown command", fix=meant or listed)
    if name != "watch":  # a script is measured as it is
        importlib.import_module("stepladder.machine.openmp").bound_spinning()
    with _reported(name, words):
        run: Callable[[list[str]], int] = importlib.import_module(commands[name].module).run
        return run(words[1:])


@contextlib.contextmanager
def _reported(name: str, words: Sequence[str]) -> Iterator[None]:
    """Print what a command does on stderr if it prints nothing else, also without a display.

    A watched script runs as without stepladder: nothing is printed beside its output.
    """
    if name in _SILENT or "--help" in words or "-h" in words:
        yield
        return
    from stepladder.machine.activity import Heartbeat, Report, be_silent, doing

    def show(report: Report) -> None:
        from stepladder.training.output.wording import activity_words

        sys.stderr.write(f"{report.what}, {activity_words(report)}\n")
        sys.stderr.flush()

    is_silent = "--quiet" in words
    be_silent(is_silent=os.environ.get("RANK", "0") != "0")  # until it has a log
    with doing(f"stepladder {name}"), Heartbeat(None if is_silent else show):
        yield


def _help() -> str:
    lines = ["Scale deep-learning training in the right order, with proof.", ""]
    lines += ["usage: stepladder COMMAND [OPTIONS]", "", "commands:"]
    lines += [f"  {command.name:<{_NAME_WIDTH}}{command.summary}" for command in COMMANDS]
    lines += ["", "examples:"]
    lines += [f"  {line}\n      {text}" for line, text in _EXAMPLES]
    lines += ["", "`stepladder COMMAND --help` lists the options of a command.", ""]
    return "\n".join(lines)


def _report(error: StepladderError, cause: BaseException, words: list[str]) -> int:
    """Print an error that the user can act on."""
    is_debug = "--debug" in words
    if is_debug:
        traceback.print_exception(cause)
    with_resuming_command(error, words)
    sys.stderr.write(f"{error if is_debug else error.brief()}\n")
    if "--json" in words:
        parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
        event = {"event": "error", "exit_code": error.exit_code, "kind": type(error).__name__}
        sys.stdout.write(json.dumps(event | parts) + "\n")
    return error.exit_code


def _report_crash(error: Exception, words: list[str]) -> int:
    """Print three lines for an error in the user's Task, or for a likely bug in stepladder."""
    if "--debug" in words:
        traceback.print_exception(error)
    path = save_trace(error)
    what = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    line = line_of_task(error)
    if line is not None:
        sys.stderr.write(
            f"your Task failed: {what}\n"
            f"  {line}\n"
            f"  The full trace is in {path}; `stepladder check` tests each part of a Task.\n"
        )
        return 1
    sys.stderr.write(
        f"unexpected error: {what}\n"
        f"  The full trace is in {path}.\n"
        f"  If this is a bug in stepladder, report it with the output of `stepladder doctor`.\n"
    )
    return 1


def _silence_stdout() -> None:
    """Prevent an error when Python flushes the closed pipe at exit."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
    except (OSError, ValueError):
        pass


if __name__ == "__main__":
    sys.exit(main())

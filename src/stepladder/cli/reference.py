"""Generate docs/commands.md from COMMANDS: `python -m stepladder.cli.reference`.

A test checks that docs/commands.md is up to date.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import Iterable

from stepladder.cli.commands import COMMANDS, Command

_HEAD = """# Commands

Generated from the code by `python -m stepladder.cli.reference > docs/commands.md`.

`stepladder COMMAND --help` lists the flags of a command. Each option of a job
([config.md](config.md)) is also a flag. Most commands have a Python function with the same
arguments; see `help(stepladder.train)`.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for group, members in itertools.groupby(COMMANDS, key=lambda command: command.group):
        listed = list(members)
        parts.append(f"## {group}\n\n{_table(listed)}")
        parts += [_section(command) for command in listed]
    return "\n".join(parts)


def _table(listed: Iterable[Command]) -> str:
    rows = ["| command | what it does | in Python |", "|---|---|---|"]
    for command in listed:
        function = f"`stepladder.{command.function}`" if command.home else ""
        link = f"[`{command.name}`](#{command.name})"
        rows.append(f"| {link} | {command.summary} | {function} |")
    return "\n".join(rows) + "\n"


def _section(command: Command) -> str:
    doc = inspect.getdoc(importlib.import_module(command.module).Flags) or ""
    text, _, examples = doc.partition("\n\nExamples:\n")
    return f"### {command.name}\n\n{text}\n\n```\n{inspect.cleandoc(examples)}\n```\n"


if __name__ == "__main__":
    sys.stdout.write(page())

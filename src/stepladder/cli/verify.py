"""`stepladder verify`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder import api
from stepladder.cli.parse import Output, Unprefixed, parse, write
from stepladder.errors import DataError

_EXAMPLES = """
  stepladder verify store           every page of every shard
  stepladder verify runs/first      every file of every checkpoint, and what was found of it
  stepladder verify watch-train     the report of a script that was watched
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Look for damage in a store, a run or a report of `watch`. Exit code 3 if there is any.

    Of stores and checkpoints every byte is read.
    """

    path: Positional[Path]
    """Folder of a store, of a run, or that `watch` wrote."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """List the problems; 0 if there are none."""
    flags = parse(Flags, argv, command="verify", examples=_EXAMPLES)
    problems = api.verify(flags.path)
    if flags.output.json:
        write(json.dumps({"path": str(flags.path), "problems": problems}))
    elif problems:
        write("\n".join(problems))
    elif not flags.output.quiet:
        write(f"{flags.path}: sound")
    return DataError.exit_code if problems else 0

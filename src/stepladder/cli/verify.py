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
  stepladder verify runs/first      every file of every checkpoint
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Look for damage in a store or a run: reads every byte. Exit code 3 if there is any."""

    path: Positional[Path]
    """Folder of a store or of a run."""
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

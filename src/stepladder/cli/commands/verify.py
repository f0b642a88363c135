"""`stepladder verify`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder.api.damage import repair, verify
from stepladder.cli.parse import Output, Switch, Unprefixed, parse, write
from stepladder.data.remote.places import shown
from stepladder.data.store.manifest import mend
from stepladder.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Look for damage in a store, a run or a report of `watch`. Exit code 3 if there is any.

    Of stores and checkpoints every byte is read.

    Examples:
      stepladder verify store           every page of every shard
      stepladder verify store --repair  make damaged shards again from the pictures
      stepladder verify runs/first      every file of every checkpoint, and what was found of it
      stepladder verify watch-train     the report of a script that was watched
    """

    path: Positional[Path]
    """Folder of a store, of a run, or that `watch` wrote."""
    repair: Switch = False
    """Of a store: make damaged files again from the pictures, byte for byte; others stay."""
    source: Path | None = None
    """For repair: where the pictures are now, if not where they were."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """List the problems, or mend them; 0 if there are none."""
    flags = parse(Flags, argv, command="verify")
    if flags.source is not None and not flags.repair:
        raise UsageError("--source is for --repair", fix="Add --repair, or leave it out.")
    mended = repair(flags.path, source=flags.source) if flags.repair else []
    problems = verify(flags.path)
    if flags.output.json:
        facts = {"path": shown(flags.path), "problems": problems}
        write(json.dumps(facts | ({"mended": mended} if flags.repair else {})))
        return DataError.exit_code if problems else 0
    if not flags.output.quiet:
        for name in mended:
            write(f"{shown(flags.path)}: made again: {name}")
    if problems:
        write("\n".join(problems))
        if not flags.repair and any(problem.startswith("shard ") for problem in problems):
            write(f"  {mend(flags.path)}")
    elif not flags.output.quiet:
        write(f"{shown(flags.path)}: sound")
    return DataError.exit_code if problems else 0

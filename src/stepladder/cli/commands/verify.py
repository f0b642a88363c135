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
    """Check a store, a run or a report of `watch` for damaged files. Exit code 3 if there are any.

    Every byte of stores and checkpoints is read.

    Examples:
      stepladder verify store           check every page of every shard
      stepladder verify store --repair  rebuild damaged shards from the pictures
      stepladder verify runs/first      check every file of every checkpoint, and the reports
      stepladder verify watch-train     check the report of a watched script
    """

    path: Positional[Path]
    """Folder of a store, of a run, or written by `watch`."""
    repair: Switch = False
    """Rebuild the damaged files of a store from the pictures, byte for byte."""
    source: Path | None = None
    """For --repair: where the pictures are now, if they have moved."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command: print the problems, or repair them first."""
    flags = parse(Flags, argv, command="verify")
    if flags.source is not None and not flags.repair:
        raise UsageError(
            "--source names the pictures from which damaged files are made again, but without "
            "--repair nothing is repaired",
            fix="Add --repair, or leave out --source.",
        )
    mended = repair(flags.path, source=flags.source) if flags.repair else []
    problems = verify(flags.path)
    if flags.output.json:
        facts = {"path": shown(flags.path), "problems": problems}
        write(json.dumps(facts | ({"mended": mended} if flags.repair else {})))
        return DataError.exit_code if problems else 0
    if not flags.output.quiet:
        for name in mended:
            write(f"{shown(flags.path)}: rebuilt: {name}")
    if problems:
        write("\n".join(problems))
        if not flags.repair and any(problem.startswith("shard ") for problem in problems):
            write(f"  {mend(flags.path)}")
        elif any("checkpoints" in problem for problem in problems):
            write(
                "  Restore it from a copy, or delete the folder of the checkpoint: a run resumes "
                "from the newest intact one."
            )
        elif not any(problem.startswith("shard ") for problem in problems):
            write("  Restore it from a copy, or repeat the command that wrote it.")
    elif not flags.output.quiet:
        write(f"{shown(flags.path)}: no damage found")
    return DataError.exit_code if problems else 0

"""`stepladder report`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder.api.runs import report
from stepladder.cli.parse import RUN, Output, Unprefixed, parse, write


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Write the report of a run again, from its files: one HTML page that works offline.

    Examples:
      stepladder report runs/first      writes runs/first/report.html
      stepladder report runs/demo       a climb: the ladder, then the final training
      stepladder report watch-train     a watched script, even if it was killed
    """

    run: Annotated[Positional[Path], RUN]
    """Run folder, written by `stepladder train`, `climb` or `watch`."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="report")
    page = report(flags.run)
    write(json.dumps({"report": str(page)}) if flags.output.json else str(page))
    return 0

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
    """Write a run's report again, from its files alone: one page that opens offline.

    Examples:
      stepladder report runs/first      writes runs/first/report.html
      stepladder report runs/demo       of a climb: the ladder first, then its training
      stepladder report watch-train     of a script that was watched, also one that was killed
    """

    run: Annotated[Positional[Path], RUN]
    """Folder that `stepladder train`, `climb` or `watch` wrote."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Write the report and print its path."""
    flags = parse(Flags, argv, command="report")
    page = report(flags.run)
    write(json.dumps({"report": str(page)}) if flags.output.json else str(page))
    return 0

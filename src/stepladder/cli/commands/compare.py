"""`stepladder compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder.api.logs import compare
from stepladder.cli.log_flags import LogFlags
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.errors import DataError
from stepladder.records import to_json

_RUNS = tyro.conf.arg(metavar="RUN RUN [RUN …]")


@dataclass(frozen=True, kw_only=True)
class Flags(LogFlags):
    """Compare training runs with the first one: results, options, and their curves on one page.

    Runs of stepladder on the same pictures are compared picture by picture. Logs of other tools are
    read as by `stepladder audit`. If a log cannot be read, the exit code is 3.

    Examples:
      stepladder compare runs/first runs/second                 a table, and compare.html
      stepladder compare runs/first other/metrics.csv --num-train 2430
                                                                a run and the log of another tool
    """

    runs: Annotated[Positional[tuple[str, ...]], _RUNS] = ()
    """Run folders, and logs of other tools."""
    out: Path = Path("compare.html")
    """Output file of the page."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="compare")
    found = compare(
        *flags.runs,
        out=flags.out,
        **flags.numbers(),
    )
    from stepladder.reporting.pages.compare_page import compare_text

    facts = to_json(found) | {"page": flags.out}
    flags.output.print_result(facts, f"{compare_text(found)}\npage: {flags.out}")
    return DataError.exit_code if found.unreadable else 0

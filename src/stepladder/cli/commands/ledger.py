"""`stepladder ledger`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder.api.ladder import ledger
from stepladder.cli.parse import Output, Unprefixed, parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Compare predicted and measured gains over all climbs (the calibration).

    Examples:
      stepladder ledger              all climbs in runs/
      stepladder ledger runs/demo    one of them
    """

    path: Positional[Path] = Path("runs")
    """Run folder, or a folder that contains runs."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="ledger", default=Flags())
    calibration, text = ledger(flags.path)
    flags.output.print_result(calibration, text)
    return 0

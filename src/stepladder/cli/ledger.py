"""`stepladder ledger`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder import api
from stepladder.cli.parse import Output, Unprefixed, parse, write
from stepladder.records import to_json

_EXAMPLES = """
  stepladder ledger              all climbs in runs/
  stepladder ledger runs/demo    one of them
"""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Show what was predicted beside what was measured, over all climbs: the calibration."""

    path: Positional[Path] = Path("runs")
    """A run, or a folder that holds runs."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Print the calibration."""
    flags = parse(Flags, argv, command="ledger", examples=_EXAMPLES, default=Flags())
    calibration, text = api.ledger(flags.path)
    write(json.dumps(to_json(calibration), indent=2) if flags.output.json else text)
    return 0

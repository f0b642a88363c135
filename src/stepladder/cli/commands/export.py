"""`stepladder export`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder.api.runs import export
from stepladder.cli.parse import RUN, Output, Unprefixed, parse, write
from stepladder.config.choices import ExportFormat


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Export the best model of a run, to use it without stepladder, on any CPU.

    Examples:
      stepladder export runs/first --to onnx
      stepladder export runs/first --to torch --out model.pt2
    """

    run: Annotated[Positional[Path], RUN]
    """Run folder, written by `stepladder train`."""
    to: ExportFormat
    """File format."""
    out: Path | None = None
    """Output file; default: in the run folder."""
    task: str | None = None
    """Your own Task, if the run used one: FILE.py:NAME; the file is executed."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="export")
    path = export(flags.run, flags.to, flags.out, task=flags.task)
    write(json.dumps({"export": str(path)}) if flags.output.json else str(path))
    return 0

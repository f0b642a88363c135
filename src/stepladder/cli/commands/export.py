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
    """Write the best model of a run so that it runs without this package, on any CPU.

    Examples:
      stepladder export runs/first --to onnx
      stepladder export runs/first --to torch --out model.pt2
    """

    run: Annotated[Positional[Path], RUN]
    """Folder that `stepladder train` wrote."""
    to: ExportFormat
    """Format of the file."""
    out: Path | None = None
    """File to write; none: beside the run's other files."""
    task: str | None = None
    """For a run of your own Task: FILE.py:NAME; that file is run."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Write the model and print its path."""
    flags = parse(Flags, argv, command="export")
    path = export(flags.run, flags.to, flags.out, task=flags.task)
    write(json.dumps({"export": str(path)}) if flags.output.json else str(path))
    return 0

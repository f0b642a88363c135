"""`stepladder audit`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from stepladder.api.logs import audit
from stepladder.cli.log_flags import LogFlags
from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.errors import DataError

LOGS = tyro.conf.arg(metavar="LOG [LOG …]")


@dataclass(frozen=True, kw_only=True)
class Flags(LogFlags):
    """Read training logs of any tool, and report what their numbers support.

    Nothing is trained. The format is detected from the content of the files: output of Keras, its
    History and CSVLogger, Lightning's metrics.csv, Hugging Face's trainer_state.json, TensorBoard
    files, MLflow runs (a folder, runs:/ID or URI#ID), stepladder run folders, CSV, JSON lines, and
    what scripts print, such as "epoch 3 train loss 0.5 val acc 0.9". If a log cannot be read, the
    others are still reported, and the exit code is 3.

    Examples:
      stepladder audit fit_output.txt --num-val 270   output of Keras
      stepladder audit lightning_logs                 Lightning: metrics.csv of all versions
      stepladder audit output/trainer_state.json      Hugging Face Trainer
      stepladder audit logs mlruns/0/4f…              TensorBoard files, an MLflow run
      stepladder audit runs/first other.csv           a stepladder run and a CSV
      stepladder audit log.csv --page audit.html      also write a page with its curves
    """

    logs: Annotated[Positional[tuple[str, ...]], LOGS] = ()
    """Files, folders, or URIs of MLflow runs."""
    out: Path | None = None
    """Write the audit to this file as JSON."""
    page: Path | None = None
    """Write a page with the curves to this file, such as audit.html."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="audit")
    found = audit(
        *flags.logs,
        **flags.numbers(),
        page=flags.page,
        out=flags.out,
    )
    from stepladder.reporting.pages.audit_page import audit_text

    page = f"\npage: {flags.page}" if flags.page is not None else ""
    flags.output.print_result(found, audit_text(found) + page)
    return DataError.exit_code if found.unreadable else 0

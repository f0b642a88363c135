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
    """Read logs of trainings that anybody wrote, and say what their numbers support.

    Nothing is run again. Formats are found by what is in the files: what Keras prints, its History
    and CSVLogger, Lightning's metrics.csv, Hugging Face's trainer_state.json, TensorBoard files,
    runs of MLflow (a folder, runs:/ID or URI#ID), our own run folders, and plain CSV. The exit code
    is 3 where a log cannot be read; the others are told all the same.

    Examples:
      stepladder audit fit_output.txt --num-val 270   what Keras printed
      stepladder audit lightning_logs/version_0       its metrics.csv
      stepladder audit output/trainer_state.json      of Hugging Face's Trainer
      stepladder audit logs mlruns/0/4f…              TensorBoard files, a run of MLflow
      stepladder audit runs/first other.csv           ours beside another's
      stepladder audit log.csv --page audit.html      its curves on a page
    """

    logs: Annotated[Positional[tuple[str, ...]], LOGS] = ()
    """Files, folders, or addresses of MLflow runs."""
    out: Path | None = None
    """Write the audit to this file as JSON."""
    page: Path | None = None
    """Write a page with the curves to this file, such as audit.html."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Print what the logs support."""
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

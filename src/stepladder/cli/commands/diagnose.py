"""`stepladder diagnose`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from stepladder.api.diagnosis import diagnose
from stepladder.cli.parse import RUN, Output, Switch, Unprefixed, parse


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Diagnose a run: under- or overfitting, what would improve it, and how it used the machine.

    The run may be unfinished. Writes diagnosis.json and diagnosis.html to the run folder, updates
    an existing report.html, and changes nothing else.

    Examples:
      stepladder diagnose runs/first                    under- or overfit, and what to try
      stepladder diagnose runs/first --learning-curve   also estimate the gain from more data
      stepladder diagnose runs/own --task task.py:Digits
      stepladder diagnose copied_run --no-remeasure     if the data is not available
    """

    run: Annotated[Positional[Path], RUN]
    """Run folder, written by `stepladder train` or `climb`."""
    task: str | None = None
    """Your own Task, if the run used one: FILE.py:NAME; the file is executed."""
    no_remeasure: Switch = False
    """Do not read the data; use only what was logged."""
    learning_curve: Switch = False
    """Train on subsets to estimate the gain from twice the data, however long it takes."""
    target_error: float = 0.0
    """Irreducible error, such as the fraction of wrong labels, in [0, 1)."""
    max_time_s: float = 120.0
    """Time limit of the measurements in seconds, without --learning-curve."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="diagnose")

    def show(message: str) -> None:
        if not flags.output.quiet:
            sys.stderr.write(f"{message}\n")

    found = diagnose(
        flags.run,
        task=flags.task,
        remeasure=not flags.no_remeasure,
        learning_curve=flags.learning_curve,
        target_error=flags.target_error,
        max_time_s=flags.max_time_s,
        on_message=show,
    )
    from stepladder.reporting.pages.diagnosis_page import diagnosis_text

    flags.output.print_result(found, f"{diagnosis_text(found)}\n\n{flags.run / 'diagnosis.html'}")
    return 0

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
    """Say how well a run fits its data, what would make it better, and what its machine did.

    Also of a run that goes on or was cut short. Writes diagnosis.json and diagnosis.html into its
    folder, and changes nothing else.

    Examples:
      stepladder diagnose runs/first                    under- or overfit, and what to try
      stepladder diagnose runs/first --learning-curve   and what more data would give
      stepladder diagnose runs/own --task task.py:Digits
      stepladder diagnose copied_run --no-remeasure     where the data is elsewhere
    """

    run: Annotated[Positional[Path], RUN]
    """Folder that `stepladder train` or `climb` wrote."""
    task: str | None = None
    """For a run of your own Task: FILE.py:NAME; that file is run."""
    no_remeasure: Switch = False
    """Open no data: judge by what was logged."""
    learning_curve: Switch = False
    """Train on parts of the data and say what twice as much would give, however long it takes."""
    target_error: float = 0.0
    """Share of examples that nobody gets right, such as wrong labels, in [0, 1)."""
    max_time_s: float = 120.0
    """Seconds that measuring may take, a learning curve that was asked for apart."""
    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Print the diagnosis and where its page is."""
    flags = parse(Flags, argv, command="diagnose")

    def tell(message: str) -> None:
        if not flags.output.quiet:
            sys.stderr.write(f"{message}\n")

    found = diagnose(
        flags.run,
        task=flags.task,
        remeasure=not flags.no_remeasure,
        learning_curve=flags.learning_curve,
        target_error=flags.target_error,
        max_time_s=flags.max_time_s,
        on_message=tell,
    )
    from stepladder.reporting.pages.diagnosis_page import diagnosis_text

    flags.output.print_result(found, f"{diagnosis_text(found)}\n\n{flags.run / 'diagnosis.html'}")
    return 0

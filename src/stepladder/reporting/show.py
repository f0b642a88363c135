"""A report inside a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from stepladder.reporting.page import render
from stepladder.reporting.tables import read_run


@dataclass(frozen=True)
class ReportView:
    """The report of a run; a notebook shows it in a frame of its own, a terminal names it.

    Args:
        run: the run folder.
        height_px: height of the frame.
    """

    run: Path
    height_px: int = 900

    def _repr_html_(self) -> str:
        """Give the page in a sandboxed frame, so that its styles and the notebook's stay apart."""
        return str(
            Markup(
                '<iframe srcdoc="{}" width="100%" height="{}" sandbox="" '
                'style="border:0;color-scheme:normal" title="stepladder report"></iframe>'
            ).format(render(read_run(self.run)), self.height_px)
        )

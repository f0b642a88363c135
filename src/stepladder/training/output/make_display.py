"""The display that fits a stream."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from stepladder.training.output.display import Display, JsonDisplay, Outlet, PlainDisplay
from stepladder.training.output.live_display import LiveDisplay


def is_notebook() -> bool:
    """Return True in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def make_display(
    *, json: bool = False, quiet: bool = False, stream: TextIO | None = None
) -> Display:
    """Return a display: JSON or quiet if requested, live on a terminal, plain lines elsewhere."""
    stream = stream or sys.stdout
    if json:
        return JsonDisplay(stream)
    if quiet:
        return Display(stream)
    if Outlet(stream).isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveDisplay(stream)
    return PlainDisplay(stream)

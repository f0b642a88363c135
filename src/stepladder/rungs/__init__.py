"""One speed-up a file, told as a change of the recipe; RUNGS lists them in climbing order."""

from stepladder.rungs.contract import Rung
from stepladder.rungs.order import RUNGS

__all__ = ["RUNGS", "Rung"]

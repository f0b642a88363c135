"""One speed-up a file, told as a change of the recipe; RUNGS lists them in climbing order."""

from stepladder.rungs.contract import Rung
from stepladder.rungs.gpus import GPUS, Gpu, read_gpus
from stepladder.rungs.order import RUNGS, rungs_with

__all__ = ["GPUS", "RUNGS", "Gpu", "Rung", "read_gpus", "rungs_with"]

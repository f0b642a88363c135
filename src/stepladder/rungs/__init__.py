"""Rungs, one per file, each a change of the recipe; RUNGS and REMEDIES list them in order."""

from stepladder.planning.hardware.gpus import GPUS, Gpu, read_gpus
from stepladder.rungs.contract import Against, Rung
from stepladder.rungs.order import REMEDIES, RUNGS, rungs_with

__all__ = ["GPUS", "REMEDIES", "RUNGS", "Against", "Gpu", "Rung", "read_gpus", "rungs_with"]

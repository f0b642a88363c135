"""Where a watched process is among the ranks of its script, by the variables of torchrun."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepladder.parallel.place import LOCAL_RANK, MASTER_PORT, RANK, WORLD_SIZE

LAUNCHED: Final = "STEPLADDER_WATCH_LAUNCHED"
"""Set by `stepladder watch --nproc-per-node`, which merges the reports itself."""
_OF_A_RUN: Final = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", MASTER_PORT)


@dataclass(frozen=True, kw_only=True)
class RankPlace:
    """One of several ranks.

    Attributes:
        run: equal for all ranks of a run, and different for its restarts.
        is_launched: stepladder has started it, and merges the reports.
    """

    rank: int
    local_rank: int
    size: int
    run: str
    is_launched: bool = False

    def folder(self, folder: Path) -> Path:
        """Return the folder of this rank in that of the script."""
        return rank_folder(folder, self.rank)


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of a rank in that of the script."""
    return folder / f"rank-{rank}"


def place_in(environ: Mapping[str, str] = os.environ) -> RankPlace | None:
    """Return the place that a launcher has set; None if this is the only process.

    One that stepladder has started has a place even then.
    """
    try:
        rank, size = int(environ[RANK]), int(environ[WORLD_SIZE])
        local_rank = int(environ.get(LOCAL_RANK, rank))
    except (KeyError, ValueError):
        return None
    is_launched = LAUNCHED in environ
    if (size < 2 and not is_launched) or not 0 <= rank < size:
        return None
    run = "-".join(environ.get(name, "") for name in _OF_A_RUN)
    return RankPlace(rank=rank, local_rank=local_rank, size=size, run=run, is_launched=is_launched)

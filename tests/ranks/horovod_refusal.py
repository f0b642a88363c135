"""Rank 0 joins, and rank 1 gathers after that; then both again, and it gathers before that."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

import stepladder.compat.horovod.torch as hvd
from stepladder.errors import UsageError


def main() -> None:
    hvd.init()
    hvd.broadcast_object("taken part in by both", root_rank=0)
    for how in ("after", "before"):
        refuse(how, f"{sys.argv[1]}-{how}")


def refuse(how: str, out: str) -> None:
    """Gather in rank 1 before or after rank 0 joins; write what is refused and what comes later."""
    words = ""
    if hvd.rank() == 0:
        time.sleep(1.0 if how == "before" else 0.0)
    else:
        time.sleep(0.0 if how == "before" else 1.0)
        try:
            hvd.allgather(torch.ones(1))
        except UsageError as error:
            words = str(error)
    hvd.join()
    Path(f"{out}-{hvd.rank()}").write_text(words)
    if how == "after":
        Path(f"{out}-later").write_text(str(hvd.allgather_object(hvd.rank())))


if __name__ == "__main__":
    main()

"""Keep a record of the last collectives of each rank, and write it down if a rank hangs or dies.

PyTorch's flight recorder is a ring of the last collectives, with their sizes and states. From the
records of all ranks one sees which collective some rank did not join.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from stepladder.parallel.failures import LOGS
from stepladder.records import write_bytes

_SIZE: Final = "TORCH_FR_BUFFER_SIZE"
_OLD_SIZE: Final = "TORCH_NCCL_TRACE_BUFFER_SIZE"  # before torch 2.9, and still accepted
_NUM: Final = "2000"  # collectives
_own: dict[str, str] = {}  # variables that were set here: the next run has another folder


def recorder_variables(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables that turn the recorder on, except those that the user has set.

    NCCL's watchdog writes a record itself, pickled, if a collective takes too long.

    Args:
        folder: of the run.
    """
    wanted = {
        _SIZE: _NUM,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": str(folder.absolute() / LOGS / "collectives-nccl-rank-"),
    }
    if _OLD_SIZE in environ:
        del wanted[_SIZE]
    return {name: value for name, value in wanted.items() if name not in environ}


def record_collectives(folder: Path) -> None:
    """Turn the recorder on, before a process group is opened."""
    known = {name: value for name, value in os.environ.items() if _own.get(name) != value}
    found = recorder_variables(known, folder)
    _own.update(found)
    os.environ.update(found)


def collectives_file(folder: Path, rank: int, attempt: int) -> Path:
    """Return the file of the last collectives of a rank."""
    return folder / LOGS / f"collectives-{attempt}-rank-{rank}.json"


def dump_collectives(folder: Path, *, rank: int, attempt: int) -> None:
    """Write the last collectives of this rank as JSON; does nothing without any."""
    torch = sys.modules.get("torch")
    with suppress(Exception):  # of a private function; the failure itself is to be reported
        text: bytes = torch._C._distributed_c10d._dump_fr_trace_json()  # type: ignore[union-attr]
        if text:
            write_bytes(collectives_file(folder, rank, attempt), text)

"""The files of a climb in its run folder, by name, and how a ledger is set aside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LEDGER_FILE: Final = "trials.jsonl"
EARLIER_FILE: Final = "trials.earlier.jsonl"
CLIMB_FILE: Final = "climb.json"


def set_ledger_aside(folder: Path) -> None:
    """Put the ledger of a folder at the end of trials.earlier.jsonl, if there is one."""
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        return
    with (folder / EARLIER_FILE).open("ab") as earlier:
        earlier.write(ledger.read_bytes())
        earlier.flush()
        os.fsync(earlier.fileno())
    ledger.unlink()

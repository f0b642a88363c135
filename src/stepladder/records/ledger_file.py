"""Names of a climb's files in its run folder, and archiving of a ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

LEDGER_FILE: Final = "trials.jsonl"
EARLIER_FILE: Final = "trials.earlier.jsonl"
CLIMB_FILE: Final = "climb.json"


def set_ledger_aside(folder: Path) -> None:
    """Append the ledger of a folder to trials.earlier.jsonl and remove it, if there is one."""
    ledger = folder / LEDGER_FILE
    if not ledger.exists():
        return
    with (folder / EARLIER_FILE).open("ab") as earlier:
        earlier.write(ledger.read_bytes())
        earlier.flush()
        os.fsync(earlier.fileno())
    ledger.unlink()

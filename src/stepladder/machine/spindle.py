"""Whether a folder lies on a disk with an arm, which reads single rows slowly."""

from __future__ import annotations

import os
from pathlib import Path

SYS = Path("/sys")


def is_on_spinning_disk(path: Path, sys: Path = SYS) -> bool:
    """Tell whether the kernel says that a folder's disk spins.

    Virtual disks say so whatever lies behind them: only SATA and SAS names (`sd`) are believed.

    Args:
        path: a file or folder that exists.
        sys: where sysfs is.
    """
    try:
        device = path.stat().st_dev
        place = (sys / "dev" / "block" / f"{os.major(device)}:{os.minor(device)}").resolve()
        disk = place.parent if (place / "partition").exists() else place
        return disk.name.startswith("sd") and (disk / "queue" / "rotational").read_text()[:1] == "1"
    except OSError:
        return False

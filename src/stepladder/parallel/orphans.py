"""End a process whose parent has ended."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

_POLL_S: Final = 0.5


def end_with_parent(parent: int | None = None) -> None:
    """End this process once the one that started it has ended, also within a call that waits.

    Args:
        parent: its number; None: the current parent, which may have ended already.
    """
    parent = os.getppid() if parent is None else parent

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="stepladder-parent", daemon=True).start()

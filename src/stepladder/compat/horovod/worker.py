"""One process of a `HorovodRunner`: python -m stepladder.compat.horovod.worker FOLDER."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path

from stepladder.compat.horovod.rank_process import PARENT

_POLL_S = 0.5


def main() -> int:
    """Call the function in the folder, and write its result there on rank 0."""
    import cloudpickle

    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    if PARENT in os.environ:
        threading.Thread(target=_end_with, args=(int(os.environ[PARENT]),), daemon=True).start()
    try:
        function, kwargs = pickle.loads((folder / "call").read_bytes())
        result = function(**kwargs)
    except Exception:
        (folder / f"error-{rank}").write_text(traceback.format_exc(), encoding="utf-8")
        traceback.print_exc()
        return 1
    if rank == "0":
        (folder / "result").write_bytes(cloudpickle.dumps(result))
    return 0


def _end_with(parent: int) -> None:
    """End this process when the task that started it has ended, such as one that Spark killed."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

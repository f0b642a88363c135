"""One process of a `HorovodRunner`: python -m stepladder.compat.horovod.worker FOLDER."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path


def main() -> int:
    """Call the function in the folder, and write its result there on rank 0."""
    import cloudpickle

    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
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


if __name__ == "__main__":
    sys.exit(main())

"""One rank: runs the calls of `stepladder.train` in a JSON file, one after the other.

python -m tests.ranks.run_all CALLS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import stepladder


def main() -> None:
    """Train each call; each has the keyword arguments of `stepladder.train`."""
    for call in json.loads(Path(sys.argv[1]).read_text()):
        stepladder.train(**call)


if __name__ == "__main__":
    main()

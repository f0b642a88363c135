"""docs/loaders.md says what the results beside it say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_of_the_results() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "loaders_page.py")],
        check=True,
        capture_output=True,
        text=True,
    )
    assert (ROOT / "docs" / "loaders.md").read_text() == made.stdout

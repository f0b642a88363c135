from __future__ import annotations

from pathlib import Path

from stepladder.watching.detectors import DETECTORS
from stepladder.watching.ranks.detectors import RANK_DETECTORS
from stepladder.watching.reference import page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_in_docs_is_what_the_code_says() -> None:
    assert (DOCS / "watch.md").read_text(encoding="utf-8") == page()


def test_every_detector_is_on_the_page() -> None:
    text = page()
    for detector in DETECTORS:
        assert f"| `{detector.name}` |" in text
        assert detector.look.__doc__
    for one in RANK_DETECTORS:
        assert f"| `{one.name}` |" in text
        assert one.look.__doc__

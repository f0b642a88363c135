"""The lines at the end of the demo agree with the climb that they are about."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[4] / "examples" / "demo" / "check_result.py"
PAIRED = {"estimate": 154.0, "low": 140.0, "high": 168.0, "confidence": 0.95}


@pytest.fixture
def lines_of(
    build_run: Callable[..., Path],
    build_climb: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., list[str]]:
    """Run the script on a recorded climb, with some parts of climb.json replaced."""
    folder = build_climb(build_run(tmp_path / "demo"))
    results = json.loads((folder / "summary.json").read_text()) | {"test_accuracy": 0.75}
    (folder / "summary.json").write_text(json.dumps(results))
    path = folder / "climb.json"
    found = json.loads(path.read_text())
    found |= {
        "baseline": found["baseline"] | {"total_s": 1080.0, "runs_s": [1060.0, 1080.0]},
        "result": found["result"] | {"total_s": 9.0, "paired_s": 7.0},
        "speedup": 154.0, "speedup_from": "pairs", "speedup_bounds": PAIRED, "paired": PAIRED,
        "num_pairs": 8,
    }  # fmt: skip

    def run(**parts: Any) -> list[str]:
        path.write_text(json.dumps(found | parts))
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(folder), str(folder)])
        runpy.run_path(str(SCRIPT))
        return capsys.readouterr().out.splitlines()

    return run


def test_the_printed_times_have_the_printed_ratio(lines_of: Callable[..., list[str]]) -> None:
    lines = lines_of()
    assert len(lines) == 5
    assert lines[2] == "speed-up by the climb: 154× [140, 168] from 8 pairs (18 min → 7.0 s)"
    assert "9.0 s" not in " ".join(lines), "the final training was not timed in turn"
    assert lines_of(over_default=4.61)[2].endswith(", about 4.6× against `train` by default")


def test_what_disagrees_is_said_as_the_terminal_says_it(
    lines_of: Callable[..., list[str]],
) -> None:
    chain = {"estimate": 110.0, "low": 100.0, "high": 120.0, "confidence": 0.95}
    other = {"speedup": 110.0, "speedup_bounds": chain, "speedup_from": "chain"}
    said = lines_of(**other, chain=chain, has_other_chain=True, num_pairs=3)[2]
    for words in (
        "110× [100, 120] (18 min → 7.0 s;",
        "only 3 pairs were timed, fewer than 8",
        "3 pairs gave 154× [140, 168]; the kept rungs' gains multiply to 110× [100, 120]",
    ):
        assert words in said

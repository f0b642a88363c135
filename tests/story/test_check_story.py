"""The checks on the demo as users run them report its real problems, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
DEMO = Path(__file__).parents[2] / "examples" / "demo" / "demo.yaml"

EXPECTED = {
    "missing_classes",  # val lacks three of the fourteen classes
    "distribution_shift",  # test was collected elsewhere than val
    "validation_too_small",  # 57 pictures
}


@pytest.fixture(scope="module")
def report(
    photographs: Path, stepladder_in: Any, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "demo_data").mkdir()
    (folder / "demo_data" / "groceries").symlink_to(photographs)
    shutil.copy(DEMO, folder)
    stepladder = stepladder_in(folder)
    stepladder("prepare", "demo.yaml", "--size", "64", "--quiet")  # otherwise it takes a minute
    stepladder("check", "demo.yaml", "--budget", "10m", "--quiet", code=6)
    found: dict[str, Any] = json.loads((folder / "runs" / "demo" / "checks.json").read_text())
    assert (folder / "runs" / "demo" / "checks.html").stat().st_size > 0
    return found


def test_the_problems_of_the_demo_are_found_and_nothing_else(report: dict[str, Any]) -> None:
    alarms = {
        finding["fault"]: finding["evidence"]
        for finding in report["findings"]
        if finding["outcome"] in ("failed", "warned")
    }
    assert alarms.keys() == EXPECTED, alarms


def test_every_check_could_run(report: dict[str, Any]) -> None:
    assert [f for f in report["findings"] if f["outcome"] == "could_not_run"] == []
    assert report["left_out"] == []


def test_the_photographs_that_give_the_shift_away_are_named(report: dict[str, Any]) -> None:
    shift = next(f for f in report["findings"] if f["fault"] == "distribution_shift")
    assert shift["examples"]

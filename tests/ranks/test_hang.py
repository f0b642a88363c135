"""A rank that hangs in its own work is named with what it was doing, and training continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.test_faults import HOST, MAX_LINES, SHORT, fault, has_no_process
from tests.ranks.together import Start

HANG = 0  # in place of a signal
LIMITS = ("--run.stall-s", "3", "--run.meet-s", "25")
WORDS = {
    "task": "loading the Task",
    "opening": "opening the data",
    "data": "waiting for data",
    "held_out": "reading held-out examples",
    "features": "reading examples for their features",
    "probe": "opening the run folder",
    "before_rename": "writing a checkpoint",
    "log": "writing the log",
}
CACHED = ("--train", "head", "--features.cached")
QUICK = ("before_rename", 0)


def hang_at(start: Start, folder: Path, point: str, rank: int, *words: str) -> tuple[int, str]:
    """Train with a rank that hangs at a point, and return the exit code and what was printed."""
    common = ("--devices", "2", *SHORT, *LIMITS, *(CACHED if point == "features" else ()))
    command = start("Plain", *common, *words, env=fault(point, rank, folder, HANG))
    printed = command.ended()
    assert (folder / "happened").exists(), printed
    assert has_no_process(folder)
    return command.process.returncode, printed


def hung(point: str, rank: int) -> str:
    """Return the beginning of the line about a rank that hangs at a point."""
    return f"rank {rank} has been {WORDS[point]} for "


@pytest.mark.distributed
def test_a_hung_disk_of_the_run_folder_is_named_and_training_goes_on(
    start: Start, tmp_path: Path
) -> None:
    point, rank = QUICK
    code, printed = hang_at(start, tmp_path, point, rank)
    assert code == 0, printed
    assert hung(point, rank) in printed
    assert "starting all processes again from the last checkpoint" in printed


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("point", "rank"),
    [
        *(("task", 1), ("opening", 0), ("opening", 1), ("probe", 0)),
        *(("data", 0), ("data", 1), ("held_out", 1), ("features", 1), ("log", 0)),
    ],
)
def test_a_rank_that_hangs_is_named_with_what_it_was_doing(
    start: Start, tmp_path: Path, point: str, rank: int
) -> None:
    code, printed = hang_at(start, tmp_path, point, rank)
    assert code == 0, printed
    assert hung(point, rank) in printed


@pytest.mark.distributed
def test_without_restarts_the_message_names_host_and_option(start: Start, tmp_path: Path) -> None:
    code, printed = hang_at(start, tmp_path, "held_out", 1, "--run.restarts", "0")
    assert code == 4, printed
    (line,) = [line for line in printed.splitlines() if "its log: " in line]
    assert line.startswith(hung("held_out", 1))
    assert f"without progress ({HOST}, step 5), which --run.stall-s 6 would allow" in line
    assert len(printed[printed.index(line) :].splitlines()) <= MAX_LINES
    assert "Traceback" not in printed

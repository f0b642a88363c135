"""`stepladder watch` over scripts of two ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.ranks.together import ended, environment, wait_for
from tests.ranks.watched_scripts import SOUND, TRAIN

TIMEOUT_S = 120
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WATCH = ("-m", "stepladder", "watch")


class Watched:
    """A command that watches a script of two ranks."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.kind = folder, words[-1]
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        (folder / "train.py").write_text(TRAIN)
        (folder / "sound.py").write_text(SOUND)
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                cwd=folder,
                env=environment(),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def code(self) -> int:
        return self.process.wait(timeout=TIMEOUT_S)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report" / "watch.json").read_text())
        return found

    def alarms(self) -> dict[str, str]:
        """Return the alarms by name; on a busy machine, one rank may really be slower."""
        alarms = [f for f in self.report()["findings"] if f["outcome"] in ("failed", "warned")]
        is_slow = self.kind.startswith("slow_")
        return {f["check"]: f["outcome"] for f in alarms if is_slow or f["check"] != "slow_rank"}

    def text(self) -> str:
        """Return what was printed about the script, without torchrun's own messages."""
        return "stepladder watch: " + self.err.read_text().partition("stepladder watch: ")[2]

    def left(self) -> list[psutil.Process]:
        """Return the processes that still run in the folder."""
        found = []
        for one in psutil.process_iter():
            with suppress(psutil.Error):
                if one.status() != psutil.STATUS_ZOMBIE and one.cwd() == str(self.folder):
                    found.append(one)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts a command, of which no process survives the test."""
    started: list[Watched] = []

    def start(*words: str) -> Watched:
        started.append(Watched(tmp_path.resolve(), *words))
        return started[-1]

    try:
        yield start
    finally:
        for one in started:
            left = one.left()
            with ended([one.process]):
                pass
            for process in left:
                with suppress(psutil.Error):
                    process.kill()


def ranks_of(run: Any, script: str, kind: str) -> Watched:
    one: Watched = run(*WATCH, "--nproc-per-node", "2", "--out", "report", f"{script}.py", kind)
    return one


@pytest.mark.distributed
@pytest.mark.slow
def test_a_sound_script_has_one_report_without_alarms(run: Any) -> None:
    one = ranks_of(run, "train", "sound")
    assert one.code() == 0, one.err.read_text()
    assert one.out.read_text().splitlines() == [f"epoch {n}: 100 examples" for n in range(3)]
    assert one.err.read_text().count("stepladder watch: ") == 1
    assert one.alarms() == {}, one.text()
    report = one.report()
    assert report["is_complete"]
    assert [rank["num_steps"] for rank in report["ranks"]] == [48, 48]
    assert all(rank["exposed_s"] is not None for rank in report["ranks"])
    assert all(rank["overhead_s"] > 0 for rank in report["ranks"])
    equal = {f["check"]: f for f in report["findings"]}["ranks_differ"]
    assert equal["outcome"] == "passed"
    assert "equal on 2 ranks" in equal["evidence"]
    assert not one.left()


@pytest.mark.slow
def test_a_rank_that_raises_is_the_first_line(run: Any) -> None:
    one = ranks_of(run, "train", "raises")
    assert one.code() == 1
    line = TRAIN.splitlines().index('            raise ValueError("a bad batch")') + 1
    first = one.text().splitlines()[0]
    assert first.startswith("stepladder watch: rank 1 of 2 on "), one.err.read_text()
    assert first.endswith(f" crashed at train.py:{line}: ValueError: a bad batch")
    assert one.report()["dead_rank"] == 1
    assert not one.left()


@pytest.mark.thorough
def test_a_rank_that_hangs_after_another_has_died_is_killed(run: Any) -> None:
    one = ranks_of(run, "train", "hangs")
    assert one.code() == 1
    assert "rank 1 of 2" in one.text().splitlines()[0]
    assert [rank["is_complete"] for rank in one.report()["ranks"]] == [False, True]
    assert not one.left()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["raises", "killed"])
def test_a_rank_that_dies_under_torchrun_is_the_first_line(run: Any, kind: str) -> None:
    one = run(*TORCHRUN, *WATCH[:2], "watch", "--out", "report", "train.py", kind)
    assert one.code() != 0
    words = {"raises": "ValueError: a bad batch", "killed": "was killed"}[kind]
    first = one.text().splitlines()[0]
    assert first.startswith("stepladder watch: rank 1 of 2 on "), one.err.read_text()
    assert words in first
    assert one.err.read_text().count("stepladder watch: ") == 1
    assert not one.left()


@pytest.mark.thorough
def test_torchrun_prints_one_report(run: Any) -> None:
    one = run(*TORCHRUN, *WATCH[:2], "watch", "--out", "report", "train.py", "sound")
    assert one.code() == 0, one.err.read_text()
    assert one.err.read_text().count("stepladder watch: ") == 1
    assert len(one.report()["ranks"]) == 2
    assert one.alarms() == {}, one.text()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "fault", "outcome"),
    [
        ("unwrapped", "ranks_differ", "failed"),
        ("module", "ranks_differ", "failed"),
        ("frozen", "ranks_differ", "failed"),
        ("same_data", "ranks_read_same_data", "warned"),
        ("padded", "validation_padded", "warned"),
        ("schedule", "schedule_stepped_per_rank", "warned"),
        ("slow_input", "slow_rank", "warned"),
        ("slow_compute", "slow_rank", "warned"),
    ],
)
def test_a_faulty_script_has_this_fault_alone(
    run: Any, kind: str, fault: str, outcome: str
) -> None:
    one = ranks_of(run, "train", kind)
    assert one.code() == 0, one.err.read_text()
    assert one.alarms() == {fault: outcome}, one.text()
    if fault == "slow_rank":
        found = {f["check"]: f for f in one.report()["findings"]}[fault]
        assert found["numbers"]["rank"] == 1
        assert found["numbers"]["cause"] == kind.removeprefix("slow_")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    ["fsdp", "zero", "local", "by_hand", "broadcast", "accumulate", "constant", "alone"],
)
def test_an_unusual_sound_script_has_no_alarm(run: Any, kind: str) -> None:
    one = ranks_of(run, "sound", kind)
    assert one.code() == 0, one.err.read_text()
    assert one.alarms() == {}, one.text()
    assert one.report()["watcher_error"] is None


@pytest.mark.thorough
def test_validation_that_is_gathered_is_no_alarm(run: Any) -> None:
    one = ranks_of(run, "train", "gathered")
    assert one.code() == 0, one.err.read_text()
    assert one.alarms() == {}, one.text()


@pytest.mark.thorough
def test_an_interrupt_ends_all_ranks_and_is_reported(run: Any) -> None:
    one = ranks_of(run, "train", "slow_compute")
    wait_for(lambda: "epoch 0" in one.out.read_text())
    one.process.send_signal(signal.SIGINT)
    assert one.code() == 130
    assert len(one.report()["ranks"]) == 2
    assert not one.left()


@pytest.mark.thorough
def test_weights_are_the_same_with_and_without_watching(run: Any, tmp_path: Path) -> None:
    saves = "if rank == 0:\n    torch.save(model.state_dict(), sys.argv[2])\n"
    (tmp_path / "saved.py").write_text(SOUND + saves)
    plain = run(*TORCHRUN, "saved.py", "sound", "plain.pt")
    assert plain.code() == 0, plain.err.read_text()
    watched = run(
        *WATCH, "--nproc-per-node", "2", "--out", "report", "saved.py", "sound", "watched.pt"
    )
    assert watched.code() == 0, watched.err.read_text()
    first, second = (torch.load(tmp_path / name) for name in ("plain.pt", "watched.pt"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)

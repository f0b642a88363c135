"""A climb under torchrun measures the devices of all machines, through the ranks that wait."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepladder.errors import ResourceError
from stepladder.measuring.ranks.team import Team
from stepladder.parallel.fleet import Fleet, opened_fleet
from stepladder.parallel.place import Place
from stepladder.records import read_jsonl
from stepladder.records.ledger_file import LEDGER_FILE
from tests.ranks.hosts import opened_hosts, why_not
from tests.ranks.tasks import Answering
from tests.ranks.together import ROOT, TASKS, ended, environment, free_port

SERVE = """
import sys
from stepladder.parallel.fleet import serve
from stepladder.parallel.place import place_of
serve(place_of(), meet_s=60)
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """Return the fleet of rank 0, with one more rank that counts as another machine."""
    port = free_port()
    place = Place(rank=0, size=2, local_rank=0, local_size=1, address="127.0.0.1", port=port)
    own = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        cwd=ROOT,
        env=environment(**own, **address),
        start_new_session=True,
    )
    with ended([process]):
        with opened_fleet(place, meet_s=60) as opened:
            assert opened is not None
            yield opened
        assert process.wait(timeout=20) == 0


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the processes of a team import this package."""
    for name, value in environment(PYTHONPATH=str(ROOT)).items():
        monkeypatch.setenv(name, value)


def wait_for(fleet: Fleet, key: str) -> Any:
    """Wait until a program has ended."""
    until = time.monotonic() + 30
    while (found := fleet.ended(key)) is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def test_a_program_runs_in_the_place_of_another_rank(fleet: Fleet) -> None:
    say = "import os; print(os.environ['WORD'], 'RANK' in os.environ); raise SystemExit(3)"
    found = wait_for(fleet, fleet.start(1, ["-c", say], {"WORD": "here"}))
    assert (found.code, found.last) == (3, "here False")
    sleeping = fleet.start(1, ["-c", "import time; time.sleep(600)"], {})
    assert fleet.ended(sleeping) is None
    fleet.stop(sleeping)
    assert wait_for(fleet, sleeping).code == -9


def test_a_team_reaches_over_machines_and_ends(fleet: Fleet, tmp_path: Path) -> None:
    with Team(2, Answering, {}, is_cuda=False, folder=tmp_path, fleet=fleet) as both:
        assert both.ask("add_up", number=3.0) == [(0, 3.0), (1, 3.0)]
        assert [path.name for path in tmp_path.iterdir()] == ["rank-0.log"]
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = process.cmdline()
            assert not ("stepladder.measuring.ranks.member" in words and words[-1] == "1")


@pytest.mark.distributed
def test_a_process_of_another_machine_that_dies_is_named(fleet: Fleet, tmp_path: Path) -> None:
    with (
        Team(2, Answering, {}, is_cuda=False, folder=tmp_path, fleet=fleet) as both,
        pytest.raises(ResourceError, match="the process of device 1 was killed by SIGKILL"),
    ):
        both.ask("kill", rank=1)


@pytest.mark.distributed
def test_a_stranger_is_sent_away(fleet: Fleet, tmp_path: Path) -> None:
    """A connection without the secret of the team gets no answer, and is no member."""
    from stepladder.measuring.ranks.processes import Door

    with Door(fleet) as door, socket.socket() as stranger:
        stranger.connect(door._socket.getsockname())
        stranger.sendall(b"\0\0\0\x05hello")
        there = door.start(1)
        came = door.let_in({1: there}, within_s=30)
        assert list(came) == [1]
        came[1].close()
        assert there.wait(20) is not None


def climbing(run: Path, *launch: str) -> list[str]:
    """Return the command of each of two machines that start a climb."""
    words = ["climb", "--batch-size", "8", "--epochs", "30", "--stopping.no-early"]
    words += ["--stopping.validate-every-epochs", "30", "--task", f"{TASKS}:WaitingLonger"]
    words += ["--train", "all", "--run.dir", str(run), "--run.checks", "off"]
    words += ["--ladder.block-s", "0.1", "--ladder.num-seeds", "2"]
    agent = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", *launch]
    return [sys.executable, "-m", "torch.distributed.run", *agent, "-m", "stepladder", *words]


def require_kept(run: Path, said: Sequence[str]) -> None:
    """Check that a climb has kept the second machine, and trained on both."""
    assert sum("measuring 2 devices of all machines" in text for text in said) == 1
    assert json.loads((run / "summary.json").read_text())["devices"] == 2
    verdict = next(
        line["trial"]["verdict"]
        for line in read_jsonl(run / LEDGER_FILE)
        if line["kind"] == "trial" and line["trial"]["rung"] == "more_machines"
    )
    assert verdict["decision"] == "kept"
    assert 1 < verdict["speed"]["low"] < verdict["speed"]["estimate"] < 2.5


@pytest.mark.distributed
def test_a_climb_under_torchrun_keeps_a_second_machine(tmp_path: Path) -> None:
    command = climbing(tmp_path / "run", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    processes = []
    for node in range(2):
        with (tmp_path / f"out-{node}.txt").open("w") as out:
            processes.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env=environment(),
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
    with ended(processes):
        codes = [process.wait(timeout=280) for process in processes]
    said = [(tmp_path / f"out-{node}.txt").read_text() for node in range(2)]
    assert codes == [0, 0], "\n".join(said)
    require_kept(tmp_path / "run", said)


@pytest.mark.distributed
@pytest.mark.skipif(why_not() is not None, reason="needs root, and network namespaces")
def test_a_climb_on_two_hosts_keeps_the_second(tmp_path: Path) -> None:
    with opened_hosts(2, tmp_path) as hosts:
        command = climbing(tmp_path / "run", "--rdzv-endpoint", "host-0:29400")
        processes = [hosts.start(host, command) for host in range(2)]
        codes = [process.wait(timeout=280) for process in processes]
    assert codes == [0, 0], hosts.printed()
    require_kept(tmp_path / "run", [hosts.out(host).read_text() for host in range(2)])

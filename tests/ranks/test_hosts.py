"""Several hosts, behind a switch of 100 Mbit/s and 1 ms, train together as one process does."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.ranks.hosts import Hosts, opened_hosts, why_not
from tests.ranks.switch import DECOY, WIRE
from tests.ranks.together import ROOT, TASKS, TIMEOUT_S, environment

PORT = "29400"
TORCHRUN = "from torch.distributed.run import main; main()"
WHY_NOT = why_not()
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


def training(folder: Path, *words: str) -> list[str]:
    """Return the words of a training of 20 steps."""
    common = ("--run.dir", str(folder), "--train", "all", "--run.checks", "off", "--deterministic")
    length = ("--epochs", "100", "--schedule.max-steps", "20", "--stopping.no-early")
    return ["-m", "stepladder", "train", f"{TASKS}:Plain", *common, *length, *words]


def torchrun(hosts: Hosts, words: Sequence[str], *, size: int | None = None) -> list[str]:
    """Return the command of each host, which has one process."""
    agent = ["--nnodes", str(size or len(hosts.names)), "--nproc-per-node", "1"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"host-0:{PORT}"]
    return [sys.executable, "-c", TORCHRUN, *agent, *words]


def codes(processes: Sequence[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for processes, and return their exit codes."""
    return [process.wait(timeout=TIMEOUT_S) for process in processes]


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the last checkpoint."""
    last = max((run / "checkpoints").glob("step-*"))
    files = sorted(last.glob("model*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train in one process, and return its run folder."""
    run = tmp_path_factory.mktemp("alone") / "run"
    subprocess.run(
        [sys.executable, *training(run)], cwd=ROOT, env=environment(), check=True, timeout=TIMEOUT_S
    )
    return run


@pytest.mark.parametrize(("num", "late_s"), [(2, 0.0), (2, 4.0), (4, 0.0)])
def test_hosts_train_to_the_weights_of_one_process(
    num: int, late_s: float, alone: Path, tmp_path: Path
) -> None:
    """Also if the last host is late."""
    run = tmp_path / "run"
    with opened_hosts(num, tmp_path) as hosts:
        processes = []
        for host in range(num):
            if host == num - 1:
                time.sleep(late_s)
            processes.append(hosts.start(host, torchrun(hosts, training(run))))
        assert codes(processes) == [0] * num, hosts.printed()
        said = hosts.printed()
    expected = weights(alone)
    for name, found in weights(run).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-4, atol=1e-5)
    assert json.loads((run / "summary.json").read_text())["steps"] == 20
    assert f"{num} hosts, connected by {WIRE}" in said
    assert DECOY not in said


def test_a_wrong_address_ends_in_the_set_time_with_who_is_missing(tmp_path: Path) -> None:
    words = [sys.executable, *training(tmp_path / "run", "--run.meet-s", "4")]
    common = {"WORLD_SIZE": "2", "MASTER_PORT": PORT}
    with opened_hosts(2, tmp_path) as hosts:
        first = hosts.start(0, words, RANK="0", MASTER_ADDR=hosts.address(0), **common)
        second = hosts.start(1, words, RANK="1", MASTER_ADDR="10.9.0.77", **common)
        assert codes([first, second]) == [4, 4], hosts.printed()
        said = [hosts.out(host).read_text() for host in (0, 1)]
    assert "rank 1 did not come within 4 s, but a run of 2 processes needs all of them" in said[0]
    log = (tmp_path / "run" / "logs" / "rank-1.log").read_text()
    assert "rank 0 did not come within 4 s, or rank 1 cannot reach it" in log + said[1]
    assert f"10.9.0.77:{PORT}" in log + said[1]


def test_a_host_that_does_not_see_the_run_folder_is_named(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with opened_hosts(2, tmp_path) as hosts:
        words = torchrun(hosts, training(shared / "run"))
        processes = [hosts.start(0, words), hosts.start(1, words, hides=shared)]
        assert 0 not in codes(processes), hosts.printed()
        said = hosts.printed()
    assert f"{shared / 'run'}: the run folder is not shared by the hosts: host-1 did not" in said


def test_a_host_that_cannot_read_the_store_is_named_with_its_path(
    build_store: Any, tmp_path: Path
) -> None:
    store = tmp_path / "data" / "store"
    store.parent.mkdir()
    build_store(store, size=32)
    words = ["-m", "stepladder", "train", "--data.store", str(store), "--train", "all"]
    words += ["--model.name", "test_efficientnet", "--model.weights", "none", "--epochs", "1"]
    words += ["--run.dir", str(tmp_path / "run"), "--run.checks", "off"]
    with opened_hosts(2, tmp_path) as hosts:
        command = torchrun(hosts, words)
        processes = [hosts.start(0, command), hosts.start(1, command, hides=store.parent)]
        assert 0 not in codes(processes), hosts.printed()
        said = hosts.out(0).read_text()
    first = said.index("rank 1 on host-1")
    assert str(store) in said[first : first + 500]

"""`torchrun --nnodes 1:2`: one machine joins, another dies, and the result is that of one process.

Two agents on this machine act as two machines, of one process each.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.ranks.test_devices import wait_for
from tests.ranks.test_hosts import weights
from tests.ranks.together import ROOT, TASKS, TIMEOUT_S, ended, environment, free_port

pytestmark = pytest.mark.distributed
TORCHRUN = "from torch.distributed.run import main; main()"
OWN_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else torchrun waits for a machine's key
STEPS = 400


def train(folder: Path, *words: str, task: str = "Gated") -> list[str]:
    """Return the words of a training."""
    common = ("--run.dir", str(folder), "--train", "all", "--run.checks", "off", "--deterministic")
    length = ("--epochs", "9999", "--schedule.max-steps", str(STEPS), "--stopping.no-early")
    saves = ("--run.checkpoint-every-s", "0.3", "--run.log-every", "1")
    return ["-m", "stepladder", "train", f"{TASKS}:{task}", *common, *length, *saves, *words]


def events(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run so far, without a line that is being written."""
    file = run / "events.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def sizes_of(file: Path) -> list[int]:
    """Return the numbers of ranks that have trained one after the other."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [size for size, _ in itertools.groupby(int(line) for line in lines if line[-1] == "\n")]


def test_a_machine_joins_and_another_dies_and_no_example_is_repeated_or_skipped(
    tmp_path: Path,
) -> None:
    """Also with --overwrite, which only the first start heeds."""
    run, sizes, hurry = tmp_path / "run", tmp_path / "sizes", tmp_path / "hurry"
    agent = ["--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
    agent += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    agent += ["--rdzv-conf", "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"]

    def start(name: str) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.txt").open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-c", TORCHRUN, *agent, *train(run, "--overwrite")],
                cwd=ROOT,
                env=environment(SIZES=str(sizes), HURRY=str(hurry), **OWN_STORES),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    first = start("first")
    with ended([first]):
        wait_for(lambda: sizes_of(sizes) == [1])
        second = start("second")
        with ended([second]):
            wait_for(lambda: sizes_of(sizes) == [1, 2])
            kill_all(second)
            wait_for(lambda: sizes_of(sizes) == [1, 2, 1])
            hurry.touch()
            code = first.wait(timeout=TIMEOUT_S)
        assert code == 0, (tmp_path / "first.txt").read_text()
    assert sizes_of(sizes) == [1, 2, 1]
    quiet = tmp_path / "quiet"
    subprocess.run(
        [sys.executable, *train(quiet, task="Plain")],
        cwd=ROOT,
        env=environment(),
        check=True,
        timeout=TIMEOUT_S,
    )
    steps = [row["step"] for row in events(run) if row["event"] == "train"]
    assert steps == list(range(1, STEPS + 1))
    expected = weights(quiet)
    for name, found in weights(run).items():
        torch.testing.assert_close(found, expected[name], rtol=1e-3, atol=1e-4)


def kill_all(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and its process at once, as if their machine had lost its power."""
    processes = psutil.Process(agent.pid).children(recursive=True)
    for process in (*processes, psutil.Process(agent.pid)):
        with suppress(psutil.NoSuchProcess):
            process.kill()

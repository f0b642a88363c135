"""`stepladder check` under torchrun compares the ranks before rank 0 checks the job."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.checks.machine.compared import Compared, compared_lines
from tests.ranks.together import ROOT, TASKS, TIMEOUT_S, ended, environment

TORCHRUN = "from torch.distributed.run import main; main()"


def check(task: str, folder: Path, *words: str) -> tuple[int, str, str]:
    """Run `torchrun -m stepladder check` on two ranks; return its code, stdout and stderr."""
    agent = ("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    command = ("-m", "stepladder", "check", f"{TASKS}:{task}", "--fast", *words)
    process = subprocess.Popen(
        [sys.executable, "-c", TORCHRUN, *agent, *command, "--run.dir", str(folder / "run")],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with ended([process]):
        out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


@pytest.mark.distributed
def test_ranks_are_compared_and_rank_0_alone_prints(tmp_path: Path) -> None:
    _, out, err = check("Plain", tmp_path)
    assert out.count("2 ranks on 1 host: an all-reduce takes") == 1, err
    assert out.count("report: ") == 1
    assert "problem" not in out


@pytest.mark.distributed
def test_data_that_one_rank_cannot_read_is_a_problem_with_its_rank(tmp_path: Path) -> None:
    code, out, err = check("UnreadableOnRank1", tmp_path)
    assert code, err
    assert "problem: rank 1 on " in out
    assert "cannot read the data: the folder does not exist (/data)" in out


@pytest.mark.distributed
def test_other_data_on_one_rank_is_in_the_json(tmp_path: Path) -> None:
    code, out, err = check("OtherOnRank1", tmp_path, "--json")
    assert code, err
    ranks = json.loads(out)["ranks"]
    assert ranks["num"] == 2
    assert [words.partition(":")[0] for words in ranks["problems"]] == [
        f"data {split}" for split in ("train", "val", "test")
    ]


def test_the_lines_have_links_warnings_and_problems() -> None:
    found = Compared(
        num=4,
        num_hosts=2,
        latency_s=3e-4,
        bytes_per_s=1.2e9,
        links={"one": ("NVLink: 0-1",)},
        warnings=("the clock of the machine of rank 2 differs",),
        problems=("rank 3 on two cannot read the data: none",),
    )
    assert compared_lines(found) == [
        "4 ranks on 2 hosts: an all-reduce takes 0.3 ms, and adds up 1.2 GB/s",
        "GPU links of one: NVLink: 0-1",
        "warning: the clock of the machine of rank 2 differs",
        "problem: rank 3 on two cannot read the data: none",
    ]

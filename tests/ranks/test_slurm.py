"""Tasks of `srun`: a signal before the time limit saves the run, and the job resumes when requeued.

There is no Slurm here: each process has the variables of a task.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.ranks.together import Command, Start, checkpoints, free_port, wait_for

WORDS = ("--epochs", "400", "--stopping.no-early", "--run.checkpoint-every-s", "0.2")


def step(start: Start, *, job: int, restarts: int) -> list[Command]:
    """Start the two tasks of a job step on one node."""
    port = free_port()
    shared = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NODEID": "0",
        "SLURM_RESTART_COUNT": str(restarts),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    words = (*WORDS, "--schedule.max-steps", "300", "--deterministic")
    return [
        start("Plain", *words, env={**shared, "SLURM_PROCID": task, "SLURM_LOCALID": task})
        for task in ("0", "1")
    ]


@pytest.mark.distributed
def test_a_signal_to_one_task_saves_the_run_and_the_requeued_job_resumes(
    start: Start, tmp_path: Path
) -> None:
    tasks = step(start, job=4711, restarts=0)
    wait_for(lambda: checkpoints(tmp_path / "run"))
    tasks[1].process.send_signal(signal.SIGUSR1)
    printed = [task.ended() for task in tasks]
    codes = [task.process.returncode for task in tasks]
    assert codes == [128 + signal.SIGUSR1] * 2, printed
    assert "its state is saved" in printed[0]
    assert not (tmp_path / "run" / "summary.json").exists() or (
        json.loads((tmp_path / "run" / "summary.json").read_text())["status"] != "finished"
    )
    tasks = step(start, job=4711, restarts=1)
    printed = [task.ended() for task in tasks]
    assert [task.process.returncode for task in tasks] == [0, 0], printed
    assert "resumed from" in printed[0]
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (found["steps"], found["devices"], found["attempts"]) == (300, 2, 2)

"""kill -9 at random moments of saving: the newest checkpoint always opens and is consistent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepladder.machine.filesystem import FolderAbilities
from stepladder.training.checkpoint.checkpoint import Checkpoints

NUM_KILLS = 20
MAX_WAIT_S = 0.25

# Imports torch once, then forks a saver for each folder on stdin, so that kills are cheap.
NURSERY = """
import os, sys
import torch
from pathlib import Path
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.machine.filesystem import FolderAbilities

torch.set_num_threads(1)

def save_forever(folder, has_folder_rename):
    checkpoints = Checkpoints(
        folder, keep_last=2, file_system=FolderAbilities(has_folder_rename=has_folder_rename)
    )
    newest = checkpoints.newest()
    number = newest.state["number"] + 1 if newest else 0
    frozen = {"trunk": torch.arange(1000.0)}
    while True:
        tensors = {"model": {"w": torch.full((2000,), float(number))},
                   "optimizer": {"m": torch.full((500,), -float(number))}}
        best, step = f"best-{number // 7:09d}", f"step-{number // 2:09d}"
        checkpoints.save(best, tensors, {"number": number}, frozen)
        state = {"number": number, "top": [{"name": best}]}
        checkpoints.save(step, tensors, state, frozen)
        os.write(1, b"%d\\n" % number)
        checkpoints.prune([best])
        number += 1

for line in sys.stdin:
    folder, has_folder_rename = line.rstrip("\\n").split("\\t")
    pid = os.fork()
    if pid == 0:
        save_forever(Path(folder), has_folder_rename == "True")
    os.write(1, b"pid %d\\n" % pid)
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


def kill_once(nursery: subprocess.Popen[str], folder: Path, has_rename: bool, wait_s: float) -> int:
    """Let a saver run for a while after its first save, kill it; return its last number."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{folder}\t{has_rename}\n")
    nursery.stdin.flush()
    said = -1
    pid = 0
    while not pid or said < 0:
        line = nursery.stdout.readline()
        if line.startswith("pid"):
            pid = int(line.split()[1])
        else:
            said = int(line)
    time.sleep(wait_s)
    os.kill(pid, signal.SIGKILL)
    while (line := nursery.stdout.readline()) != "dead\n":
        said = int(line)
    return said


@pytest.mark.parametrize(
    "has_rename",
    [True, pytest.param(False, marks=pytest.mark.thorough)],
    ids=["renamed", "in place"],
)
def test_after_a_kill_the_newest_is_the_last_saved_or_the_one_in_the_making(
    tmp_path: Path, has_rename: bool
) -> None:
    """Names repeat, so that kills also hit replacements."""
    folder = tmp_path / "checkpoints"
    draw = random.Random(29)
    before = -1
    command = [sys.executable, "-c", NURSERY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        for _ in range(NUM_KILLS):
            said = kill_once(nursery, folder, has_rename, draw.random() * MAX_WAIT_S)
            reader = Checkpoints(folder, file_system=FolderAbilities(has_folder_rename=has_rename))
            loaded = reader.newest()
            assert loaded is not None
            number = loaded.state["number"]
            assert number in (said, said + 1)
            assert number > before
            assert loaded.tensors["model"]["w"].eq(number).all()
            assert loaded.tensors["optimizer"]["m"].eq(-number).all()
            assert loaded.frozen["trunk"][-1] == 999
            assert reader.load(loaded.state["top"][0]["name"]).state["number"] <= number + 1
            assert reader.warnings == []
            before = number
        assert nursery.stdin is not None
        nursery.stdin.close()

"""The flight recorder is on, and its records are in the run folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepladder.parallel.flight_recorder import record_collectives, recorder_variables
from tests.ranks.together import ROOT, environment, free_port

SCRIPT = """
import os, sys
from pathlib import Path
import torch
from stepladder.parallel.join import joined
from stepladder.parallel.place import place_of
folder = Path(sys.argv[1])
with joined(place_of(), folder, is_cuda=False, meet_s=60, stall_s=60) as world:
    world.sum_(torch.ones(1000))
    if world.rank == 1:
        os._exit(9)  # as if it was killed
    world.sum_(torch.ones(2000))
"""


def test_what_the_user_has_set_is_kept(tmp_path: Path) -> None:
    found = recorder_variables({}, tmp_path)
    assert found["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert found["TORCH_FR_DUMP_TEMP_FILE"].startswith(str(tmp_path / "logs"))
    assert "TORCH_FR_BUFFER_SIZE" not in recorder_variables({"TORCH_FR_BUFFER_SIZE": "9"}, tmp_path)
    old = recorder_variables({"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"}, tmp_path)
    assert "TORCH_FR_BUFFER_SIZE" not in old


def test_the_next_run_of_a_process_has_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in recorder_variables({}, tmp_path):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    for run in ("first", "second"):
        record_collectives(tmp_path / run)
        folder = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"]).parent
        assert folder == tmp_path / run / "logs"


@pytest.mark.distributed
def test_a_rank_that_loses_another_writes_its_last_collectives(tmp_path: Path) -> None:
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            cwd=ROOT,
            env=environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
            ),
            stderr=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    codes = [rank.wait(timeout=100) for rank in ranks]
    assert codes[1] == 9
    assert codes[0] != 0
    entries = json.loads((tmp_path / "logs" / "collectives-0-rank-0.json").read_text())["entries"]
    sums = [one for one in entries if one["profiling_name"] == "gloo:all_reduce"]
    assert [one["input_sizes"] for one in sums if one["input_sizes"] != [[1]]][-2:] == [
        [[1000]],
        [[2000]],
    ]
    assert not (tmp_path / "logs" / "collectives-0-rank-1.json").exists()

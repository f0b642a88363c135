"""`HorovodRunner(np=2)` on the Ray that the program is connected to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks.together import ROOT, environment


@pytest.mark.distributed
def test_the_runner_uses_actors_of_the_connected_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, "-m", "tests.ray.horovod_ray"],
        cwd=ROOT,
        env=environment(
            HOME=str(tmp_path),
            RAY_USAGE_STATS_ENABLED="0",
            RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
            PYTHONPATH=f"{ROOT / 'src'}:{ROOT}",
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["result"] == [0, 2, 0, 2, 7.0]
    assert "rank 1 failed: ValueError: the third batch" in seen["failed"]
    assert "Ray has 2 CPUs, but HorovodRunner(np=3) needs 3" in seen["too_few"]

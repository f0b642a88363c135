"""`HorovodRunner(np=2)` on the active Spark session."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.ranks.together import ROOT, environment


@pytest.mark.distributed
def test_the_runner_uses_the_tasks_of_the_active_session() -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.horovod_spark"],
        cwd=ROOT,
        env=environment(
            SPARK_LOCAL_IP="127.0.0.1",
            PYSPARK_PYTHON=sys.executable,
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
    assert "Spark can run 2 tasks at once, but HorovodRunner(np=3) needs 3" in seen["too_few"]
    assert "np=-3" in seen["too_few"]

"""A cluster of two executors on this machine: one is killed midway, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import plan
from stepladder.data.prepare.prepare import prepare

pytest.importorskip("pyspark")

# Kills the first executor that has finished a file, while others are still to be written.
SCRIPT = """
import os, signal, sys, threading, time
from pathlib import Path
import psutil
from stepladder.config.choices import EngineName
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import plan
from stepladder.data.prepare.prepare import prepare

plan.MAX_MEAN_SHARD_BYTES = 12_000
source, out = map(Path, sys.argv[1:])

def is_executor(process):
    try:
        return "CoarseGrainedExecutorBackend" in " ".join(process.cmdline())
    except psutil.Error:  # it has ended meanwhile
        return False

def executors():
    return [one for one in psutil.Process().children(recursive=True) if is_executor(one)]

def kill():
    work = out.with_name(out.name + ".partial")
    while len(victims := executors()) < 2:
        time.sleep(0.1)
    while not (done := list(work.glob("records/*.json"))):
        time.sleep(0.002)
    victims[0].send_signal(signal.SIGKILL)
    num_done = len(done)
    sys.stdout.write(f"killed after {num_done}\\n")

threading.Thread(target=kill, daemon=True).start()
config = PrepareConfig(source=source, out=out, size=24, max_bad=0.1, engine=EngineName.SPARK)
prepare(config)
"""


# The only worker has fewer cores than an executor requests, so none starts.
WITHOUT_SLOTS = """
from pathlib import Path
from stepladder.data.spark.jobs import run_tasks
from stepladder.data.spark.session import spark_session
from stepladder.errors import ResourceError
with spark_session() as spark:
    try:
        run_tasks(spark, 1, str)
    except ResourceError as error:
        print(error)
"""


# Each task dies in its first attempt, like a worker killed for lack of memory.
DYING = """
import os, sys
from pathlib import Path
from stepladder.data.spark.jobs import run_tasks
from stepladder.data.spark.session import spark_session

folder = sys.argv[1]

def task(idx):
    mark = Path(folder, str(idx))
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return str(idx)

with spark_session() as spark:
    print(sorted(run_tasks(spark, 2, task).values()))
"""


def cluster(master: str, java: str, **conf: str) -> dict[str, str]:
    conf |= {f"spark.{who}.extraJavaOptions": java for who in ("driver", "executor")}
    given = " ".join(f"--conf '{name}={value}'" for name, value in conf.items())
    own = {
        "SPARK_MASTER": master,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"{given} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return {**os.environ, **own}


@pytest.mark.slow
def test_a_cluster_without_a_slot_is_reported(java_options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SLOTS],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **cluster("local-cluster[1,1,1024]", java_options, **{"spark.executor.cores": "2"}),
            "STEPLADDER_SLOT_WAIT_S": "3",
        },
    )
    assert (
        "Spark started no task within 3 s: the cluster provided no executor with a free core"
        in (done.stdout)
    )
    assert "spark.executor.cores" in done.stdout


@pytest.mark.slow
def test_a_session_of_our_own_on_one_machine_tries_a_task_again(
    tmp_path: Path, java_options: str
) -> None:
    env = cluster("", java_options)
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={name: value for name, value in env.items() if value and name != "MASTER"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['0', '1']"


@pytest.mark.slow
def test_an_executor_that_is_killed_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_options: str
) -> None:
    monkeypatch.setattr(plan, "MAX_MEAN_SHARD_BYTES", 12_000)
    source = tmp_path / "photos"
    random = np.random.default_rng(0)
    for idx in range(80):
        path = source / f"class {idx % 2}" / f"{idx}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = random.integers(0, 255, size=(4, 5, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((600, 500)).save(path, compress_level=1)
    wanted = prepare(PrepareConfig(source=source, out=tmp_path / "local", size=24)).folder
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(source), str(tmp_path / "store")],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env=cluster("local-cluster[2,1,1024]", java_options),
    )
    assert done.returncode == 0, done.stderr
    num_files = len(list(wanted.glob("*.parquet")))
    assert 1 <= int(done.stdout.rpartition("killed after ")[2]) < num_files
    names = {path.name for path in wanted.iterdir()} - {"prepare_log.json"}
    assert names == {path.name for path in (tmp_path / "store").iterdir()} - {"prepare_log.json"}
    for name in names:
        assert (wanted / name).read_bytes() == (tmp_path / "store" / name).read_bytes(), name

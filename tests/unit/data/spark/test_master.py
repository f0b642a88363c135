"""Settings for a local machine are used only if Spark's own settings name no cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from stepladder.data.spark.session import named_master

NAMES = ("SPARK_MASTER", "MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME")


@pytest.mark.parametrize(
    ("environment", "defaults", "master"),
    [
        ({}, "", None),
        ({}, "# spark.master yarn\nspark.submit.deployMode client\n", None),
        ({}, "spark.app.name x\n spark.master   spark://host:7077\n", "spark://host:7077"),
        ({}, "spark.master=yarn\n", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--master k8s://h pyspark-shell"}, "spark.master yarn", "k8s://h"),
        ({"PYSPARK_SUBMIT_ARGS": "--conf spark.master=yarn pyspark-shell"}, "", "yarn"),
        ({"PYSPARK_SUBMIT_ARGS": "--properties-file {}/own x"}, "spark.master yarn", "local[3]"),
        ({"MASTER": "yarn"}, "", "yarn"),
        ({"MASTER": "yarn", "SPARK_MASTER": "local[2]"}, "spark.master yarn", "local[2]"),
    ],
)
def test_the_master_is_found_where_spark_looks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    defaults: str,
    master: str | None,
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    (tmp_path / "own").write_text("spark.master local[3]\n")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp_path))
    assert named_master() == master


BEGIN = """
from stepladder.data.spark.session import spark_session
from stepladder.errors import ResourceError
try:
    with spark_session():
        pass
except ResourceError as error:
    print(error)
"""


def test_a_cluster_does_not_use_127_0_0_1(tmp_path: Path) -> None:
    """Set as spark-submit does: executors could not reach a driver there."""
    own = {"PYSPARK_PYTHON", "SPARK_LOCAL_IP", "PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", *NAMES}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    for name, text in {
        "bin/spark-submit": f"#!/bin/sh\nenv > {tmp_path}/given\nexit 1\n",
        "bin/java": "#!/bin/sh\necho 'openjdk version \"17.0.1\"'\n",
        "conf/spark-defaults.conf": "spark.master spark://host:7077\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    homes = {"SPARK_HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={**environment, **homes},
    )
    assert "spark://host:7077: Spark did not start" in done.stdout
    given = {line.partition("=")[0] for line in (tmp_path / "given").read_text().splitlines()}
    assert not given & {"PYSPARK_PYTHON", "SPARK_LOCAL_IP"}

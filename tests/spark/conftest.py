"""One Spark session for all tests of a worker, as its JVM takes seconds to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that lives for seconds: what it would compile for speed never pays here."""


HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests not marked `smoke` to `make test-distributed`."""
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("smoke") is None:
            item.add_marker("distributed")


@pytest.fixture(scope="session")
def java_options() -> str:
    """Options of the tests' JVMs."""
    return JAVA


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of two slots on this machine."""
    sql = pytest.importorskip("pyspark.sql")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .appName("stepladder tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", JAVA)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()

"""Missing requirements of Spark are reported before anything is started."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from stepladder.config.choices import EngineName, SourceFormat
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.data.spark.jobs import explain
from stepladder.data.spark.session import require_spark
from stepladder.errors import ResourceError, UsageError

pytest.importorskip("pyspark")


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove a session of other tests: with one, Java is not checked."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)


def java(folder: Path, version: str) -> Path:
    """Create a fake Java that prints a version."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    return folder


def test_without_pyspark_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(UsageError) as caught:
        require_spark()
    assert "pip install 'stepladder[spark]'" in str(caught.value)


def test_without_java_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ResourceError, match="needs Java, which was not found") as caught:
        require_spark()
    assert "apt install" in str(caught.value)


@pytest.mark.parametrize(
    ("version", "is_enough"), [("1.8.0_292", False), ("11.0.2", False), ("17.0.1", True)]
)
def test_an_old_java_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_enough: bool
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, version)))
    if is_enough:
        require_spark()
        return
    number = "8" if version.startswith("1.8") else "11"
    with pytest.raises(ResourceError, match=f"needs Java 17 or later; this Java is {number}"):
        require_spark()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"source": Path("hdfs://host/a.tar")},
            "Spark's executors, on other machines, cannot open webdataset at this address",
        ),
        ({"source": Path("photos"), "delta_version": 3}, "if the source is a Delta table"),
        (
            {"source_format": SourceFormat.TABLE, "engine": EngineName.LOCAL},
            "Add --engine spark",
        ),
    ],
)
def test_what_an_engine_cannot_read_is_reported_before_it_begins(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    given = {"engine": EngineName.SPARK, **options}
    with pytest.raises(UsageError, match=words):
        prepare(PrepareConfig(out=tmp_path / "store", **given))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "  File x\nModuleNotFoundError: No module named 'stepladder'\n",
            "stepladder is not installed",
        ),
        ("Job aborted: ExecutorLostFailure (executor 1 exited)", "killed, or out of memory"),
        ("Traceback\n  File x\nValueError: of a user\n\n\tat org.Spark", "ValueError: of a user"),
        (
            "An error occurred while calling o1.load.\n: java.lang.RuntimeException: x\n\tat a.B\n"
            "Caused by: java.lang.ClassNotFoundException: Class S3A not found\n\tat a.C\n",
            "ClassNotFoundException: Class S3A not found",
        ),
        (
            "org.apache.spark.scheduler.BarrierJobSlotsNumberCheckFailed: [SPARK-24819]: Barrier "
            "execution mode does not allow run a barrier stage that requires more slots",
            "fewer free slots than there are processes",
        ),
        ("[SPARK-24942]: Barrier execution mode does not support dynamic", "allocates its"),
        ("\nThis cluster has TLS encryption enabled;\n however", "encrypts its connections"),
        ("something else", "something else"),
    ],
)
def test_why_spark_gave_up_is_one_line(text: str, words: str) -> None:
    error = explain(RuntimeError(text))
    assert words in str(error)
    assert error.fix
    assert len(str(error).splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "master", "words"),
    [
        (
            "No module named 'torch'",
            "local[2]",
            "uses a different Python, in which torch is not installed",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] other",
            "spark://host:7077",
            "a different Python version than the driver",
        ),
    ],
)
def test_another_python_of_executors_is_fixed_by_naming_this_one(
    text: str, master: str, words: str
) -> None:
    error = explain(RuntimeError(text), master=master)
    assert words in str(error)
    assert error.fix is not None
    assert error.fix.endswith(f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}")

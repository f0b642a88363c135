"""Find or start a Spark session, with clear errors if that fails."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    SparkSession = Any


_MIN_JAVA = 17
_MIN_PYSPARK = 4
_INSTALL_JAVA = (
    "Install Java 17 or 21, such as: apt install openjdk-17-jre-headless. Set JAVA_HOME to its "
    "folder, if it is set or if there are several."
)
_LOCAL = "local[*,4]"
"""All cores, with 4 attempts per task as on a cluster; local[*] would not retry."""
_OF_A_CLUSTER = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")  # the JVM is already running, or is remote

_SUBMITTED = re.compile(r"(?:--master[\s=]+|\bspark\.master=)[\"']?([^\s\"']+)")
_PROPERTIES = re.compile(r"--properties-file[\s=]+[\"']?([^\s\"']+)")
_PROPERTY = re.compile(r"^[ \t]*spark\.master[ \t=:]+(\S+)", re.MULTILINE)


def named_master() -> str | None:
    """Return the master set in the environment or Spark's configuration, or None.

    The first of these is used, in the same order as in Spark: SPARK_MASTER (only in stepladder),
    arguments of spark-submit, the properties file, MASTER.
    """
    submitted = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    return (
        os.environ.get("SPARK_MASTER")
        or _found(_SUBMITTED, submitted)
        or _found(_PROPERTY, _properties(submitted))
        or os.environ.get("MASTER")
        or None
    )


def _properties(submitted: str) -> str:
    named = _found(_PROPERTIES, submitted)
    file = Path(named) if named else _conf_folder() / "spark-defaults.conf"
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _conf_folder() -> Path:
    import pyspark

    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    return Path(folder) if folder else Path(home, "conf")


def _found(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def require_spark() -> None:
    """Check that PySpark and Java are installed.

    Raises:
        UsageError: if PySpark is missing or too old, or the session would be remote.
        ResourceError: if Java is missing or too old.
    """
    try:
        import pyspark
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise UsageError(
            "PySpark, with which stepladder uses Spark, is not installed",
            fix="Install it: pip install 'stepladder[spark]'",
        ) from None
    if int(pyspark.__version__.partition(".")[0]) < _MIN_PYSPARK:
        raise UsageError(
            f"PySpark {pyspark.__version__} is too old: {_MIN_PYSPARK} or later is needed",
            fix="pip install --upgrade 'stepladder[spark]'",
        )
    from pyspark import SparkContext

    has_begun = SparkContext._active_spark_context is not None
    if not has_begun and not any(os.environ.get(name) for name in _OF_A_CLUSTER):
        _require_java()  # this starts a small JVM


@contextlib.contextmanager
def spark_session(options: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
    """Yield the active session, or a new one that is stopped at the end of the block.

    A new session is configured by spark-submit and spark-defaults.conf, or else by the environment
    variable SPARK_MASTER; the default is local[*,4].

    Args:
        options: of a new session, in addition.

    Raises:
        UsageError, ResourceError: see `require_spark`.
        ResourceError: if Spark does not start.
    """
    require_spark()
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    if active is not None:
        yield _classic(active)
        return
    from pyspark import SparkContext

    if (
        SparkContext._active_spark_context is not None
    ):  # without a session, or started in another thread
        yield _begun(Session.builder)
        return
    session = _begin(options)
    try:
        yield session
    finally:
        session.stop()


@contextlib.contextmanager
def quiet_pandas() -> Iterator[None]:
    """Suppress PySpark's warning about pandas 3, which is imported but not used."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        yield


def _classic(session: SparkSession) -> SparkSession:
    if not hasattr(type(session), "sparkContext") or "connect" in type(session).__module__:
        raise UsageError(
            "the active Spark session uses Spark Connect, which does not allow stepladder to run "
            "its code on the executors",
            fix="Run it on the cluster itself: with spark-submit, or in a notebook whose session "
            "does not use Spark Connect.",
        )
    return session


def _begin(options: Mapping[str, str]) -> SparkSession:
    """Start a session; a local one without the web UI and with this Python."""
    from pyspark.sql import SparkSession as Session

    builder = Session.builder.appName("stepladder").config("spark.ui.showConsoleProgress", "false")
    for name, value in options.items():
        builder = builder.config(name, value)
    is_submitted = any(os.environ.get(name) for name in _OF_A_CLUSTER)
    named = named_master()
    master = os.environ.get("SPARK_MASTER") or (None if named or is_submitted else _LOCAL)
    if master:
        builder = builder.master(master)
    if not is_submitted and (named or _LOCAL).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # instead of python3 on the PATH
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.ui.enabled", "false")
    session = _begun(builder)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _begun(builder: SparkSession.Builder) -> SparkSession:
    try:
        with quiet_pandas():
            return builder.getOrCreate()
    except (RuntimeError, OSError) as error:
        raise not_begun(error) from error
    except Exception as error:
        if not is_of_spark(error):
            raise
        raise not_begun(error) from error


def is_of_spark(error: Exception) -> bool:
    """Return True if an error comes from Spark, including JVM errors raised by py4j."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")


def not_begun(error: Exception) -> ResourceError:
    """Return the error for a Spark session that did not start, with Spark's message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Exception:" in line), lines[0] if lines else "")
    return ResourceError(
        "Spark did not start",
        where=named_master(),
        why=told.lstrip(": ")[:300] or None,
        fix="Set SPARK_MASTER to the address of a running cluster (or correct "
        "spark-defaults.conf), or work on this machine without Spark: --engine local",
    )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home}" if home else None
        raise ResourceError("Spark needs Java, which was not found", where=where, fix=_INSTALL_JAVA)
    done = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < _MIN_JAVA:
        version = found[1] if found else "of an unknown version"
        raise ResourceError(
            f"Spark needs Java {_MIN_JAVA} or later; this Java is {version}",
            where=java,
            fix=_INSTALL_JAVA,
        )

"""Find a Spark session or begin one; quiet, and with clear words where that cannot be."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    SparkSession = Any


_MIN_JAVA = 17
_MIN_PYSPARK = 4
_INSTALL_JAVA = (
    "Install Java 17 or 21, such as: apt install openjdk-17-jre-headless. One that is there "
    "already is named by JAVA_HOME."
)
_LOCAL = "local[*,4]"
"""All cores; a task is tried 4 times, as on a cluster: Spark's own local[*] gives up at once."""
_OF_A_CLUSTER = ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE")  # the JVM is there already, or far away

_SUBMITTED = re.compile(r"(?:--master[\s=]+|\bspark\.master=)[\"']?([^\s\"']+)")
_PROPERTIES = re.compile(r"--properties-file[\s=]+[\"']?([^\s\"']+)")
_PROPERTY = re.compile(r"^[ \t]*spark\.master[ \t=:]+(\S+)", re.MULTILINE)


def named_master() -> str | None:
    """Return the master that the environment or Spark's own files name; None: nobody names one.

    The first of these names it, as for Spark itself: SPARK_MASTER (which is ours alone), arguments
    for spark-submit, a file of properties, MASTER.
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
    """Be sure that PySpark and Java are there, before anything is begun.

    Raises:
        UsageError: if PySpark is missing or too old, or the session would be a remote one.
        ResourceError: if there is no Java to run it, or one too old.
    """
    try:
        import pyspark
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise UsageError(
            "Spark is not installed", fix="Type: pip install 'stepladder[spark]'"
        ) from None
    if int(pyspark.__version__.partition(".")[0]) < _MIN_PYSPARK:
        raise UsageError(
            f"PySpark is {pyspark.__version__}, and {_MIN_PYSPARK} or later is needed",
            fix="Type: pip install --upgrade 'stepladder[spark]'",
        )
    from pyspark import SparkContext

    has_begun = SparkContext._active_spark_context is not None
    if not has_begun and not any(os.environ.get(name) for name in _OF_A_CLUSTER):
        _require_java()  # which starts a JVM, if a small one


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Give the session that is there, or one that lives as long as the block.

    One that is made here goes by spark-submit and spark-defaults.conf, or else by the environment
    variable SPARK_MASTER; without either it is local[*,4].

    Raises:
        UsageError, ResourceError: as `require_spark`.
        ResourceError: if Spark does not begin.
    """
    require_spark()
    from pyspark.sql import SparkSession as Session

    active = Session.getActiveSession()
    if active is not None:
        yield _classic(active)
        return
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:  # bare, or begun in another thread
        yield _begun(Session.builder)
        return
    session = _begin()
    try:
        yield session
    finally:
        session.stop()


def num_slots(spark: SparkSession) -> int:
    """Count the tasks that can run at once."""
    return max(1, int(spark.sparkContext.defaultParallelism))


@contextlib.contextmanager
def quiet_pandas() -> Iterator[None]:
    """Keep PySpark from warning of pandas 3, which it imports here and does not use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
        yield


def _classic(session: SparkSession) -> SparkSession:
    if not hasattr(type(session), "sparkContext") or "connect" in type(session).__module__:
        raise UsageError(
            "the active session is one of Spark Connect, which shows nothing of its executors",
            fix="Run this on the cluster, by spark-submit or in a notebook of classic Spark.",
        )
    return session


def _begin() -> SparkSession:
    """Begin a session; one of this machine alone without web pages and with our own Python."""
    from pyspark.sql import SparkSession as Session

    builder = Session.builder.appName("stepladder").config("spark.ui.showConsoleProgress", "false")
    is_submitted = any(os.environ.get(name) for name in _OF_A_CLUSTER)
    named = named_master()
    master = os.environ.get("SPARK_MASTER") or (None if named or is_submitted else _LOCAL)
    if master:
        builder = builder.master(master)
    if not is_submitted and (named or _LOCAL).startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the first on the PATH
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
    """Return True if it is Spark that raised; what the JVM throws may come as an error of py4j."""
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")


def not_begun(error: Exception) -> ResourceError:
    """Say that Spark did not begin, with its own words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "Exception:" in line), lines[0] if lines else "")
    return ResourceError(
        "Spark does not begin",
        where=named_master(),
        why=told.lstrip(": ")[:300] or None,
        fix="Look at SPARK_MASTER, spark-defaults.conf and the cluster, or use --engine local.",
    )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        where = f"JAVA_HOME={home}" if home else None
        raise ResourceError("Spark needs Java, and none is found", where=where, fix=_INSTALL_JAVA)
    done = subprocess.run([java, "-version"], check=False, capture_output=True, text=True)
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < _MIN_JAVA:
        version = found[1] if found else "one that does not tell its version"
        raise ResourceError(
            f"Spark needs Java {_MIN_JAVA} or later, and this is {version}",
            where=java,
            fix=_INSTALL_JAVA,
        )

"""Which master a Spark session that begins here would have."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SUBMITTED = re.compile(r"(?:--master[\s=]+|\bspark\.master=)[\"']?([^\s\"']+)")
_PROPERTIES = re.compile(r"--properties-file[\s=]+[\"']?([^\s\"']+)")
_PROPERTY = re.compile(r"^[ \t]*spark\.master[ \t=:]+(\S+)", re.MULTILINE)


def named_master() -> str | None:
    """Give the master that the environment or Spark's own files name; None: nobody names one.

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

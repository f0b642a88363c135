"""The folder, token and library versions that driver and executors share, and their checks."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import shutil
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.data.decoding.decode import decode_versions
from stepladder.data.remote.cache_folder import why_not_shared
from stepladder.data.spark.jobs import run_tasks
from stepladder.data.spark.slots import num_slots
from stepladder.errors import DataError, ResourceError, StepladderError, UsageError
from stepladder.records import read_json, write_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
else:
    SparkSession = Any

_KINDS = {kind.__name__: kind for kind in (UsageError, DataError, ResourceError)}
_TOKEN = "token"
_num_kept = 0
_SHARED = (
    "Executors write the store's files to it, and the driver publishes them.",
    "Use an --out that all machines mount at the same path, or use --engine local.",
)


class Superseded(Exception):  # noqa: N818  (not an error)
    """Another driver now owns the folder: the output of this task is no longer needed."""


@dataclass(frozen=True)
class Site:
    """A folder that driver and executors share.

    Attributes:
        root: the folder.
        token: random token that the driver wrote to it at the start.
        versions: versions of the libraries that affect the output.
    """

    root: Path
    token: str
    versions: tuple[tuple[str, str], ...]

    def folder(self, name: str) -> Path:
        """Return a subfolder; create it if it does not exist."""
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def is_current(self) -> bool:
        """Whether the driver that started this job still owns the folder."""
        try:
            return (self.root / _TOKEN).read_text(encoding="ascii") == self.token
        except OSError:
            return False

    def require_current(self) -> None:
        """Stop a task whose driver has ended, before it changes the output of another driver."""
        if not self.is_current:
            raise Superseded

    def publish(self, made: Path, target: Path) -> None:
        """Move a file of this task to its final path."""
        self.require_current()
        made.replace(target)


def open_site(root: Path, *, cleared: tuple[str, ...] = ()) -> Site:
    """Take ownership of a folder for this driver.

    Args:
        root: the folder, locked by this process.
        cleared: subfolders to empty.
    """
    site = Site(root.absolute(), uuid.uuid4().hex, tuple(sorted(decode_versions().items())))
    root.mkdir(parents=True, exist_ok=True)
    for name in ("errors", "seen", *cleared):
        shutil.rmtree(root / name, ignore_errors=True)
        site.folder(name)
    (root / _TOKEN).write_text(site.token, encoding="ascii")
    return site


@contextlib.contextmanager
def telling(site: Site) -> Iterator[None]:
    """Save a stepladder or disk error of the block in the folder for the driver."""
    try:
        yield
    except Superseded:
        return
    except StepladderError as error:
        kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), "DataError")
        parts = {"what": error.what, "where": error.where, "why": error.why, "fix": error.fix}
        _leave(site, {"kind": kind, **parts})
    except OSError as error:
        named = {"errno": error.errno, "text": error.strerror, "file": str(error.filename or "")}
        _leave(site, {"kind": "OSError", **named, "host": socket.gethostname()})
    finally:
        _keep_imports()


def _keep_imports() -> None:
    """Exclude imported modules from garbage collection.

    A Python worker of Spark runs a full collection after each task; with torch imported that takes
    0.15 s, as long as about a hundred pictures.
    """
    global _num_kept
    if len(sys.modules) > _num_kept:
        _num_kept = len(sys.modules)
        gc.freeze()


def raise_told(site: Site) -> None:
    """Raise the first error that a task has saved.

    Raises:
        StepladderError, OSError: the error of the task.
    """
    with contextlib.suppress(FileNotFoundError):
        for path in (site.root / "errors").iterdir():
            if path.suffix != ".json":
                continue
            found = read_json(path)
            kind = found.pop("kind")
            if kind == "OSError":
                raise OSError(found["errno"], f"{found['text']} on {found['host']}", found["file"])
            raise _KINDS[kind](**found)


def run_told(
    spark: SparkSession,
    site: Site,
    num_tasks: int,
    work: Callable[[int], str | None],
    *,
    on_poll: Callable[[], None] = lambda: None,
) -> dict[int, str | None]:
    """Run tasks, and raise the error of a task as soon as it is saved.

    Raises:
        StepladderError, OSError: the error of a task.
        ResourceError: if the Spark job fails.
    """

    def look() -> None:
        raise_told(site)
        on_poll()

    return run_tasks(spark, num_tasks, partial(_told, site, work), on_poll=look)


def require_shared(spark: SparkSession, site: Site, *, example: Path | None = None) -> None:
    """Check that executors see the folder and a file of the source, and have the same versions.

    Raises:
        ResourceError: if they do not; names the host.
    """
    work = partial(_look_around, site, example)
    num = max(1, num_slots(spark))
    answers = [json.loads(answer or "{}") for answer in run_tasks(spark, num, work).values()]
    wanted = dict(site.versions)
    for seen in answers:
        host = str(seen["host"])
        if not (seen["sees_root"] and (site.root / "seen" / str(seen["name"])).exists()):
            why, fix = why_not_shared(site.root) or _SHARED
            raise ResourceError(
                f"Spark's executor on the machine {host} does not share this folder with the "
                "driver (this process)",
                where=str(site.root),
                why=why,
                fix=fix,
            )
        if not seen["sees_example"]:
            raise ResourceError(
                f"Spark's executor on the machine {host} cannot open this file of the source",
                where=str(example),
                fix="Put the source on storage that all machines mount at the same path, or use "
                "an address that Spark can open, such as hdfs://… or s3a://….",
            )
        if seen["versions"] != wanted:
            names = sorted(name for name in wanted if wanted[name] != seen["versions"].get(name))
            differing = ", ".join(
                f"{name} {seen['versions'].get(name)} instead of {wanted[name]}" for name in names
            )
            raise ResourceError(
                f"library versions on {host} differ from the driver: {differing}",
                where="spark",
                why="Decoded pixels could differ between executors.",
                fix="Install the same versions on the driver and all executors.",
            )


def _told(site: Site, work: Callable[[int], str | None], task: int) -> str | None:
    with telling(site):
        return work(task)
    return None


def _look_around(site: Site, example: Path | None, task: int) -> str:
    name = f"{task}-{uuid.uuid4().hex}"
    sees_root = site.is_current
    if sees_root:
        with contextlib.suppress(OSError):
            (site.root / "seen" / name).touch()
    seen = {
        "host": socket.gethostname() or platform.node(),
        "name": name,
        "sees_root": sees_root,
        "sees_example": example is None or os.path.lexists(example),
        "versions": decode_versions(),
    }
    return json.dumps(seen)


def _leave(site: Site, found: dict[str, Any]) -> None:
    write_json(site.folder("errors") / f"{uuid.uuid4().hex}.json", found)

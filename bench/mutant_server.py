"""Runs tests on mutants: an order a line on stdin, an answer a line on stdout, a child for each."""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "STEPLADDER_BENCH_MUTANT"


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source than its file."""

    def __init__(self, module: str, file: str, source: str) -> None:
        self.module, self.file, self.source = module, file, source

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        is_package = self.file.endswith("__init__.py")
        return importlib.util.spec_from_file_location(
            fullname,
            self.file,
            loader=self,
            submodule_search_locations=[str(Path(self.file).parent)] if is_package else None,
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, self.file, "exec"), module.__dict__)


def install_from_environment() -> None:
    """Install the hook in a process that a test of a mutant has started."""
    path = os.environ.get(VARIABLE)
    if path:
        sys.meta_path.insert(0, Hook(**json.loads(Path(path).read_text())))


def _test(order: dict[str, Any], folder: Path) -> None:
    """Run the tests in this child, and end it with their exit code."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nowhere, handle)
    hook = {name: order[name] for name in ("module", "file", "source")}
    (folder / "hook.json").write_text(json.dumps(hook))
    os.environ[VARIABLE] = str(folder / "hook.json")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder)  # no mutant learns from another
    install_from_environment()
    import pytest

    class Recorder:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                (folder / "failed").write_text(report.nodeid)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                (folder / "failed").write_text(f"collecting {report.nodeid}")

    words = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    words.append(f"--basetemp={folder / 'tmp'}")
    code = pytest.main([*words, *order["tests"]], plugins=[Recorder()])
    os._exit(int(code))


def _answer(order: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        child = os.fork()
        if child == 0:
            try:
                _test(order, folder)
            finally:
                os._exit(99)
        code: int | None = None
        while code is None and time.monotonic() - started < order["timeout_s"]:
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.05)
        failed = folder / "failed"
        text = failed.read_text() if failed.exists() else ""
        if code is None:
            text = "timeout"
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return {
        "code": -1 if code is None else code,
        "seconds": time.monotonic() - started,
        "failed": text,
    }


def main() -> None:
    import numpy  # noqa: F401  (what tests import is imported once, before any child)
    import PIL.Image  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    sys.path.insert(0, str(Path.cwd()))
    for line in sys.stdin:
        answer = _answer(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

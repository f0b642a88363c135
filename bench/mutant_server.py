"""Run tests on mutants: one request per line on stdin, one answer per line on stdout.

Each request runs in a child process. A request without a list of tests records which functions each
test enters, in its body and its fixtures, and whether it starts a process.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

VARIABLE = "STEPLADDER_BENCH_MUTANT"


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import hook that loads one module from another source than its file."""

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
    """Install the hook in a process that a test of a mutant started."""
    path = os.environ.get(VARIABLE)
    if path:
        sys.meta_path.insert(0, Hook(**json.loads(Path(path).read_text())))


class Selection:
    """Run only some of the collected tests, with those that start processes last."""

    def __init__(self, selected: list[str]) -> None:
        self._places = {name: place for place, name in enumerate(selected)}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        kept = [item for item in items if item.nodeid in self._places]
        items[:] = sorted(kept, key=lambda item: self._places[item.nodeid])


class CallMap:
    """Record the functions of some folders that each test and its fixtures enter."""

    def __init__(self, below: str, into: Path) -> None:
        self._below, self._into = below, into
        self._by_test: dict[str, set[str]] = defaultdict(set)
        self._by_fixture: dict[int, set[str]] = defaultdict(set)
        self._definitions: list[Any] = []  # kept alive, so that ids are not reused
        self._current: list[set[str]] = []
        self._names: dict[Any, str | None] = {}

    def _called(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self._current:
            code = frame.f_code
            if code not in self._names:
                file = code.co_filename
                is_ours = file.startswith(self._below)
                self._names[code] = f"{file}:{code.co_name}" if is_ours else None
            name = self._names[code]
            if name is not None:
                for names in self._current:
                    names.add(name)

    def _audited(self, event: str, _arguments: object) -> None:
        if event in {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec"}:
            for names in self._current:
                names.add("process")

    def pytest_sessionstart(self) -> None:
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        sys.addaudithook(self._audited)

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._current[:] = [self._by_test[item.nodeid]]
        sys.setprofile(self._called)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        self._definitions.append(fixturedef)
        self._current.append(self._by_fixture[id(fixturedef)])
        result = yield
        self._current.pop()
        return result

    def pytest_runtest_teardown(self, item: Any) -> None:
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            self._by_test[item.nodeid] |= self._by_fixture[id(definitions[-1])]

    def pytest_sessionfinish(self) -> None:
        sys.setprofile(None)
        calls = {test: sorted(names) for test, names in self._by_test.items()}
        self._into.write_text(json.dumps(calls))


def _test(order: dict[str, Any], folder: Path) -> None:
    """Run the tests in this child, and exit with their exit code."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nowhere, handle)
    hook = {name: order[name] for name in ("module", "file", "source")}
    (folder / "hook.json").write_text(json.dumps(hook))
    os.environ[VARIABLE] = str(folder / "hook.json")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder)  # so that mutants are independent
    install_from_environment()

    class Recorder:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                with (folder / "failed").open("a") as out:
                    out.write(f"{report.nodeid}\n")

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                (folder / "failed").write_text(f"collecting {report.nodeid}")

    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"]
    words.append(f"--basetemp={folder / 'tmp'}")
    if order["selected"] is None:
        plugin: object = CallMap(order["below"], folder / "calls")
    else:
        plugin = Selection(order["selected"])
        words.append("-x")
    code = pytest.main([*words, *order["tests"]], plugins=[Recorder(), plugin])
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
        text = failed.read_text().strip() if failed.exists() else ""
        if code is None:
            text = "timeout"
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        calls = folder / "calls"
        by_test = json.loads(calls.read_text()) if calls.exists() else None
    return {
        "code": -1 if code is None else code,
        "seconds": time.monotonic() - started,
        "failed": text,
        "calls": by_test,
    }


def main() -> None:
    import numpy  # noqa: F401  (what tests import is imported once, before any child)
    import PIL.Image  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch  # noqa: F401

    sys.path.insert(0, str(Path.cwd()))
    for line in sys.stdin:
        answer = _answer(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

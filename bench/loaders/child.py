"""The process of a contender, driven over pipes, and the list of contenders."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import stepladder
from bench.loaders.contract import Job, Kind, Line, Setting
from bench.measure import ROOT

PYTHONPATH = os.pathsep.join([str(ROOT), str(Path(stepladder.__file__).parents[1])])
MODULES = (
    "ours",
    "memory_copy",
    "one_core",
    "torch_loader",
    "hugging_face",
    "hugging_face_stream",
    "web_dataset",
    "mosaic",
    "lit_data",
    "tensor_flow",
    "ray_data",
    "ffcv_loader",
    "dali",
    "lance_data",
    "lance_db",
    "petastorm_reader",
    "parquet_files",
    "bound",
    "bound_hashed",
)
ANSWER_S = 240.0
CLOSE_S = 20.0
_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


class ContenderError(Exception):
    """A contender could not do what was requested."""


def module(name: str) -> ModuleType:
    """Import a contender's module, which does not import the contender's package."""
    return importlib.import_module(f"bench.loaders.contenders.{name}")


class Pythons:
    """The Python of each contender: --venv NAME=PATH, LOADERS_PYTHON_NAME, or this one."""

    def __init__(self, given: list[str]) -> None:
        pairs = dict(pair.split("=", 1) for pair in given)
        unknown = sorted(set(pairs) - {*MODULES, "peers"})
        if unknown:
            raise SystemExit(
                f"--venv: unknown contender {unknown[0]!r}: use one of {', '.join(MODULES)}"
            )
        self._given = pairs
        self._versions: dict[str, str | None] = {}

    def of(self, name: str) -> str:
        """Return the Python of a contender; `peers` is a default for all that need a package."""
        shared = self._given.get("peers") if module(name).PACKAGE else None
        variable = os.environ.get(f"LOADERS_PYTHON_{name.upper()}")
        found = self._given.get(name) or variable or shared or sys.executable
        path = Path(found)
        return str(path / "bin" / "python") if path.is_dir() else found

    def version(self, name: str) -> str | None:
        """Return the version of a contender's package; None if it is not installed."""
        package = module(name).PACKAGE
        if package is None:
            return "-"
        if name not in self._versions:
            command = [self.of(name), "-c", _VERSION, package]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            self._versions[name] = done.stdout.strip() if done.returncode == 0 else None
        return self._versions[name]


class Child:
    """The process of one contender."""

    def __init__(self, name: str, python: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._log = log.open("a")
        self._process = subprocess.Popen(
            [python, "-m", "bench.loaders.serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "TOKENIZERS_PARALLELISM": "false"},
        )

    def ask(self, do: str, **question: Any) -> dict[str, Any]:
        """Send a request, and wait for the answer.

        Raises:
            ContenderError: if it failed, or its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **question}, default=str) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ContenderError(self._ended()) from None
        if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
            raise ContenderError(f"no answer within {ANSWER_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(self._ended())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ContenderError(answer["error"])
        return answer

    def write(self, job: Job, setting: Setting) -> dict[str, Any]:
        return self.ask("write", job=asdict(job), setting=setting)

    def open(self, job: Job, setting: Setting) -> None:
        self.ask("open", job=asdict(job), setting=setting)

    def close(self) -> None:
        """End the process and its children."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # a process group of its own
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ended(self) -> str:
        return f"its process exited with code {self._process.wait()}; see {self._log.name}"


def lines_of(kind: Kind) -> list[tuple[str, Line]]:
    """List the lines of a kind, each with the name of its module."""
    return [(name, line) for name in MODULES for line in module(name).LINES if line.kind is kind]

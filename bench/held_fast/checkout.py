"""A checkout of this project, old or new, whose commands and probes run in their own processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROBES = Path(__file__).with_name("probes.py")
MAX_LINES = 20


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A work tree whose `src` is first on the path of each process started for it.

    Attributes:
        name: "old" or "new".
        root: its top folder.
    """

    name: str
    root: Path

    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process that imports this checkout."""
        return os.environ | {
            "PYTHONPATH": str(self.root / "src"),
            "COLUMNS": "1000",
            "HF_HUB_OFFLINE": "1",  # no time is spent on weights that a machine cannot reach
            "PYTHONHASHSEED": "0",
        }

    def start(
        self, words: Sequence[str | Path], *, cwd: Path, **options: Any
    ) -> subprocess.Popen[str]:
        """Start Python with these arguments."""
        command = [sys.executable, *map(str, words)]
        return subprocess.Popen(command, cwd=cwd, env=self.environment(), text=True, **options)

    def command(
        self, *words: str | Path, cwd: Path, timeout_s: float = 1800
    ) -> subprocess.CompletedProcess[str]:
        """Run `stepladder WORDS` to its end."""
        return subprocess.run(
            [sys.executable, "-P", "-m", "stepladder", *map(str, words)],
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def require(self, *words: str | Path, cwd: Path, timeout_s: float = 1800) -> str:
        """Run `stepladder WORDS`, and return its standard output.

        Raises:
            RuntimeError: if it fails.
        """
        done = self.command(*words, cwd=cwd, timeout_s=timeout_s)
        if done.returncode:
            words_text = " ".join(map(str, words))
            raise RuntimeError(
                f"{self.name}: `stepladder {words_text}` exited with code {done.returncode}:\n"
                f"{done.stderr[-2000:]}"
            )
        return done.stdout

    def probe(
        self, name: str, arguments: Mapping[str, Any], *, cwd: Path, timeout_s: float = 3600
    ) -> Any:
        """Call a function of probes.py in a process of this checkout and return its result.

        Raises:
            RuntimeError: if it fails.
        """
        cwd.mkdir(parents=True, exist_ok=True)
        given, made = cwd / f"{name}.{self.name}.in.json", cwd / f"{name}.{self.name}.out.json"
        given.write_text(json.dumps(arguments))
        done = subprocess.run(
            [sys.executable, "-P", str(PROBES), name, str(given), str(made)],
            cwd=cwd,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: probe {name} failed:\n{done.stderr[-3000:]}")
        return json.loads(made.read_text())


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """List the paths at which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = [f"{where}: removed: {key}" for key in old if key not in new]
        found += [f"{where}: added: {key}" for key in new if key not in old]
        for key in old:
            if key in new:
                found += differences(old[key], new[key], f"{where}/{key}")
        return found
    if isinstance(old, list) and isinstance(new, list):
        found = [] if len(old) == len(new) else [f"{where}: {len(old)} items, now {len(new)}"]
        for idx, (one, other) in enumerate(zip(old, new, strict=False)):
            found += differences(one, other, f"{where}/{idx}")
        return found
    if old == new and type(old) is type(new):
        return []
    if isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new):
        return []  # both are NaN
    return [f"{where}: {old!r}, now {new!r}"]


def key_paths(value: Any, where: str = "") -> set[str]:
    """Return the paths of all keys in a JSON value; all items of a list share one path."""
    if isinstance(value, dict):
        nested = [key_paths(item, f"{where}.{key}") for key, item in value.items()]
        return {f"{where}.{key}" for key in value}.union(*nested)
    if isinstance(value, list):
        return set().union(*(key_paths(item, f"{where}[]") for item in value))
    return set()


def set_differences(old: set[str], new: set[str], where: str) -> list[str]:
    """List the items that only one of two sets holds."""
    gone = [f"{where}: removed: {item}" for item in sorted(old - new)]
    return gone + [f"{where}: added: {item}" for item in sorted(new - old)]


def at_most(lines: Sequence[str], count: int = MAX_LINES) -> list[str]:
    """Return the first lines, and the number of further ones."""
    left = len(lines) - count
    more = [f"... and {left} more"] if left > 0 else []
    return [*itertools.islice(lines, count), *more]

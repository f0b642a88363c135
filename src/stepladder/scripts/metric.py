"""The number by which a user judges what a script has learnt, read when the script has ended."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from stepladder.errors import UsageError

_FILE_AND_KEY: Final = re.compile(r"(?P<file>[^()*?\[\]|]+\.jsonl?):(?P<key>[\w.@/ -]+)")
_FILE_AND_FUNCTION: Final = re.compile(r"(?P<file>[^()*?\[\]|]+\.py):(?P<function>[A-Za-z_]\w*)")
_EXAMPLE: Final = r"Type one such as: --metric 'accuracy: ([0-9.]+)'"
_FUNCTION_S: Final = 600.0
_CALL: Final = """
import runpy, sys
found = runpy.run_path(sys.argv[1]).get(sys.argv[2])
if found is None:
    sys.exit(f"{sys.argv[1]} has no function {sys.argv[2]}")
print("\\n" + repr(float(found())))
"""


class MetricFrom(StrEnum):
    """Where a metric is read."""

    OUTPUT = "output"
    JSON = "json"
    FUNCTION = "function"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that a script leaves behind.

    Attributes:
        text: as the user typed it.
        source: where it is read.
        file: the JSON file, relative to the folder of the run, or the Python file.
        name: key in the JSON file, with a dot between levels, or name of the function.
    """

    text: str
    source: MetricFrom
    file: str = ""
    name: str = ""

    def value(self, *, output: str, folder: Path, began: float, env: Mapping[str, str]) -> float:
        """Return the number that one run has left behind.

        Args:
            output: what the run has printed.
            folder: in which it ran.
            began: time at which it began, in seconds since 1970.
            env: its environment, for a function.

        Raises:
            UsageError: if it is missing, or not finite.
        """
        if self.source is MetricFrom.OUTPUT:
            value = self._in_output(output)
        elif self.source is MetricFrom.JSON:
            value = self._in_json(folder / self.file, began)
        else:
            value = self._of_function(folder, env)
        if not math.isfinite(value):
            raise self._error(f"the metric of the script is {value}", fix=_EXAMPLE)
        return value

    def _in_output(self, output: str) -> float:
        found = re.findall(self.text, output)
        try:
            return float(found[-1] if found else "")
        except ValueError:
            lines = [line for line in output.splitlines() if line.strip()]
            raise self._error(
                "the output of the script has no number that this expression finds",
                why=f"Its last line is: {lines[-1][:200]}" if lines else "It prints nothing.",
                fix=r"Put the number into brackets: --metric 'accuracy: ([0-9.]+)'",
            ) from None

    def _in_json(self, file: Path, began: float) -> float:
        if not file.is_file() or file.stat().st_mtime < began - 1:
            raise self._error(
                f"the script does not write {self.file} in the folder in which it runs",
                fix="Name the file as the script does, or use a number that it prints: "
                "--metric 'accuracy: ([0-9.]+)'",
            )
        text = file.read_text(encoding="utf-8")
        try:
            if self.file.endswith(".jsonl"):
                records = [json.loads(line) for line in text.splitlines() if line.strip()]
                value = next(one for one in map(self._at_key, reversed(records)) if one is not None)
            else:
                value = self._at_key(json.loads(text))
            return float(value)  # type: ignore[arg-type]
        except (ValueError, TypeError, StopIteration):
            raise self._error(
                f"{self.file} has no number at the key {self.name}",
                why=f"It begins with: {' '.join(text.split())[:200]}",
                fix="Use a dot between levels: --metric results.json:val.accuracy",
            ) from None

    def _at_key(self, found: object) -> object:
        """Return what lies at the key; of a list, its last one. None: nothing."""
        if isinstance(found, dict) and self.name in found:
            found = found[self.name]  # the dots may be part of a name
        else:
            for part in self.name.split("."):
                if isinstance(found, list):
                    found = found[-1] if found else None
                found = found.get(part) if isinstance(found, dict) else None
        return found[-1] if isinstance(found, list) and found else found

    def _of_function(self, folder: Path, env: Mapping[str, str]) -> float:
        command = [sys.executable, "-c", _CALL, str(Path(self.file).resolve()), self.name]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FUNCTION_S,
                check=False,
            )
            return float(done.stdout.splitlines()[-1])
        except (IndexError, ValueError):
            lines = done.stderr.strip().splitlines()
            raise self._error(
                "the function returns no number",
                why=lines[-1] if lines else None,
                fix="Let it return a number; it is called without arguments, in the folder of the "
                "run, after the script has ended.",
            ) from None
        except subprocess.TimeoutExpired:
            raise self._error(
                f"the function has not returned after {_FUNCTION_S:.0f} s",
                fix="Let it compute its number from fewer data.",
            ) from None

    def _error(self, what: str, *, fix: str, why: str | None = None) -> UsageError:
        return UsageError(what, where=f"--metric {self.text}", why=why, fix=fix)


def metric_of(text: str) -> Metric:
    """Return the metric that a user means.

    Args:
        text: a regular expression with one group, for the output of the script; `FILE.json:KEY`;
            or `FILE.py:FUNCTION`.

    Raises:
        UsageError: if it is something else.
    """
    if found := _FILE_AND_KEY.fullmatch(text):
        return Metric(text=text, source=MetricFrom.JSON, file=found["file"], name=found["key"])
    if found := _FILE_AND_FUNCTION.fullmatch(text):
        if not Path(found["file"]).is_file():
            raise UsageError(
                f"{found['file']} does not exist",
                where=f"--metric {text}",
                fix="Name a Python file and a function in it: --metric score.py:accuracy",
            )
        name = found["function"]
        return Metric(text=text, source=MetricFrom.FUNCTION, file=found["file"], name=name)
    try:
        num = re.compile(text).groups
    except re.error as error:
        raise UsageError(
            f"this is not a regular expression: {error}", where=f"--metric {text}", fix=_EXAMPLE
        ) from None
    if num != 1:
        raise UsageError(
            f"the regular expression has {num} groups, not one",
            where=f"--metric {text}",
            fix="Put the number into brackets: --metric 'accuracy: ([0-9.]+)'\n"
            "Or name a key of a JSON file, or a function: --metric results.json:accuracy, "
            "--metric score.py:accuracy",
        )
    return Metric(text=text, source=MetricFrom.OUTPUT)

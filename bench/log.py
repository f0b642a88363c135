"""Log of a benchmark's finished measurements, one per line; these are not repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.measure import environment
from stepladder.records import read_jsonl, to_json

ENVIRONMENT = "environment"
UNKNOWN = {"machine and versions": "not written down"}


class Log:
    """Records in a file, with the machine and versions of each process that wrote some.

    Each process writes its environment before its first record, so that results that are written
    again from the log name the machine that was measured.

    Attributes:
        lines: all lines, oldest first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = list(read_jsonl(path))
        self._is_begun = False

    @property
    def records(self) -> list[dict[str, Any]]:
        """The measurements."""
        return [line for line in self.lines if ENVIRONMENT not in line]

    @property
    def environment(self) -> dict[str, Any]:
        """Machine and versions of the last records; unknown for an older log."""
        found = [line[ENVIRONMENT] for line in self.lines if ENVIRONMENT in line]
        return found[-1] if found else UNKNOWN

    def find(self, **key: object) -> dict[str, Any] | None:
        """Return the record with these values, or None."""
        for record in self.records:
            if all(record.get(name) == value for name, value in key.items()):
                return dict(record)
        return None

    def add(self, record: dict[str, Any]) -> None:
        """Append a record."""
        if not self._is_begun:
            self._is_begun = True
            self._write("\n", {ENVIRONMENT: environment()})  # ends an incomplete line
        self._write("", record)

    def _write(self, before: str, line: dict[str, Any]) -> None:
        plain = to_json(line)
        self.lines.append(plain)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{before}{json.dumps(plain)}\n")

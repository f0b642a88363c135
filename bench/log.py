"""What a benchmark has measured, a line each: what is there is not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.measure import environment
from stepladder.records import read_jsonl, to_json

ENVIRONMENT = "environment"
UNKNOWN = {"machine and versions": "not written down"}


class Log:
    """Records in a file, between them the machine and the versions that they were measured with.

    Each process writes these before its first record. So a result that is written again from the
    log alone names what was measured, and not what happens to write it.

    Attributes:
        lines: all of them, oldest first.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = list(read_jsonl(path))
        self._is_begun = False

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines that were measured."""
        return [line for line in self.lines if ENVIRONMENT not in line]

    @property
    def environment(self) -> dict[str, Any]:
        """Machine and versions of the last records; that they are unknown of an older log."""
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
            self._write("\n", {ENVIRONMENT: environment()})  # ends a line that a kill left torn
        self._write("", record)

    def _write(self, before: str, line: dict[str, Any]) -> None:
        plain = to_json(line)
        self.lines.append(plain)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{before}{json.dumps(plain)}\n")

"""Read a run folder: everything that is readable, and a list of what is not."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.errors import DataError
from stepladder.records import read_json, read_jsonl
from stepladder.records.diagnosis import Diagnosis
from stepladder.records.from_json import from_json
from stepladder.reporting.addresses import picture_address
from stepladder.reporting.ladder.climb_data import ClimbRecords, read_climb
from stepladder.reporting.pages.checks_page import ChecksView, checks_view
from stepladder.training.output.events import redacted

MAX_THUMBS = 12
_ENDS_WITH_LAST = re.compile(r"^stopping:\n(?:[ #].*\n)*? +restore_best: *false\b", re.MULTILINE)
_LARGEST = 1e100  # its sums and squares are finite


@dataclass(frozen=True, kw_only=True)
class Thumb:
    """A picture with a large loss; the address is a data: URI, or empty if it is missing."""

    address: str
    path: str
    label: str
    predicted: str
    probability: float | None
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Content of a run folder.

    Attributes:
        name: the folder's name.
        summary, env: the JSON files; empty if they cannot be read.
        events: by kind, in the order of the file; numbers are floats, including nan.
        outcomes: by split, the number of pictures by (label, predicted).
        config_text: config.yaml, with secrets removed.
        climb: content of the climb; None without a climb.
        checks: content of checks.json; None if it does not exist.
        diagnosis: content of diagnosis.json; None if it does not exist.
        missing: what could not be read, one sentence each.
        is_summary_damaged: summary.json exists but cannot be read.
    """

    name: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    events: Mapping[str, tuple[dict[str, Any], ...]] = field(default_factory=dict)
    outcomes: Mapping[str, Counter[tuple[str, str]]] = field(default_factory=dict)
    thumbs: tuple[Thumb, ...] = ()
    config_text: str = ""
    env: Mapping[str, Any] = field(default_factory=dict)
    climb: ClimbRecords | None = None
    checks: ChecksView | None = None
    diagnosis: Diagnosis | None = None
    missing: tuple[str, ...] = ()
    is_summary_damaged: bool = False

    def of(self, kind: str) -> tuple[dict[str, Any], ...]:
        """Return the events of a kind, oldest first."""
        return self.events.get(kind, ())

    @property
    def ends_with_best(self) -> bool:
        """True if the result is that of the best weights, according to config.yaml."""
        return _ENDS_WITH_LAST.search(self.config_text) is None


def read_run(run: Path) -> RunRecords:
    """Read a run folder, however the run ended.

    Raises:
        DataError: if the folder does not exist or does not contain a run.
    """
    if not run.is_dir():
        raise DataError(
            "the run folder does not exist",
            where=str(run),
            fix="Pass a run folder, written by `stepladder train`, with the file events.jsonl.",
        )
    missing: list[str] = []
    climb = read_climb(run, missing)
    summary = _object(run / "summary.json", missing)
    events = _events(run / "events.jsonl", missing)
    if not summary and not events and not climb and not (run / "config.yaml").exists():
        raise DataError(
            "this is not the folder of a run: it has no config.yaml, events.jsonl, trials.jsonl or "
            "summary.json",
            where=str(run),
            fix="Pass a folder that stepladder train or stepladder climb wrote (its --run.dir).",
        )
    return RunRecords(
        name=run.resolve().name,
        summary=summary,
        events=events,
        outcomes=_outcomes(run / "predictions.csv", missing),
        thumbs=_thumbs(run / "thumbs", missing),
        config_text=redacted(_text(run / "config.yaml", missing)),
        env=_object(run / "env.json", missing),
        climb=climb,
        checks=checks_view(run),
        diagnosis=_diagnosis(run / "diagnosis.json"),
        missing=tuple(missing),
        is_summary_damaged=not summary and (run / "summary.json").exists(),
    )


def _diagnosis(path: Path) -> Diagnosis | None:
    try:
        return from_json(Diagnosis, read_json(path))
    except (DataError, OSError):
        return None


def number(value: object) -> float | None:
    """Return a number that can be drawn; None for anything else (`"nan"`, text, 1e300, True)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LARGEST else None  # false for nan


def fraction(value: object) -> float | None:
    """Return a number in [0, 1]; None for anything else."""
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def count(value: object) -> int:
    """Return a count; 0 for anything else."""
    found = number(value)
    return int(found) if found is not None and 0 < found < 2**53 else 0


def _object(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        value = read_json(path)
    except (DataError, OSError) as error:
        missing.append(f"{path.name}: {error.what if isinstance(error, DataError) else error}.")
        return {}
    if isinstance(value, dict):
        return value
    missing.append(f"{path.name} is not a JSON object.")
    return {}


def _text(path: Path, missing: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        missing.append(f"{path.name}: the file does not exist or cannot be read.")
        return ""


def _events(path: Path, missing: list[str]) -> dict[str, tuple[dict[str, Any], ...]]:
    by_kind: dict[str, list[dict[str, Any]]] = {}
    try:
        for record in read_jsonl(path):
            by_kind.setdefault(str(record.get("event")), []).append(record)
    except OSError as error:
        missing.append(f"{path.name}: {error.strerror}.")
    if not by_kind:
        missing.append(f"{path.name} is missing or empty: no curves are shown.")
    return {kind: tuple(records) for kind, records in by_kind.items()}


def _outcomes(path: Path, missing: list[str]) -> dict[str, Counter[tuple[str, str]]]:
    counts: dict[str, Counter[tuple[str, str]]] = {}
    has_rows = False
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            for row in csv.DictReader(file):
                split, label, predicted = (row.get(k) for k in ("split", "label", "predicted"))
                has_rows = True
                if not (label or predicted or row.get("probability")):
                    continue  # a task without classes
                if split and label is not None and predicted is not None:
                    pair = (_unguarded(label), _unguarded(predicted))
                    counts.setdefault(split, Counter())[pair] += 1
    except (OSError, csv.Error):
        pass
    if not counts:
        why = "contains no classes" if has_rows else "is missing or empty"
        missing.append(f"{path.name} {why}: results by class are not shown.")
    return counts


def _unguarded(cell: str) -> str:
    """Remove the quote that prevents a spreadsheet from running a cell as a formula."""
    return cell[1:] if cell[:1] == "'" and cell[1:2] in ("=", "+", "-", "@", "\t", "\r") else cell


def _thumbs(folder: Path, missing: list[str]) -> tuple[Thumb, ...]:
    try:
        listed = read_json(folder / "thumbs.json")
    except (DataError, OSError):
        listed = None
    if not isinstance(listed, list):
        missing.append("thumbs/thumbs.json is missing: no pictures are shown.")
        return ()
    entries = [entry for entry in listed if isinstance(entry, dict)][:MAX_THUMBS]
    return tuple(
        Thumb(
            address=_address(folder, str(entry.get("file", ""))),
            path=str(entry.get("path", "")),
            label=str(entry.get("label", "")),
            predicted=str(entry.get("predicted", "")),
            probability=number(entry.get("probability")),
            loss=number(entry.get("loss")),
        )
        for entry in entries
    )


def _address(folder: Path, name: str) -> str:
    """Return a picture as a data: URI; empty if it is not a small JPEG or PNG in the folder."""
    if not name or Path(name).name != name:
        return ""
    try:
        data = (folder / name).read_bytes()
    except (OSError, ValueError):
        return ""
    return picture_address(data)


def pretty_json(value: object) -> str:
    """Return indented JSON, with secrets removed."""
    return redacted(json.dumps(value, indent=2, ensure_ascii=False))

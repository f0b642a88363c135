"""Printed output that a service stored as JSON, one object for each line or piece of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepladder.diagnosis.logs.files.json_log import read_whole_entries
from stepladder.diagnosis.logs.meaning.column_names import ACCURACIES, LOSSES, meaning, score_rank

_LISTS = ("events", "entries")  # of CloudWatch, of Google Cloud
_KEY = re.compile(r'"(?:stream_name|log|textPayload|jsonPayload|@?message)"\s*:')
_START = 100_000  # characters that have the first key
_MIN_SHARE = 0.8  # of the objects, that have a text: those of a service differ


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """Printed output, and the service in whose objects it was."""

    text: str
    service: str


def unwrap(text: str) -> Wrapped | None:
    """Return the output in a JSON array or in JSON lines; None for any other text.

    Read are the log of a Kaggle notebook, Docker's JSON lines, and exports of CloudWatch and of
    Google Cloud (Vertex AI). Objects that have losses or metrics themselves are no wrapping.
    """
    start = text[:_START].lstrip("\ufeff \t\r\n")
    if start[:1] not in ("[", "{") or not _KEY.search(start):
        return None
    items = _objects(text)
    found = [part for item in items if (part := _part(item)) is not None]
    if not found or len(found) < _MIN_SHARE * len(items) or any(map(_has_metric, items)):
        return None
    parts = [part for _, part in found]
    is_whole_lines = not any(part.endswith(("\n", "\r")) for part in parts)
    return Wrapped(text=("\n" if is_whole_lines else "").join(parts), service=found[0][0])


def _objects(text: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects of an array or of lines; the last one may be truncated."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        lines = _of_lines(text)
        value = lines if len(lines) > 1 else read_whole_entries(text)
    if isinstance(value, Mapping):
        lists = [value[name] for name in _LISTS if isinstance(value.get(name), list)]
        value = lists[0] if lists else [value]
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _of_lines(text: str) -> list[Any]:
    found = []
    for line in text.splitlines():
        if not line.startswith("{"):  # a comma begins the lines of Kaggle's array
            continue
        try:
            found.append(json.loads(line.rstrip().rstrip(",")))
        except json.JSONDecodeError:
            continue
    return found


def _part(item: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (the service, the text of one of its objects)."""
    payload = item.get("jsonPayload")
    places: Iterable[tuple[str, object]] = (
        ("Kaggle", item.get("data") if "stream_name" in item else None),
        ("Docker", item.get("log")),
        ("Google Cloud", item.get("textPayload")),
        ("Google Cloud", payload.get("message") if isinstance(payload, Mapping) else None),
        ("CloudWatch or similar", item.get("message")),
        ("CloudWatch or similar", item.get("@message")),
    )
    return next(((service, text) for service, text in places if isinstance(text, str)), None)


def _has_metric(item: Mapping[str, Any]) -> bool:
    return any(
        isinstance(value, (int, float))
        and (meaning(name) in ACCURACIES | LOSSES or score_rank(name) is not None)
        for name, value in item.items()
    )

"""What tasks are to do and what they found, as files of the shared folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepladder.config.choices import Split
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.records import read_json


def write_listed(path: Path, files: Iterable[tuple[str, Hashed | None]]) -> None:
    """Write names of files, and what an earlier run knows of them."""
    rows = [[name, known and _hashed_to_json(known)] for name, known in files]
    _write(path, {"files": rows})


def read_listed(path: Path) -> list[tuple[str, Hashed | None]]:
    """Read what `write_listed` wrote."""
    return [(name, known and _hashed_from_json(known)) for name, known in read_json(path)["files"]]


def write_shard_plan(path: Path, plan: ShardPlan) -> None:
    """Write which pictures a shard holds."""
    rows = [[row.path, row.label, _hashed_to_json(row.hashed)] for row in plan.rows]
    value = {"name": plan.name, "split": plan.split.value, "key": plan.key, "rows": rows}
    _write(path, {**value, "forecast_bytes": plan.forecast_bytes})


def read_shard_plan(path: Path) -> ShardPlan:
    """Read what `write_shard_plan` wrote."""
    value = read_json(path)
    rows = tuple(
        Row(name, label, _hashed_from_json(hashed)) for name, label, hashed in value["rows"]
    )
    return ShardPlan(
        name=value["name"],
        split=Split(value["split"]),
        rows=rows,
        key=value["key"],
        forecast_bytes=value["forecast_bytes"],
    )


def _hashed_to_json(hashed: Hashed) -> list[Any]:
    """Write what is known of a file."""
    return [hashed.sha256.hex(), *hashed.stamp, hashed.changed_ns, hashed.reason]


def _hashed_from_json(value: Sequence[Any]) -> Hashed:
    """Read what is known of a file."""
    digest, size, mtime, inode, changed_ns, reason = value
    return Hashed(bytes.fromhex(digest), (size, mtime, inode), reason, changed_ns)


def _write(path: Path, value: object) -> None:
    """Write in one step, not synced: what a power cut takes is made anew."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(value), encoding="ascii")
    temporary.replace(path)

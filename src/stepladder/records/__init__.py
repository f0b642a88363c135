"""Records that are saved to disk or passed between packages: frozen dataclasses, JSON, JSONL."""

from stepladder.records.files import (
    Json,
    fsync_dir,
    fsync_file,
    read_json,
    read_jsonl,
    to_json,
    write_bytes,
    write_json,
)
from stepladder.records.store import Manifest, ShardInfo

__all__ = [
    "Json",
    "Manifest",
    "ShardInfo",
    "fsync_dir",
    "fsync_file",
    "read_json",
    "read_jsonl",
    "to_json",
    "write_bytes",
    "write_json",
]

"""What a store holds, as its manifest says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ShardInfo:
    """One Parquet file of a store."""

    name: str
    split: str
    num_rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a store holds. Has no time, host, engine or absolute path: same pictures, same bytes.

    Attributes:
        fingerprint: sha256 over everything else here; the store's identity.
        encoding: pixels or jpeg.
        size: height and width of a picture as the reader yields it, in pixels.
        fit: pad or crop.
        classes: class names; a label is an index into it.
        class_counts: for each split, pictures of each class, in the order of classes.
        channel_sum, channel_sq_sum: over evenly spaced pixels of all pictures of train, per
            channel R, G, B, as integers.
        num_pixels: pixels of train behind those sums.
        options: the prepare options that shape the bytes.
        versions: decoder and library versions that shape the bytes.
    """

    format_version: int = 1
    fingerprint: str = ""
    encoding: str
    size: int
    fit: str
    classes: tuple[str, ...]
    class_counts: dict[str, tuple[int, ...]]
    channel_sum: tuple[int, int, int]
    channel_sq_sum: tuple[int, int, int]
    num_pixels: int
    shards: tuple[ShardInfo, ...]
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def num_rows(self, split: str) -> int:
        """Count the pictures of a split (0 if the store has no such split)."""
        return sum(self.class_counts.get(split, ()))

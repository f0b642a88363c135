"""The manifest of a store."""

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
    """The manifest of a store. Deterministic: has no time, host, engine or absolute path.

    Attributes:
        format_version: version of the format.
        fingerprint: sha256 of all other fields; the store's identity.
        encoding: pixels or jpeg.
        size: height and width of the pictures that a reader yields, in pixels.
        fit: pad or crop.
        classes: class names; a label is an index into it.
        class_counts: for each split, number of pictures of each class, in the order of classes.
        channel_sum, channel_sq_sum: over evenly spaced pixels of all pictures of train, per
            channel R, G, B, as integers.
        num_pixels: number of pixels in those sums.
        shards: the Parquet files.
        options: the prepare options that affect the bytes.
        versions: decoder and library versions that affect the bytes.
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

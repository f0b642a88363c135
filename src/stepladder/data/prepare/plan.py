"""Plan a store before any picture is decoded: rows, order, files and disk space."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stepladder.config.choices import Compression, Encoding, JpegSize, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.sources.listing import Listing
from stepladder.errors import ResourceError
from stepladder.machine.limits import disk_free_bytes

MAX_MEAN_SHARD_BYTES = 64 << 20
_RESIZED_BYTES_PER_PIXEL = 0.9  # of a photograph at quality 90; a high estimate
_RECORD_VERSION = 4  # incremented whenever the format of a finished file's record changes
ROW_OVERHEAD_BYTES = 256  # sha256, path, label, page header, side index


@dataclass(frozen=True, slots=True)
class Row:
    """One picture of the store."""

    path: str
    label: int
    hashed: Hashed

    @property
    def sha256(self) -> bytes:
        """Hash of the source file."""
        return self.hashed.sha256

    @property
    def size_bytes(self) -> int:
        """Size of the source file."""
        return self.hashed.size_bytes


@dataclass(frozen=True)
class ShardPlan:
    """One file of the store; rows sorted by (sha256, path).

    Attributes:
        key: hash of everything that determines the file's bytes; a file with another key is stale.
        forecast_bytes: estimated size.
    """

    name: str
    split: Split
    rows: tuple[Row, ...]
    key: str
    forecast_bytes: int


@dataclass(frozen=True)
class Plan:
    """All files of the store, in order.

    Attributes:
        classes: class names, sorted.
        options: the options that affect the bytes, and `source`, a hash of all planned rows.
    """

    classes: tuple[str, ...]
    shards: tuple[ShardPlan, ...]
    options: dict[str, Any]

    @cached_property
    def num_rows(self) -> int:
        """Count the planned pictures."""
        return sum(len(shard.rows) for shard in self.shards)

    def counts(self) -> dict[Split, Counter[str]]:
        """Count the planned pictures of each class in each split."""
        counts: dict[Split, Counter[str]] = defaultdict(Counter)
        for shard in self.shards:
            counts[shard.split].update(self.classes[row.label] for row in shard.rows)
        return counts


def make_plan(
    listing: Listing,
    hashes: Sequence[Hashed],
    splits: Sequence[Split],
    *,
    config: PrepareConfig,
    versions: Mapping[str, str],
) -> Plan:
    """Assign the good pictures to files by the first hex digits of their sha256.

    The number of digits depends on the size of the split: a file has about 4 to 64 MiB.

    Args:
        listing: the pictures of the source.
        hashes: one for each picture; those with a reason are left out.
        splits: one for each picture.
        config: the options.
        versions: versions of the libraries that affect the bytes.
    """
    classes = tuple(sorted({picture.label for picture in listing.pictures}))
    label_of = {name: label for label, name in enumerate(classes)}
    rows: dict[Split, list[Row]] = {split: [] for split in Split}
    for picture, hashed, split in zip(listing.pictures, hashes, splits, strict=True):
        if hashed.reason is None:
            rows[split].append(Row(picture.path, label_of[picture.label], hashed))
    options = _options(config)
    base = json.dumps([_RECORD_VERSION, options, dict(versions)], sort_keys=True)
    shards: list[ShardPlan] = []
    for split in Split:
        rows[split].sort(key=lambda row: (row.sha256, os.fsencode(row.path)))
        shards += _cut(rows[split], split, config=config, base=base)
    drawn = {"val_frac": config.val_frac, "group_by": config.group_by}
    drawn = drawn if listing.has_drawn_val else {}
    source = _digest_rows(shards, classes)
    return Plan(classes, tuple(shards), {**options, **drawn, **listing.origin, "source": source})


def _options(config: PrepareConfig) -> dict[str, Any]:
    """Return the options that affect a picture's bytes."""
    options: dict[str, Any] = {
        "size": config.size,
        "fit": config.fit.value,
        "encoding": config.encoding.value,
        "max_pixels": config.max_pixels,
    }
    if config.max_sample_value is not None:
        options["max_sample_value"] = config.max_sample_value
    if config.compression is not Compression.NONE:
        options["compression"] = config.compression.value
    if config.encoding is Encoding.JPEG:
        options["jpeg_size"] = config.jpeg_size.value
        if config.jpeg_size is JpegSize.RESIZED:
            options["jpeg_quality"] = config.jpeg_quality
    return options


def _cut(rows: list[Row], split: Split, *, config: PrepareConfig, base: str) -> list[ShardPlan]:
    total_bytes = sum(_forecast_bytes(row, config) for row in rows)
    num_digits = 0
    while total_bytes > MAX_MEAN_SHARD_BYTES * 16**num_digits:
        num_digits += 1
    by_prefix: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_prefix[row.sha256.hex()[:num_digits] or "all"].append(row)
    return [
        ShardPlan(
            name=f"{split}-{prefix}.parquet",
            split=split,
            rows=tuple(some),
            key=_digest(base, some),
            forecast_bytes=sum(_forecast_bytes(row, config) for row in some),
        )
        for prefix, some in by_prefix.items()
    ]


def _forecast_bytes(row: Row, config: PrepareConfig) -> int:
    num_pixels = config.size * config.size
    if config.encoding is Encoding.PIXELS:
        return 3 * num_pixels + ROW_OVERHEAD_BYTES
    if config.jpeg_size is JpegSize.ORIGINAL:
        return row.size_bytes + ROW_OVERHEAD_BYTES
    return int(_RESIZED_BYTES_PER_PIXEL * num_pixels) + ROW_OVERHEAD_BYTES


def _digest(base: str, rows: Sequence[Row]) -> str:
    digest = hashlib.sha256(base.encode())
    for row in rows:
        digest.update(row.sha256 + row.label.to_bytes(4) + os.fsencode(row.path) + b"\0")
    return digest.hexdigest()


def _digest_rows(shards: Sequence[ShardPlan], classes: Sequence[str]) -> str:
    """Hash the planned pictures, independently of options and versions."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    for split in Split:
        rows = [row for shard in shards if shard.split is split for row in shard.rows]
        digest.update(_digest(split, rows).encode())
    return digest.hexdigest()


_KEPT_FREE_FRAC = 0.01  # file systems slow down and logs fail when the disk is full


def check_space(shards: Iterable[ShardPlan], place: Path) -> int:
    """Check that the files that remain to be written fit on the disk.

    Returns:
        Estimated bytes that they need.

    Raises:
        ResourceError: if they do not fit.
    """
    need_bytes = sum(shard.forecast_bytes for shard in shards)
    check_room(
        need_bytes,
        place,
        fix="Free disk space, or use --out on another disk, a smaller --size or --encoding jpeg.",
    )
    return need_bytes


def check_room(need_bytes: int, place: Path, *, fix: str, what: str = "the store") -> None:
    """Check that the disk of a folder has room for need_bytes.

    Raises:
        ResourceError: if it has not.
    """
    free_bytes = disk_free_bytes(place)
    if need_bytes * (1 + _KEPT_FREE_FRAC) > free_bytes:
        raise ResourceError(
            f"{what} needs {_in_gb(need_bytes)}, but only {_in_gb(free_bytes)} are free",
            where=str(place.parent),
            why="Nothing was written. An existing store is kept until the new one is complete, so "
            "there must be space for both.",
            fix=fix,
        )


def _in_gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.3g} GB"

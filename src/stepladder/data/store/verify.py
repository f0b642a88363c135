"""Verify a store: every byte of every file, and their consistency."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from stepladder.data.store.index import file_sha256, index_path, open_index
from stepladder.data.store.manifest import MANIFEST_NAME, load_manifest
from stepladder.data.store.pages import (
    SHA256_BYTES,
    Footer,
    LayoutError,
    RowGroup,
    page_data,
    pages,
    read_footer,
    split_strings,
)
from stepladder.errors import DataError
from stepladder.records import Manifest, ShardInfo


def list_shards(folder: Path, manifest: Manifest) -> list[str]:
    """Compare names and sizes of a store's shards with its manifest; return the problems.

    Other files, such as those left by a killed process, are ignored.
    """
    problems = []
    with os.scandir(folder) as entries:
        found = {entry.name for entry in entries if entry.name.endswith(".parquet")}
    for info in manifest.shards:
        if info.name not in found:
            problems.append(f"shard {info.name} is missing")
            continue
        num_bytes = (folder / info.name).stat().st_size
        if num_bytes != info.size_bytes:
            problems.append(f"shard {info.name} has {num_bytes} bytes, not {info.size_bytes}")
    extra = found - {info.name for info in manifest.shards}
    problems += [
        f"shard {name} is not in the manifest" for name in sorted(extra) if not name.startswith(".")
    ]
    return problems


def verify_store(path: Path) -> list[str]:
    """Read a whole store and return its problems; an empty list if it is intact."""
    path = Path(path)
    try:
        manifest = load_manifest(path)
    except DataError as error:
        return [str(error)]
    except OSError as error:
        return [f"{path / MANIFEST_NAME}: {_unreadable(error)}"]
    problems = list_shards(path, manifest)
    counts: dict[str, Counter[int]] = {split: Counter() for split in manifest.class_counts}
    for info in manifest.shards:
        if (path / info.name).is_file():
            counted, found = _verify_shard(path / info.name, info, manifest)
            counts[info.split].update(counted)
            problems += [f"shard {info.name}: {problem}" for problem in found]
    if not problems:
        problems += _compare_counts(manifest, counts)
    return problems


def damaged_shards(path: Path, manifest: Manifest) -> list[ShardInfo]:
    """Read all files of a store and return those that are missing or damaged."""
    return [
        info
        for info in manifest.shards
        if not (path / info.name).is_file() or _verify_shard(path / info.name, info, manifest)[1]
    ]


def _verify_shard(
    path: Path, info: ShardInfo, manifest: Manifest
) -> tuple[Counter[int], list[str]]:
    """Check one file; return the count of each label and the problems."""
    try:
        return _read_shard(path, info, manifest)
    except OSError as error:  # such as a bad sector
        return Counter(), [_unreadable(error)]


def _unreadable(error: OSError) -> str:
    return f"cannot be read ({error.strerror or error})"


def _read_shard(path: Path, info: ShardInfo, manifest: Manifest) -> tuple[Counter[int], list[str]]:
    labels: Counter[int] = Counter()
    problems: list[str] = []
    with path.open("rb") as opened:
        file = opened.fileno()
        try:
            footer = read_footer(file)
            problems += _compare_layout(footer, info, manifest)
            walk = _Walk(file, footer)
            problems += walk.problems()
            labels = walk.labels
        except LayoutError as error:
            problems.append(str(error))
        if file_sha256(file) != info.sha256 and not problems:
            problems.append("its sha256 does not match manifest.json")
    if open_index(index_path(path), info, is_mapped=False) is None:
        problems.append("its index is missing or damaged (it is rebuilt when the store is opened)")
    beyond = [label for label in labels if not 0 <= label < len(manifest.classes)]
    problems += [f"label {label} is not one of the classes" for label in beyond]
    return labels, problems


def _compare_layout(footer: Footer, info: ShardInfo, manifest: Manifest) -> list[str]:
    problems = []
    if (footer.encoding, footer.size) != (manifest.encoding, manifest.size):
        problems.append("its encoding or picture size is not the one in manifest.json")
    if footer.num_rows != info.num_rows:
        problems.append(f"it has {footer.num_rows} rows, but manifest.json says {info.num_rows}")
    return problems


def _compare_counts(manifest: Manifest, counts: dict[str, Counter[int]]) -> list[str]:
    problems = []
    for split, wanted in manifest.class_counts.items():
        found = tuple(counts[split][label] for label in range(len(manifest.classes)))
        if found != wanted:
            problems.append(
                f"manifest.json says other numbers of pictures per class for {split} than its "
                "files have"
            )
    return problems


class _Walk:
    """Check all pages of a shard, one row group at a time."""

    def __init__(self, file: int, footer: Footer) -> None:
        self._file = file
        self._footer = footer
        self._last_key = b""
        self.labels: Counter[int] = Counter()

    def problems(self) -> Iterator[str]:
        """Yield the problems and count the labels."""
        first_row = 0
        for group in self._footer.row_groups:
            yield from self._small_columns(group, first_row)
            yield from self._pictures(group, first_row)
            first_row += group.num_rows

    def _small_columns(self, group: RowGroup, first_row: int) -> Iterator[str]:
        columns = []
        for chunk in group.chunks[:3]:
            try:
                columns.append(b"".join(page_data(self._file, p) for p in pages(self._file, chunk)))
            except LayoutError as error:
                yield f"rows from {first_row}: {error}"
                return
        hashes, texts, labels = columns
        self.labels.update(np.frombuffer(labels, dtype="<i4").tolist())
        cuts = range(0, len(hashes), SHA256_BYTES)
        keys = [hashes[start : start + SHA256_BYTES] for start in cuts]
        if not len(keys) == len(split_strings(texts)) == len(labels) // 4 == group.num_rows:
            yield f"rows from {first_row}: the columns differ in length"
        if [self._last_key, *keys] != sorted([self._last_key, *keys]):
            yield f"rows from {first_row}: rows are not sorted by sha256"
        self._last_key = keys[-1] if keys else self._last_key

    def _pictures(self, group: RowGroup, first_row: int) -> Iterator[str]:
        row = first_row
        try:
            for page in pages(self._file, group.chunks[3]):
                try:
                    page_data(self._file, page)
                except LayoutError as error:
                    yield f"row {row}: {error}"
                row += 1
        except (
            LayoutError
        ) as error:  # after a damaged header the rest of the row group cannot be read
            yield f"row {row}: {error}"
        if row != first_row + group.num_rows:
            yield f"rows from {first_row}: {row - first_row} pictures, not {group.num_rows}"

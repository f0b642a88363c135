"""Convert the facts of a DataFrame's rows to a listing with unique names and class names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stepladder.config.choices import Split
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.sources.containers.labels import Labels, padded_words
from stepladder.data.sources.folders.reading import AS_NAMED, FolderOptions
from stepladder.data.sources.listing import Listing, Picture, refuse_captions, require_classes
from stepladder.data.sources.pictures import HashedListing
from stepladder.data.sources.walk import Skipped
from stepladder.data.spark.listing import list_names, relative_names
from stepladder.errors import DataError


@dataclass(frozen=True, slots=True)
class Fact:
    """The facts about a row that a plan needs; see `frames.FACTS`."""

    sha256: bytes
    size: int
    reason: str | None
    path: str | None
    label: str | int | None
    split: Split | None
    group: str | None

    @property
    def hashed(self) -> Hashed:
        """The row as a `Hashed` of a plan."""
        return Hashed(self.sha256, (self.size, 0, 0), self.reason)


def facts_of(rows: Iterator[dict[str, Any]]) -> list[Fact]:
    """Parse the facts that tasks return."""
    return [
        Fact(
            sha256=bytes(row["sha256"]),
            size=row["size"],
            reason=row["reason"],
            path=row["path"],
            label=row["label"] if row["number"] is None else row["number"],
            split=None if row["split"] is None else Split(row["split"]),
            group=row["picture_group"],
        )
        for row in rows
    ]


def empty_files(facts: list[Fact], files: Iterable[str], address: str) -> list[Fact]:
    """Return facts for the empty files, which Spark skips.

    Args:
        facts: facts of the other files.
        files: all files, as URLs.
        address: address that they were read from.
    """
    there = set(relative_names([str(fact.path) for fact in facts], address))
    paths = [unquote(url) for url in files]
    return [
        Fact(b"", 0, "is empty (0 bytes)", path, None, None, None)
        for path, name in zip(paths, relative_names(paths, address), strict=True)
        if name not in there
    ]


def list_facts(
    facts: list[Fact],
    *,
    source: str,
    address: str | None,
    class_names: tuple[str, ...] | None,
    has_labels: bool,
    has_group: bool,
    folders: FolderOptions = AS_NAMED,
) -> HashedListing:
    """List the rows of a DataFrame.

    Args:
        facts: facts of its rows, in any order.
        source: name of the source in messages.
        address: address that Spark read, if paths are of files below it.
        class_names: class name of each label number.
        has_labels: whether rows have labels; if not, the folders of their paths are classes.
        has_group: whether rows have groups.
        folders: how to read the folders of paths, if rows have no labels.

    Raises:
        DataError: if there are no rows, rows with the same path differ, labels are both numbers and
            strings, or there is only one class.
    """
    if not facts:
        raise DataError(
            "the DataFrame has no rows, so there are no pictures to prepare",
            where=source,
            fix="Pass a DataFrame with one row for each picture.",
        )
    named, num_repeated = _named(facts, source, address)
    warnings = [f"{source}: skipped {num_repeated} repeated rows"] if num_repeated else []
    root = Path(address or source)
    if not has_labels:
        skipped = Skipped()
        found = list_names(list(named), root, skipped, folders)
        hashes = [named[picture.path].hashed for picture in found.pictures]
        return HashedListing(require_classes(found, source), hashes)
    labels = Labels(class_names)
    for path, fact in named.items():
        assert fact.label is not None
        labels.add(fact.label, f"{source}: {path}")
    names = labels.names(source)
    warnings += [f"{source}: {said}"] if (said := padded_words(names)) else []
    pictures = [
        Picture(path, names[fact.label], fact.split, fact.group)
        for path, fact in named.items()
        if fact.label is not None
    ]
    listing = Listing(root, pictures, Skipped(), tuple(warnings), has_group)
    listing = refuse_captions(require_classes(listing, source), source)
    return HashedListing(listing, [fact.hashed for fact in named.values()])


def _named(facts: list[Fact], source: str, address: str | None) -> tuple[dict[str, Fact], int]:
    """Return rows by path, sorted, and the number of identical repeated rows."""
    if any(fact.path is None for fact in facts):
        return _named_by_content(facts), 0
    paths = relative_names([str(fact.path) for fact in facts], address)
    named: dict[str, Fact] = {}
    num_repeated = 0
    for path, fact in sorted(zip(paths, facts, strict=True), key=lambda pair: pair[0]):
        there = named.setdefault(path, fact)
        if there is fact:
            continue
        if _without_path(there) != _without_path(fact):
            raise DataError(
                f"several rows have the path {path!r}, but different pictures, labels or splits",
                where=source,
                fix="Keep one row for each path, or choose another column: --path-column NAME",
            )
        num_repeated += 1
    return named, num_repeated


def _named_by_content(facts: list[Fact]) -> dict[str, Fact]:
    """Name rows without a path by their sha256, as the rows of a DataFrame have no order."""
    named: dict[str, Fact] = {}
    for fact in sorted(facts, key=_content_key):
        name = fact.sha256.hex() or "unreadable"
        number = 1
        while (path := name if number == 1 else f"{name}.{number}") in named:
            number += 1
        named[path] = fact
    return named


def _content_key(fact: Fact) -> tuple[bytes, str, str, str, str]:
    others = (str(fact.label), str(fact.split), str(fact.group), str(fact.reason))
    return (fact.sha256, *others)


def _without_path(fact: Fact) -> tuple[Any, ...]:
    return fact.sha256, fact.reason, fact.label, fact.split, fact.group

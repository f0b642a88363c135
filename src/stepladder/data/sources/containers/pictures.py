"""Read pictures from containers: each is read once, in file order, and spooled by hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

from stepladder.config.choices import Encoding, JpegSize
from stepladder.config.options import PrepareConfig
from stepladder.data.decoding.formats import NPY_MAGIC
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, check_room
from stepladder.data.prepare.work_folder import WorkFolder
from stepladder.data.reading.threads import map_in_order
from stepladder.data.remote.places import shown
from stepladder.data.sources.containers.contract import Container, Item, Opened
from stepladder.data.sources.containers.labels import Labels, padded_words
from stepladder.data.sources.containers.spool import Buckets, Kept, Spool, Spooled
from stepladder.data.sources.listing import Listing, Picture, refuse_captions, require_classes
from stepladder.data.sources.pictures import HashedListing, Pictures, Workers
from stepladder.data.sources.walk import Skipped
from stepladder.errors import DataError, ResourceError, UsageError

_SPOOL_NAME = "spool"
_MAX_AHEAD = 8

OpenSource = Callable[[Path | None], Opened]
"""Opens a source. Given a work folder, it saves resolved options there and reuses them."""


class ContainerPictures(Pictures):
    """Pictures in container files.

    Args:
        config: options of prepare.
        open_source: opens the containers; called once without a work folder, so that errors in
            the source are raised before anything is written.
    """

    def __init__(self, config: PrepareConfig, open_source: OpenSource) -> None:
        self._config = config
        self._open_source = open_source
        open_source(None)
        self._spool: Spool | None = None

    def hash(
        self,
        work: WorkFolder,
        workers: Workers,
        *,
        earlier: Path,
        on_done: Callable[[int, int], None],
    ) -> HashedListing:
        """Read the containers that an earlier run has not spooled; `earlier` is not used.

        Raises:
            DataError: if a container is damaged or a row has no valid label.
            ResourceError: if the disk has not enough space for the pictures.
        """
        del earlier
        opened = self._open_source(work.root)
        containers = opened.containers
        num_bytes = sum(container.picture_bytes for container in containers)
        if self._spool is not None:
            self._spool.close()
        folder = work.root / _SPOOL_NAME
        self._spool = spool = Spool(folder, key=opened.key, num_bytes=num_bytes)
        ahead = min(workers.ahead, _MAX_AHEAD)
        keys = [container.key for container in containers]
        kept = spool.take_over(keys, workers.pool, ahead=ahead)
        check_room(
            sum(one.picture_bytes for one in containers if one.key not in kept),
            work.root,
            what="unpacking the pictures of the source",
            fix="Free space, or use --out on another disk: pictures are unpacked next to it.",
        )
        rows = ContainerRows(self._config, opened)
        counter = _Counter(containers, on_done)
        for container in containers:
            found = kept.pop(container.key, None)
            if found is None:
                found = self._read(container, spool, workers, ahead, counter)
                if container.is_complete:
                    spool.finish(container.key, found)
            else:
                counter.add(len(found.rows))
            rows.add(container, found)
        counter.finish()
        return rows.listing()

    def reader(self) -> SpoolReader:
        """Return a reader of the spool."""
        assert self._spool is not None, "called before hash()"
        return SpoolReader(self._spool.buckets, self._config.out)

    def _read(
        self,
        container: Container,
        spool: Spool,
        workers: Workers,
        ahead: int,
        counter: _Counter,
    ) -> Kept:
        rows: list[Spooled] = []
        hashing = partial(hash_items, self._config)
        batches = map_in_order(workers.pool, hashing, container.items(), ahead=ahead)
        for batch in batches:
            rows += (spool.add(item, sha256) for item, sha256 in batch)
            counter.add(len(batch))
        return Kept(rows, container.skipped)


@dataclass(frozen=True)
class SpoolReader:
    """Reads pictures from a spool.

    Attributes:
        buckets: files of the spool.
        out: the store that is written, for errors.
    """

    buckets: Buckets
    out: Path

    def __call__(self, row: Row) -> bytes:
        """Read a picture's bytes.

        Raises:
            ResourceError: if they differ from those that were spooled.
        """
        size_bytes, offset, bucket = row.hashed.stamp
        data = self.buckets.read(bucket, offset, size_bytes)
        if hashlib.sha256(data).digest() != row.sha256:
            raise ResourceError(
                f"the disk returned other bytes for the picture {row.path} than were written to "
                "it a moment ago",
                where=f"{self.out} (temporary files beside the store)",
                why="Another program changed the temporary files, or the disk is failing.",
                fix="Check the disk (smartctl -H DEVICE, dmesg), then run the same command again.",
            )
        return data


class _Counter:
    """Reports how many rows are done, and the total as far as it is known."""

    def __init__(self, containers: list[Container], on_done: Callable[[int, int], None]) -> None:
        self._total = sum(container.num_rows or 0 for container in containers)
        self._on_done = on_done
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        self._on_done(self._done, max(self._total, self._done + 1))

    def finish(self) -> None:
        self._on_done(self._done, self._done)


def hash_items(config: PrepareConfig, items: list[Item]) -> list[tuple[Item, bytes]]:
    """Return pictures of a container with their sha256.

    Raises:
        UsageError: if a picture is raw pixels and the store keeps original files.
    """
    where = shown(config.source)
    for item in items:
        refuse_pixels(config, item.data, where=where)
    return [(item, hashlib.sha256(item.data).digest()) for item in items]


def refuse_pixels(config: PrepareConfig, picture: bytes, *, where: str) -> None:
    """Raise an error if a picture is raw pixels and the store keeps original files."""
    is_kept = config.encoding is Encoding.JPEG and config.jpeg_size is JpegSize.ORIGINAL
    if is_kept and picture.startswith(NPY_MAGIC):
        raise UsageError(
            "the source contains uncompressed pixels, but the options --encoding jpeg and "
            "--jpeg-size original keep JPEG files as they are",
            where=where,
            fix="To compress the pixels: --jpeg-size resized. To keep them uncompressed: "
            "--encoding pixels.",
        )


class ContainerRows:
    """Collects rows into a listing with unique paths and class names."""

    def __init__(self, config: PrepareConfig, opened: Opened) -> None:
        self._config = config
        self._opened = opened
        self._labels = Labels(opened.class_names)
        self._paths: set[str] = set()
        # store as little as possible per row: there may be many millions
        self._pictures: list[Picture] = []
        self._numbers: list[int | None] = []
        self._hashes: list[Hashed] = []
        self._skipped = Skipped()
        self._skipped.merge(opened.skipped)
        self._num_renamed = 0

    def add(self, container: Container, kept: Kept) -> None:
        """Add the rows of a container."""
        self._skipped.merge(kept.skipped)
        for spooled in kept.rows:
            item = spooled.item
            label = self._labels.add(item.label, f"{container.name}: row {item.row}")
            path = self._unique(container.name, item)
            self._paths.add(path)
            name, number = (label, None) if isinstance(label, str) else ("", label)
            self._pictures.append(Picture(path, name, item.split, item.group))
            self._numbers.append(number)
            place = (spooled.size_bytes, spooled.offset, spooled.bucket)
            self._hashes.append(Hashed(spooled.sha256, place, item.reason))

    def listing(self) -> HashedListing:
        """Return all rows.

        Raises:
            DataError: if there are no rows, only one class, or both numbers and strings as labels.
        """
        names = self._labels.names(shown(self._config.source))
        pictures = self._pictures
        for at, number in enumerate(self._numbers):
            if number is not None:
                pictures[at] = replace(pictures[at], label=names[number])
        opened = self._opened
        listing = Listing(
            opened.root,
            pictures,
            self._skipped,
            (*opened.warnings, *self._warnings(names)),
            opened.has_group or any(picture.group is not None for picture in pictures),
            opened.origin,
        )
        if not pictures:
            raise DataError(
                "the files of the source contain no pictures",
                where=shown(self._config.source),
                why=f"Skipped: {self._skipped.describe()}" if self._skipped.counts else None,
                fix="Set --source to Parquet or tar files that contain pictures, or to a folder or "
                "table of pictures.",
            )
        source = shown(self._config.source)
        listing = require_classes(listing, source)
        advice = (container.label_advice() for container in opened.containers[:1])
        listing = refuse_captions(listing, source, lambda: next(advice, None))
        return HashedListing(listing, self._hashes)

    def _unique(self, name: str, item: Item) -> str:
        by_number = f"{name}#{item.row}"
        if item.path is None:
            path = by_number
        elif _is_relative(item.path) and item.path not in self._paths:
            return item.path
        else:
            self._num_renamed += 1
            path = by_number
        while path in self._paths:
            path += f"#{item.row}"
        return path

    def _warnings(self, names: Mapping[str | int, str]) -> Iterator[str]:
        where = shown(self._config.source)
        if padded := padded_words(names):
            yield f"{where}: {padded}"
        if self._num_renamed:
            yield (
                f"{where}: renamed {self._num_renamed} pictures to FILE#ROW: their path is not "
                "relative, or is the same as in an earlier row"
            )
        if self._skipped.counts:
            yield f"{where}: skipped {self._skipped.describe()}"


def _is_relative(path: str) -> bool:
    """Return True if a path may be written to a store: relative, without ".." parts."""
    parts = PurePosixPath(path.replace("\\", "/")).parts
    is_rooted = path.startswith(("/", "\\")) or "://" in path or path[1:2] == ":"
    return bool(parts) and not is_rooted and ".." not in parts and path.isprintable()

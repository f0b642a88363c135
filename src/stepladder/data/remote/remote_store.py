"""Read the files of a store in an object store through the cache, with prefetching."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from stepladder.config.recipe import DataConfig
from stepladder.data.remote.cache import FileCache, HeldFile, WrongBytesError
from stepladder.data.remote.cache_folder import cache_folder, scratch_folder
from stepladder.data.remote.cache_part import WantedFile
from stepladder.data.remote.objects import NoSuchObjectError, ObjectStore
from stepladder.data.remote.places import ObjectPlace, supported_place
from stepladder.data.remote.s3 import S3Objects
from stepladder.data.store.index import SUFFIX, parse_index
from stepladder.data.store.manifest import MANIFEST_NAME, parse_manifest
from stepladder.data.store.shard_files import LocalShardFiles, ShardFiles, ShardFilesStats
from stepladder.errors import DataError
from stepladder.records import Manifest, ShardInfo

_FILES_AHEAD: Final = 6  # parallel downloads; each uses several connections
_CONNECTIONS_PER_FILE: Final = 8
_ENOUGH_FILES: Final = 40  # two windows of sixteen, and the files of a validation


def open_shard_files(
    path: Path,
    *,
    cache_dir: Path | None = None,
    max_cache_bytes: int = DataConfig.max_cache_bytes,
    on_message: Callable[[str], None] | None = None,
) -> ShardFiles:
    """Open the files of a store in a folder or in an object store.

    Args:
        cache_dir: folder of the cache; None: `stepladder-cache` in the working folder.
        on_message: called with messages about retries and damaged files in the cache.

    Raises:
        UsageError: if it is an address that is not supported.
        MissingExtraError: if it is in an object store, and boto3 is not installed.
    """
    place = supported_place(path)
    if place is None:
        return LocalShardFiles(path)
    objects = S3Objects(
        connections=(_FILES_AHEAD + 1) * (_CONNECTIONS_PER_FILE + 1), on_message=on_message
    )
    cache = FileCache(
        cache_folder(cache_dir),
        max_cache_bytes,
        connections=_CONNECTIONS_PER_FILE,
        on_message=on_message,
    )
    return RemoteShardFiles(place, objects, cache)


def verify_remote(path: Path) -> list[str]:
    """Download all files of a store in an object store, and return a list of problems.

    Files are checked against the sha256 in the manifest. Indexes are not checked, as damaged ones
    are rebuilt.

    Raises:
        ResourceError: if the object store cannot be read.
    """
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        files = open_shard_files(path, cache_dir=Path(folder) / "cache")
        try:
            return list(_problems(files))
        finally:
            files.close()


def _problems(files: ShardFiles) -> Iterator[str]:
    try:
        manifest = files.manifest()
    except DataError as error:
        yield str(error)
        return
    files.expect(manifest.shards)
    for info in manifest.shards:
        try:
            files.path(info)
            files.release(info)
        except DataError as error:
            yield f"shard {info.name}: {error.what}"


class RemoteShardFiles:
    """The files of a store in an object store.

    Args:
        place: address of the store; its manifest and files are below it.
        objects, cache: owned by this object and closed with it.
    """

    is_local = False

    def __init__(self, place: ObjectPlace, objects: ObjectStore, cache: FileCache) -> None:
        self.place = place
        self._objects = objects
        self._cache = cache
        self._fingerprint = ""
        self._enough_bytes = 0
        self._lock = threading.RLock()  # garbage collection may call release() at any time
        self._held: dict[str, HeldFile] = {}
        self._num_users: Counter[str] = Counter()
        self._num_hits = self._num_misses = 0
        self._wait_s = 0.0
        self._streamed: set[str] = set()  # downloaded and not used yet
        self._ahead = FetchAhead(self._fetch_ahead, num_threads=_FILES_AHEAD)

    @property
    def stats(self) -> ShardFilesStats:
        """Counters of requests and waits so far."""
        sent = self._objects.stats
        return ShardFilesStats(
            num_requests=sent.num_requests,
            num_bytes=sent.num_bytes,
            num_retries=sent.num_retries,
            wait_s=self._wait_s,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
        )

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            DataError: if it is not a store.
        """
        manifest = self._read_manifest()
        self._fingerprint = manifest.fingerprint
        sizes = [info.size_bytes for info in manifest.shards]
        self._enough_bytes = min(sum(sizes), _ENOUGH_FILES * max(sizes, default=0)) * 11 // 10
        return manifest

    def path(self, info: ShardInfo) -> Path:
        """Return the path of a shard in the cache, with its index next to it; waits for it.

        Raises:
            DataError: if it does not match the manifest.
            ResourceError: if it cannot be downloaded, or the cache has no space for it.
        """
        start_s = time.perf_counter()
        try:
            was_under_way = self._ahead.claim(info)
            held = self._cache.get(self._wanted(info))
        except (WrongBytesError, NoSuchObjectError) as error:
            raise self._replaced(error) from None
        with self._lock:
            self._wait_s += time.perf_counter() - start_s
            is_miss = held.was_fetched or (was_under_way and info.name in self._streamed)
            self._streamed.discard(info.name)
            self._num_misses += is_miss
            self._num_hits += not is_miss
            self._num_users[info.name] += 1
            if info.name in self._held:
                held.release()
            else:
                self._held[info.name] = held
            return self._held[info.name].path

    def index(self, info: ShardInfo) -> bytes | None:
        """Return only a shard's index, unverified; None if it has no index.

        Raises:
            ResourceError: if it cannot be downloaded.
        """
        kept = self._cache.index(self._wanted(info))
        if kept is not None and parse_index(kept, info) is not None:
            return kept
        return self._fetch_index(info)

    def _fetch_index(self, info: ShardInfo) -> bytes | None:
        try:
            return self._objects.read(self.place.join(info.name + SUFFIX))
        except NoSuchObjectError:
            return None  # it is rebuilt from the shard

    def release(self, info: ShardInfo) -> None:
        """Release a file returned by `path`; does nothing after `close`."""
        with self._lock:
            if info.name not in self._held:
                return
            self._num_users[info.name] -= 1
            if self._num_users[info.name] > 0:
                return
            del self._num_users[info.name]
            self._held.pop(info.name).release()
        self._ahead.go_on()

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Prefetch these files in this order, as far as the cache has space."""
        with self._lock:
            missing = [info for info in infos if info.name not in self._held]
        self._ahead.expect(missing)

    def close(self) -> None:
        """Release all files and cancel downloads."""
        self._ahead.close()
        self._cache.close()
        self._objects.close()
        with self._lock:
            for held in self._held.values():
                held.release()
            self._held.clear()
            self._num_users.clear()

    def _fetch_ahead(self, info: ShardInfo) -> bool:
        return self._cache.get_ahead(self._wanted(info))

    def _wanted(self, info: ShardInfo) -> WantedFile:
        place = self.place.join(info.name)
        return WantedFile(
            name=info.name,
            sha256=info.sha256,
            size_bytes=info.size_bytes,
            where=str(place),
            fetch=partial(self._stream, info.name, place),
            fetch_index=partial(self._fetch_index, info),
            enough_bytes=self._enough_bytes,
        )

    def _stream(self, name: str, place: ObjectPlace, start: int, stop: int) -> Iterator[bytes]:
        """Yield bytes of a file that is not cached."""
        with self._lock:
            self._streamed.add(name)
        return self._objects.stream(place, start, stop)

    def _read_manifest(self) -> Manifest:
        place = self.place.join(MANIFEST_NAME)
        try:
            value = json.loads(self._objects.read(place))
        except NoSuchObjectError:
            raise DataError(
                f"there is no store at this address (a store has a file {MANIFEST_NAME})",
                where=str(self.place),
                fix=f"Create one with stepladder prepare … --out {self.place}, or set --data.store "
                "to an existing store.",
            ) from None
        except ValueError:
            value = None
        return parse_manifest(value, where=str(place))

    def _replaced(self, error: DataError) -> DataError:
        """Return a clearer error if a file differs because the store was replaced."""
        now = self._read_manifest()
        if now.fingerprint == self._fingerprint:
            return error
        return DataError(
            "another program replaced the store while this one was reading it",
            where=str(self.place),
            why=f"The file {error.where} was replaced or removed.",
            fix="Run the same command again to read the new store. To resume a run that began with "
            "the old store, add --accept-new-data.",
        )


class FetchAhead:
    """Prefetches files in threads, which end when there is nothing to do.

    Args:
        fetch: downloads one file; returns False if there is no space for it now.
        num_threads: number of parallel downloads.
    """

    def __init__(self, fetch: Callable[[ShardInfo], bool], *, num_threads: int) -> None:
        self._fetch = fetch
        self._num_threads = num_threads
        self._begin()

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Prefetch these files in this order, instead of those requested before."""
        self._check_process()
        with self._changed:
            self._queue.clear()
            self._queue.extend(info for info in infos if info.name not in self._under_way)
        self.go_on()

    def go_on(self) -> None:
        """Retry files for which there was no space."""
        self._check_process()
        with self._changed:
            num_new = min(self._num_threads - self._num_alive, len(self._queue))
            if self._is_closed or num_new <= 0:
                return
            self._num_alive += num_new
        for _ in range(num_new):
            threading.Thread(target=self._work, name="stepladder-ahead", daemon=True).start()

    def claim(self, info: ShardInfo) -> bool:
        """Remove a file from the queue for the caller, who needs it now.

        Waits if it is being downloaded.

        Returns:
            Whether it was being downloaded.

        Raises:
            Exception: the error of the download, if it failed meanwhile.
        """
        self._check_process()
        with self._changed:
            others = [other for other in self._queue if other.name != info.name]
            self._queue.clear()
            self._queue.extend(others)
            if info.name not in self._under_way:
                return False
            failures = self._under_way[info.name]
            self._changed.wait_for(lambda: self._under_way.get(info.name) is not failures)
        if failures:
            raise failures[0]
        return True

    def close(self) -> None:
        """Stop prefetching."""
        self._check_process()
        with self._changed:
            self._is_closed = True
            self._queue.clear()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._queue: deque[ShardInfo] = deque()
        self._under_way: dict[str, list[Exception]] = {}  # by name, with its error
        self._num_alive = 0
        self._is_closed = False

    def _check_process(self) -> None:
        if self._process != os.getpid():  # threads are not copied by a fork
            self._begin()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._num_alive -= 1
                    return
                info = self._queue.popleft()
                failures = self._under_way[info.name] = []
            is_room = True
            try:
                is_room = self._fetch(info)
            except Exception as error:  # raised in a waiting caller, or retried later
                failures.append(error)
            with self._changed:
                del self._under_way[info.name]
                self._changed.notify_all()
                if not is_room:
                    self._queue.appendleft(info)
                    self._num_alive -= 1
                    return

"""Access to a store's files: in a local folder, or remote and fetched on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from stepladder.data.store.manifest import load_manifest
from stepladder.records import Manifest, ShardInfo


@dataclass(frozen=True, kw_only=True)
class ShardFilesStats:
    """Statistics of fetching files so far; all zero for local files.

    Attributes:
        num_requests: requests to the object store, including failed ones.
        num_bytes: bytes received.
        num_retries: requests that were sent again after a failure.
        wait_s: seconds that callers of `path` waited.
        num_hits, num_misses: requested files that were in the cache, and those that were not.
    """

    num_requests: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    wait_s: float = 0.0
    num_hits: int = 0
    num_misses: int = 0

    def since(self, earlier: ShardFilesStats) -> ShardFilesStats:
        """Return the difference to earlier statistics."""
        return ShardFilesStats(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )

    @property
    def hit_frac(self) -> float | None:
        """Fraction of requested files that were in the cache; None if none was requested."""
        num_asked = self.num_hits + self.num_misses
        return self.num_hits / num_asked if num_asked else None


class ShardFiles(Protocol):
    """The files of one store. Thread-safe."""

    @property
    def is_local(self) -> bool:
        """Whether the files are in a local folder and can be opened in any order."""

    @property
    def stats(self) -> ShardFilesStats:
        """Statistics so far."""

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            DataError: if it is not a store.
        """

    def path(self, info: ShardInfo) -> Path:
        """Return a shard as a local file, with its index next to it; block until it is fetched.

        It is kept until `release` was called as often as `path`.

        Raises:
            DataError: if it does not match the manifest.
            ResourceError: if it cannot be fetched, or the disk is full.
        """

    def index(self, info: ShardInfo) -> bytes | None:
        """Return the unchecked bytes of a remote shard's index; None if local or missing.

        Raises:
            ResourceError: if it cannot be fetched.
        """

    def release(self, info: ShardInfo) -> None:
        """Release a file that `path` returned."""

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Prefetch the files that will be requested next, in this order.

        Replaces earlier calls. Never fails: errors are raised when the file is requested.
        """

    def close(self) -> None:
        """Release all files and cancel running requests."""


class LocalShardFiles:
    """The files of a store in a folder."""

    is_local = True
    stats = ShardFilesStats()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def manifest(self) -> Manifest:
        """Read the manifest."""
        return load_manifest(self._folder)

    def path(self, info: ShardInfo) -> Path:
        """Return the path of the file."""
        return self._folder / info.name

    def index(self, info: ShardInfo) -> bytes | None:  # noqa: ARG002
        """Return None, as the index is next to the shard."""
        return None

    def release(self, info: ShardInfo) -> None:
        """Do nothing, as files are local."""

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Do nothing, as the operating system reads ahead."""

    def close(self) -> None:
        """Do nothing."""

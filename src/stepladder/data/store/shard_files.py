"""Where a store's files are: in a folder of this machine, or elsewhere and fetched when wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from stepladder.data.store.manifest import load_manifest
from stepladder.records import Manifest, ShardInfo


@dataclass(frozen=True, kw_only=True)
class ShardFilesStats:
    """What it took so far to have the files here; zeros where they are here anyway.

    Attributes:
        num_requests: sent to the object store, those that failed among them.
        num_bytes: bytes that came from there.
        num_retries: requests that were sent again after a failure.
        wait_s: seconds that callers of `path` waited.
        num_hits, num_misses: files that were here when they were asked for, and those that were
            not.
    """

    num_requests: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    wait_s: float = 0.0
    num_hits: int = 0
    num_misses: int = 0

    def since(self, earlier: ShardFilesStats) -> ShardFilesStats:
        """Return what came after an earlier look."""
        return ShardFilesStats(
            **{
                field.name: getattr(self, field.name) - getattr(earlier, field.name)
                for field in fields(self)
            }
        )

    @property
    def hit_frac(self) -> float | None:
        """Share of the files that were here when they were asked for; None: none was asked for."""
        num_asked = self.num_hits + self.num_misses
        return self.num_hits / num_asked if num_asked else None


class ShardFiles(Protocol):
    """The files of one store; used from several threads."""

    @property
    def is_local(self) -> bool:
        """Whether the files lie in a folder of this machine and may be opened in any order."""

    @property
    def stats(self) -> ShardFilesStats:
        """What it took so far."""

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            DataError: if it is no store.
        """

    def path(self, info: ShardInfo) -> Path:
        """Return a shard as a local file, with its index beside it; waits until it is here.

        It stays there until it was released as often as it was asked for.

        Raises:
            DataError: if it is not the one that the manifest names.
            ResourceError: if it cannot be fetched, or there is no room for it.
        """

    def index(self, info: ShardInfo) -> bytes | None:
        """Read a shard's index alone, unchecked; None where it lies beside the shard, or nowhere.

        Raises:
            ResourceError: if it cannot be fetched.
        """

    def release(self, info: ShardInfo) -> None:
        """Let a file go that `path` gave."""

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Say which files will be asked for next, in this order; they are fetched ahead.

        What was expected before and is not named again is forgotten. Never fails: what could not
        be fetched is told when it is asked for.
        """

    def close(self) -> None:
        """Release all files, and end what is under way."""


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
        """Return the file where it lies."""
        return self._folder / info.name

    def index(self, info: ShardInfo) -> bytes | None:  # noqa: ARG002
        """Return None: it lies beside the shard."""
        return None

    def release(self, info: ShardInfo) -> None:
        """Do nothing: it lies there anyway."""

    def expect(self, infos: Sequence[ShardInfo]) -> None:
        """Do nothing: the system reads ahead by itself."""

    def close(self) -> None:
        """Do nothing."""

"""The interface of an object store, and its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stepladder.data.remote.places import ObjectPlace
from stepladder.errors import DataError


class NoSuchObjectError(DataError):
    """There is no object with this key (the bucket exists)."""


class CancelledTransferError(Exception):
    """The transfer was cancelled by its caller."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """The metadata of an object.

    Attributes:
        etag: changes whenever the content changes.
        sha256: hash stored by its writer, in hexadecimal; None: unknown, as always in a listing.
        changed_s: modification time in whole seconds since 1970, the resolution of all responses;
            0: unknown.
    """

    place: ObjectPlace
    size_bytes: int
    etag: str
    sha256: str | None = None
    changed_s: int = 0


@dataclass
class TransferStats:
    """Counters of the requests to a store.

    Attributes:
        num_requests: requests sent, including failed ones.
        num_bytes: bytes of objects received.
        num_retries: requests that were repeated after a failure.
        retry_s: total wait before retries in seconds, summed over threads.
    """

    num_requests: int = 0
    num_bytes: int = 0
    num_retries: int = 0
    retry_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(
        self,
        *,
        num_requests: int = 0,
        num_bytes: int = 0,
        num_retries: int = 0,
        retry_s: float = 0.0,
    ) -> None:
        """Add to the counters; thread-safe."""
        with self._lock:
            self.num_requests += num_requests
            self.num_bytes += num_bytes
            self.num_retries += num_retries
            self.retry_s += retry_s


class ObjectStore(Protocol):
    """An object store; thread-safe.

    Each call retries transient failures according to its `RetryPolicy`. Permanent failures are
    raised immediately: `NoSuchObjectError`; `UsageError` for a missing bucket or an invalid
    address; `ResourceError` for missing credentials or permissions. An unreachable server is a
    `ResourceError` too. Each error names bucket and key.
    """

    @property
    def stats(self) -> TransferStats:
        """Counters of the requests so far."""

    def info(self, place: ObjectPlace) -> ObjectInfo | None:
        """Return the metadata of an object; None if it does not exist."""

    def stream(
        self,
        place: ObjectPlace,
        start: int = 0,
        stop: int | None = None,
        *,
        etag: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of an object, to its end if stop is None.

        After a lost connection the transfer resumes after the last byte received.

        Args:
            etag: expected etag; raises an error if the object was replaced.
        """

    def read(self, place: ObjectPlace) -> bytes:
        """Read a whole object."""

    def list_below(self, place: ObjectPlace) -> Iterator[ObjectInfo]:
        """Yield the objects below a place, by key."""

    def put_bytes(self, place: ObjectPlace, data: bytes) -> None:
        """Write an object; readers see the old or the complete new content."""

    def put_file(
        self,
        place: ObjectPlace,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Upload a file, in parts if it is large, with its sha256 in the metadata."""

    def delete(self, place: ObjectPlace) -> None:
        """Remove an object if it exists."""

    def close(self) -> None:
        """Cancel waits before retries, which cancels the transfers in other threads."""

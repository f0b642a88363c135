"""What any object store can do, and the errors that say what it refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from stepladder.data.remote.places import ObjectPlace
from stepladder.errors import DataError


class NoSuchObjectError(DataError):
    """There is no object of this key (the bucket is there)."""


class CancelledTransferError(Exception):
    """The one who asked for the bytes no longer wants them."""


@dataclass(frozen=True, kw_only=True)
class ObjectInfo:
    """What is known of an object without reading it.

    Attributes:
        etag: changes whenever its bytes do.
        sha256: as its writer noted it, in hexadecimal; None: unknown, as always in a listing.
        changed_s: when it was written, in whole seconds since 1970, as all answers have them; 0:
            unknown.
    """

    place: ObjectPlace
    size_bytes: int
    etag: str
    sha256: str | None = None
    changed_s: int = 0


@dataclass
class TransferStats:
    """What was asked of a store so far.

    Attributes:
        num_requests: sent, those that failed among them.
        num_bytes: bytes of objects received.
        num_retries: requests that were sent again after a failure.
        retry_s: pauses before them, in seconds, summed over threads.
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
        """Count more; from any thread."""
        with self._lock:
            self.num_requests += num_requests
            self.num_bytes += num_bytes
            self.num_retries += num_retries
            self.retry_s += retry_s


class ObjectStore(Protocol):
    """An object store, to be used from several threads.

    Each call tries again, as its `RetryPolicy` says, after a failure that may pass. What will not
    pass is raised at once: `NoSuchObjectError`; `UsageError` for a bucket that is not there or an
    address that is none; `ResourceError` for credentials that are missing or not enough. A server
    that stays away is a `ResourceError` too. Each names bucket and key.
    """

    @property
    def stats(self) -> TransferStats:
        """What was asked so far."""

    def info(self, place: ObjectPlace) -> ObjectInfo | None:
        """Look at an object; None if there is none."""

    def stream(
        self,
        place: ObjectPlace,
        start: int = 0,
        stop: int | None = None,
        *,
        etag: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of an object, to its end if stop is None.

        A connection that is cut is taken up again after the last byte received.

        Args:
            etag: of the object that is meant; one that replaced it is an error.
        """

    def read(self, place: ObjectPlace) -> bytes:
        """Read a whole object."""

    def list_below(self, place: ObjectPlace) -> Iterator[ObjectInfo]:
        """Yield the objects below a place, by key."""

    def put_bytes(self, place: ObjectPlace, data: bytes) -> None:
        """Write an object; readers see the old one or all of the new one."""

    def put_file(
        self,
        place: ObjectPlace,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write a file as an object, in parts if it is large, with a note of its sha256."""

    def delete(self, place: ObjectPlace) -> None:
        """Remove an object; nothing happens if there is none."""

    def close(self) -> None:
        """End pauses before retries: what is under way in other threads is cancelled."""

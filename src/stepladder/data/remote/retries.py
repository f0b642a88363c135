"""Retry requests with exponential backoff up to a time limit, then raise one error."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from stepladder.data.remote.objects import CancelledTransferError, TransferStats
from stepladder.data.remote.places import ObjectPlace
from stepladder.errors import ResourceError

T = TypeVar("T")


class PassingFailure(Exception):  # noqa: N818  (usually not an error: it is retried)
    """A transient failure of a request.

    Args:
        reason: description without secrets.
        retry_after_s: wait requested by the server.
    """

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class StoreAwayError(ResourceError):
    """An object store was unavailable until the time limit for retries."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long and how often a request is retried.

    Attributes:
        patience_s: time limit in seconds, from the last byte received or the first attempt.
        first_patience_s: the limit until the server has responded once: a mistyped address should
            not take minutes.
        first_pause_s, growth, max_pause_s: exponential backoff; each wait is drawn between half of
            it and all of it, so that many readers do not retry at the same time.
    """

    patience_s: float = 120.0
    first_patience_s: float = 15.0
    first_pause_s: float = 0.2
    growth: float = 2.0
    max_pause_s: float = 15.0


class Retrier:
    """Retries the requests of one client of a store; thread-safe.

    Args:
        on_message: called with messages about retries, at most every half minute.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        stats: TransferStats,
        *,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        self.policy = policy
        self.has_answered = False
        self._stats = stats
        self._on_message = on_message
        self._told_s = -float("inf")
        self._closed = threading.Event()

    def call(self, request: Callable[[], T], *, what: str, place: ObjectPlace) -> T:
        """Send a request until it succeeds.

        Args:
            request: sends the request.
            what: the failure in an error message, such as "cannot be read".
            place: address of the object.

        Raises:
            StoreAwayError: if it does not succeed within the time limit.
            CancelledTransferError: if `close` was called.
        """
        attempts = self.attempts(what=what, place=place)
        while True:
            try:
                return request()
            except PassingFailure as failure:
                attempts.pause(failure)

    def attempts(self, *, what: str, place: ObjectPlace) -> Attempts:
        """Return a counter of the attempts for one request."""
        return Attempts(self, what, place)

    def close(self) -> None:
        """Cancel all waits, now and in the future."""
        self._closed.set()

    def check_open(self) -> None:
        """Raise CancelledTransferError if `close` was called."""
        if self._closed.is_set():
            raise CancelledTransferError

    def wait(self, seconds: float, message: str) -> None:
        """Wait, and report why."""
        now = time.monotonic()
        if self._on_message is not None and now - self._told_s > 30:
            self._told_s = now
            self._on_message(message)
        self._stats.add(num_retries=1, retry_s=seconds)
        self._closed.wait(seconds)
        self.check_open()


class Attempts:
    """The attempts of one request."""

    def __init__(self, retrier: Retrier, what: str, place: ObjectPlace) -> None:
        self._retrier = retrier
        self._what = what
        self._place = place
        self._num_failed = 0
        self._since_s = time.monotonic()

    def progressed(self) -> None:
        """Reset the count and the time limit, as bytes were received."""
        self._num_failed = 0
        self._since_s = time.monotonic()

    def pause(self, failure: PassingFailure) -> None:
        """Wait before the next attempt.

        Raises:
            StoreAwayError: if the time limit is reached.
            CancelledTransferError: if the store was closed.
        """
        policy = self._retrier.policy
        patience_s = policy.patience_s
        if not self._retrier.has_answered:
            patience_s = min(patience_s, policy.first_patience_s)
        pause_s = min(policy.first_pause_s * policy.growth**self._num_failed, policy.max_pause_s)
        pause_s *= random.uniform(0.5, 1)
        self._num_failed += 1
        if failure.retry_after_s is not None:
            pause_s = max(pause_s, failure.retry_after_s)
        elapsed_s = time.monotonic() - self._since_s
        if elapsed_s + pause_s > patience_s:
            raise self._given_up(failure, elapsed_s)
        message = (
            f"{self._place}: {failure.reason}; retrying for up to {patience_s - elapsed_s:.0f} s"
        )
        self._retrier.wait(pause_s, message)

    def _given_up(self, failure: PassingFailure, elapsed_s: float) -> StoreAwayError:
        times = f"{self._num_failed} times" if self._num_failed > 1 else "once"
        why = f"Tried {times} within {elapsed_s:.0f} s."
        if failure.retry_after_s is not None:
            why += f" The server asked to wait {failure.retry_after_s:.0f} s longer."
        fix = "Check the network and the server, then run the same command again."
        if not self._retrier.has_answered:
            fix = (
                "The server never responded: check the address (AWS_ENDPOINT_URL, or "
                "endpoint_url in the profile), AWS_REGION and the network."
            )
        return StoreAwayError(
            f"{self._what}: {failure.reason}", where=str(self._place), why=why, fix=fix
        )

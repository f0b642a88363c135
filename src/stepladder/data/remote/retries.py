"""When a request is sent again: growing pauses up to a bound, then one error that tells it all."""

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


class PassingFailure(Exception):  # noqa: N818  (most often no error: it passes)
    """A request failed for a reason that may pass.

    Args:
        reason: in words, without anything secret.
        retry_after_s: the pause that the server asked for.
    """

    def __init__(self, reason: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s


class StoreAwayError(ResourceError):
    """An object store did not answer, or only that it cannot now, until patience was at its end."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How long and how often a request is tried.

    Attributes:
        patience_s: seconds from the last byte received, or the first try, to giving up.
        first_patience_s: the same while the server has never answered: an address that is
            mistyped should not take minutes.
        first_pause_s, growth, max_pause_s: pauses grow from the first to the largest; each is
            drawn between half and all of it, so that many readers do not come back at once.
    """

    patience_s: float = 120.0
    first_patience_s: float = 15.0
    first_pause_s: float = 0.2
    growth: float = 2.0
    max_pause_s: float = 15.0


class Retrier:
    """Sends requests again for one client of a store; from any thread.

    Args:
        on_message: told, at most every half minute, that something is being tried again.
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
            what: what could not be done, as "it could not be read".

        Raises:
            StoreAwayError: when patience is at its end.
            CancelledTransferError: if `close` was called.
        """
        attempts = self.attempts(what=what, place=place)
        while True:
            try:
                return request()
            except PassingFailure as failure:
                attempts.pause(failure)

    def attempts(self, *, what: str, place: ObjectPlace) -> Attempts:
        """Return the count of tries for one request."""
        return Attempts(self, what, place)

    def close(self) -> None:
        """End all pauses now and from now on."""
        self._closed.set()

    def check_open(self) -> None:
        """Raise CancelledTransferError if `close` was called."""
        if self._closed.is_set():
            raise CancelledTransferError

    def wait(self, seconds: float, message: str) -> None:
        """Pause, and tell why."""
        now = time.monotonic()
        if self._on_message is not None and now - self._told_s > 30:
            self._told_s = now
            self._on_message(message)
        self._stats.add(num_retries=1, retry_s=seconds)
        self._closed.wait(seconds)
        self.check_open()


class Attempts:
    """The tries of one request."""

    def __init__(self, retrier: Retrier, what: str, place: ObjectPlace) -> None:
        self._retrier = retrier
        self._what = what
        self._place = place
        self._num_failed = 0
        self._since_s = time.monotonic()

    def progressed(self) -> None:
        """Begin to count anew: bytes came."""
        self._num_failed = 0
        self._since_s = time.monotonic()

    def pause(self, failure: PassingFailure) -> None:
        """Wait before the next try.

        Raises:
            StoreAwayError: when patience is at its end.
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
            f"{self._place}: {failure.reason}; trying again for up to "
            f"{patience_s - elapsed_s:.0f} s"
        )
        self._retrier.wait(pause_s, message)

    def _given_up(self, failure: PassingFailure, elapsed_s: float) -> StoreAwayError:
        times = f"{self._num_failed} times" if self._num_failed > 1 else "once"
        why = f"Tried {times} within {elapsed_s:.0f} s."
        if failure.retry_after_s is not None:
            why += f" The server asked to wait {failure.retry_after_s:.0f} s more."
        fix = "Look at the network and the server, then type the same command again."
        if not self._retrier.has_answered:
            fix = (
                "Nothing was ever heard from it: look at the address (AWS_ENDPOINT_URL, or "
                "endpoint_url in the profile), at AWS_REGION and at the network."
            )
        return StoreAwayError(
            f"{self._what}: {failure.reason}", where=str(self._place), why=why, fix=fix
        )

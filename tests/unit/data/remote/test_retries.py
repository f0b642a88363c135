from __future__ import annotations

import threading
import time

import pytest

from stepladder.data.remote.objects import CancelledTransferError, TransferStats
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import PassingFailure, Retrier, RetryPolicy
from stepladder.errors import ResourceError

PLACE = ObjectPlace("photos", "store/train-0.parquet")
QUICK = RetryPolicy(patience_s=0.2, first_patience_s=0.2, first_pause_s=0.01)


class Server:
    """Fails this many times before it answers."""

    def __init__(self, num_failures: int, *, retry_after_s: float | None = None) -> None:
        self.num_left = num_failures
        self.num_asked = 0
        self.retry_after_s = retry_after_s

    def __call__(self) -> str:
        self.num_asked += 1
        if self.num_left > 0:
            self.num_left -= 1
            raise PassingFailure("the server answered 503", retry_after_s=self.retry_after_s)
        return "bytes"


def call(retrier: Retrier, server: Server) -> str:
    return retrier.call(server, what="it could not be read", place=PLACE)


def test_a_failure_that_passes_is_counted_and_reported_once() -> None:
    said: list[str] = []
    stats = TransferStats()
    server = Server(3)
    assert call(Retrier(QUICK, stats, on_message=said.append), server) == "bytes"
    assert (server.num_asked, stats.num_retries) == (4, 3)
    assert len(said) == 1
    assert said[0].startswith(f"{PLACE}: the server answered 503; retrying for up to")


def test_pauses_grow_up_to_the_largest() -> None:
    policy = RetryPolicy(patience_s=10, first_pause_s=0.01, growth=2, max_pause_s=0.04)
    stats = TransferStats()
    retrier = Retrier(policy, stats)
    retrier.has_answered = True
    call(retrier, Server(6))
    bound_s = 0.01 + 0.02 + 4 * 0.04
    assert bound_s / 2 <= stats.retry_s <= bound_s


def test_patience_ends_in_an_error_that_names_place_tries_and_time() -> None:
    retrier = Retrier(QUICK, TransferStats())
    retrier.has_answered = True
    with pytest.raises(ResourceError) as caught:
        call(retrier, Server(1_000))
    text = str(caught.value)
    assert (
        "s3://photos/store/train-0.parquet: it could not be read: the server answered 503" in text
    )
    assert "Tried" in text
    assert "times within" in text
    assert "run the same command again" in text


def test_an_address_that_never_answered_is_given_up_early() -> None:
    retrier = Retrier(RetryPolicy(patience_s=1e6, first_patience_s=0), TransferStats())
    with pytest.raises(ResourceError, match="AWS_ENDPOINT_URL"):
        call(retrier, Server(1))


def test_the_pause_that_the_server_asks_for_is_made() -> None:
    stats = TransferStats()
    call(Retrier(QUICK, stats), Server(1, retry_after_s=0.15))
    assert stats.retry_s == 0.15


def test_a_pause_beyond_patience_is_not_begun() -> None:
    retrier = Retrier(QUICK, TransferStats())
    with pytest.raises(ResourceError, match="asked to wait 3600 s"):
        call(retrier, Server(1, retry_after_s=3600))


def test_progress_renews_patience() -> None:
    retrier = Retrier(QUICK, TransferStats())
    attempts = retrier.attempts(what="it could not be read", place=PLACE)
    for _ in range(3):  # each pause alone is within patience, both together are not
        attempts.pause(PassingFailure("cut", retry_after_s=0.12))
        attempts.progressed()


def test_closing_ends_a_pause() -> None:
    retrier = Retrier(RetryPolicy(patience_s=1e6, first_patience_s=1e6), TransferStats())
    timer = threading.Timer(0.05, retrier.close)
    timer.start()
    start_s = time.monotonic()
    with pytest.raises(CancelledTransferError):
        call(retrier, Server(1, retry_after_s=1000))
    assert time.monotonic() - start_s < 100
    timer.join()

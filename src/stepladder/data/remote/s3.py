"""Access S3 and S3-compatible stores with boto3, which finds the endpoint and credentials.

Used are AWS_ENDPOINT_URL, AWS_PROFILE, AWS_ACCESS_KEY_ID etc., ~/.aws and instance roles; also
AWS_REGION, which boto3 does not read. Retries are implemented in `retries`, as botocore does not
retry a connection that is lost while a body is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from stepladder.data.remote.objects import CancelledTransferError, ObjectInfo, TransferStats
from stepladder.data.remote.parallel import run_all
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import PassingFailure, Retrier, RetryPolicy
from stepladder.data.remote.s3_errors import (
    answers_named,
    creation_named,
    is_missing,
    is_unexplained,
    is_upload_gone,
)
from stepladder.errors import MissingExtraError, StepladderError

PART_BYTES: Final = 16 << 20
_MAX_PARTS: Final = 9_000  # S3 allows 10,000
_CHUNK_BYTES: Final = 256 << 10
_PARALLEL_PARTS: Final = 4
_CONNECT_TIMEOUT_S: Final = 10
_READ_TIMEOUT_S: Final = 20
_FIRST_TIMEOUT_S: Final = 7.5  # two of them reach `RetryPolicy.first_patience_s`
_SHA256: Final = "sha256"  # key in an object's metadata
_READ: Final = "cannot be read"
_LISTED: Final = "cannot be listed"
_WRITTEN: Final = "cannot be written"


class S3Objects:
    """An `ObjectStore` on S3.

    Clients are created at the first request, one per process, as sockets must not be shared after a
    fork.

    Args:
        connections: maximum number of parallel requests.
        endpoint, region: location of the store; None: from the environment and ~/.aws.
        may_be_anonymous: whether to send unsigned requests if no credentials are found, as public
            buckets allow; otherwise that is an error.
        on_message: called occasionally with messages about retries.

    Raises:
        MissingExtraError: if boto3 is not installed.
    """

    def __init__(
        self,
        *,
        policy: RetryPolicy | None = None,
        connections: int = 32,
        endpoint: str | None = None,
        region: str | None = None,
        may_be_anonymous: bool = False,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        try:
            import boto3  # noqa: F401
        except ImportError:
            raise MissingExtraError("a path that begins with s3://", "s3") from None
        self._stats = TransferStats()
        self._retrier = Retrier(policy or RetryPolicy(), self._stats, on_message=on_message)
        self._connections = connections
        self._endpoint, self._region = endpoint, region
        self._may_be_anonymous = may_be_anonymous
        self._is_anonymous = False
        self._sessions: dict[int, Any] = {}
        self._clients: dict[tuple[int, bool], Any] = {}
        self._lock = threading.Lock()

    @property
    def stats(self) -> TransferStats:
        """Counters of the requests so far."""
        return self._stats

    def info(self, place: ObjectPlace) -> ObjectInfo | None:
        """Return the metadata of an object; None if it does not exist."""
        found = self.head(place)
        if found is None:
            self.has_below(ObjectPlace(place.bucket, ""))  # raises if there is no bucket
        return found

    def head(self, place: ObjectPlace) -> ObjectInfo | None:
        """Return the metadata of an object; None if it or its bucket does not exist."""

        def look() -> ObjectInfo | None:
            from botocore.exceptions import ClientError

            try:
                found = self._send("head_object", place)
            except ClientError as error:
                if is_missing(error):
                    self._retrier.has_answered = True
                    return None
                if is_unexplained(error):
                    self._list_page(place, max_keys=1)
                raise
            return _info_of(place, found, found["ContentLength"])

        found: ObjectInfo | None = self._call(look, place, "cannot be accessed")
        return found

    def has_below(self, place: ObjectPlace) -> bool:
        """Return True if there are objects below a place."""
        page = self._call(lambda: self._list_page(place, max_keys=1), place, _LISTED)
        return bool(page.get("Contents"))

    def stream(
        self,
        place: ObjectPlace,
        start: int = 0,
        stop: int | None = None,
        *,
        etag: str | None = None,
    ) -> Iterator[bytes]:
        """Yield the bytes [start, stop) of an object, resuming after the last byte received."""
        self._client(place)  # creating it does not count towards the time limit
        attempts = self._retrier.attempts(what=_READ, place=place)
        body = _Body(at=start, stop=stop, etag=etag)
        while not body.is_complete:
            try:
                with self._answers_named(place):
                    for chunk in self._open(place, body):
                        yield chunk
                        attempts.progressed()  # the time in the consumer does not count
                return  # the object may be shorter than requested
            except PassingFailure as failure:
                attempts.pause(failure)

    def read(self, place: ObjectPlace) -> bytes:
        """Read a whole object."""
        return b"".join(self.stream(place))

    def list_below(self, place: ObjectPlace) -> Iterator[ObjectInfo]:
        """Yield the objects below a place, by key."""
        more: dict[str, Any] = {}
        while True:
            page = self._call(
                lambda more=dict(more): self._list_page(place, **more),  # type: ignore[misc]
                place,
                _LISTED,
            )
            for found in page.get("Contents", ()):
                yield _info_of(ObjectPlace(place.bucket, found["Key"]), found, found["Size"])
            if not page.get("IsTruncated"):
                return
            more = {"token": page["NextContinuationToken"]}

    def put_bytes(self, place: ObjectPlace, data: bytes) -> None:
        """Write an object; readers see the old or the complete new content."""
        self._call(lambda: self._send("put_object", place, Body=data), place, _WRITTEN)

    def put_file(
        self,
        place: ObjectPlace,
        path: Path,
        *,
        sha256: str,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Upload a file, in parts if it is large, with its sha256 in the metadata."""
        note = {_SHA256: sha256}
        if path.stat().st_size <= PART_BYTES:
            data = path.read_bytes()
            self._call(
                lambda: self._send("put_object", place, Body=data, Metadata=note), place, _WRITTEN
            )
            return
        upload = self._call(
            lambda: self._send("create_multipart_upload", place, Metadata=note), place, _WRITTEN
        )["UploadId"]
        try:
            parts = self._put_parts(place, path, upload, is_cancelled)
            complete = partial(self._complete, place, upload, parts, path, sha256)
            self._call(complete, place, _WRITTEN)
        except BaseException:
            # only once; until then the parts cost money
            with (
                suppress(StepladderError, PassingFailure, CancelledTransferError),
                self._answers_named(place),
            ):
                self._send("abort_multipart_upload", place, UploadId=upload)
            raise

    def delete(self, place: ObjectPlace) -> None:
        """Remove an object if it exists."""
        self._call(lambda: self._send("delete_object", place), place, "cannot be removed")

    def close(self) -> None:
        """Cancel waits before retries, which cancels the transfers in other threads."""
        self._retrier.close()

    def _call(self, request: Callable[[], Any], place: ObjectPlace, what: str) -> Any:
        def named() -> Any:
            with self._answers_named(place):
                return request()

        self._client(place)  # creating it does not count towards the time limit
        return self._retrier.call(named, what=what, place=place)

    def _answers_named(self, place: ObjectPlace) -> AbstractContextManager[None]:
        return answers_named(place, self._retrier, is_anonymous=lambda: self._is_anonymous)

    def _send(self, operation: str, place: ObjectPlace, **arguments: Any) -> Any:
        """Send one request, about an object unless the arguments name a Prefix."""
        self._retrier.check_open()
        self._stats.add(num_requests=1)
        if "Prefix" not in arguments:
            arguments["Key"] = place.key
        answer = getattr(self._client(place), operation)(Bucket=place.bucket, **arguments)
        if not self._retrier.has_answered:
            self._retrier.has_answered = True
            self._client(place)  # now, so that it does not count in the time of a later request
        return answer

    def _list_page(
        self, place: ObjectPlace, *, token: str | None = None, max_keys: int = 1000
    ) -> Any:
        prefix = f"{place.key}/" if place.key else ""
        more = {} if token is None else {"ContinuationToken": token}
        return self._send("list_objects_v2", place, Prefix=prefix, MaxKeys=max_keys, **more)

    def _open(self, place: ObjectPlace, body: _Body) -> Iterator[bytes]:
        """Yield the data of one request for the rest of a body."""
        answer = self._send("get_object", place, **body.arguments())
        body.begun(answer)
        with closing(answer["Body"]) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                self._retrier.check_open()
                self._stats.add(num_bytes=len(chunk))
                body.at += len(chunk)
                yield chunk

    def _put_parts(
        self, place: ObjectPlace, path: Path, upload: str, is_cancelled: Callable[[], bool]
    ) -> list[dict[str, Any]]:
        size = path.stat().st_size
        part_bytes = max(PART_BYTES, -(-size // _MAX_PARTS))

        sent: dict[int, str] = {}

        def put(number: int) -> None:
            if is_cancelled():
                raise CancelledTransferError
            data = _slice(path, (number - 1) * part_bytes, part_bytes)
            answer = self._call(
                lambda: self._send(
                    "upload_part", place, UploadId=upload, PartNumber=number, Body=data
                ),
                place,
                _WRITTEN,
            )
            sent[number] = answer["ETag"]

        numbers = range(1, -(-size // part_bytes) + 1)
        puts = [partial(put, number) for number in numbers]
        run_all(puts, num_threads=_PARALLEL_PARTS, waits=True)  # no part may arrive after an abort
        return [{"PartNumber": number, "ETag": sent[number]} for number in numbers]

    def _complete(
        self, place: ObjectPlace, upload: str, parts: list[dict[str, Any]], path: Path, sha256: str
    ) -> None:
        """Complete an upload; if an earlier response was lost, the object already exists."""
        from botocore.exceptions import ClientError

        made = {"Parts": parts}
        try:
            self._send("complete_multipart_upload", place, UploadId=upload, MultipartUpload=made)
        except ClientError as error:
            there = self.info(place) if is_upload_gone(error) else None
            if there is None or (there.size_bytes, there.sha256) != (path.stat().st_size, sha256):
                raise

    def _client(self, place: ObjectPlace) -> Any:
        """Return this process's client, with short timeouts until the server has responded."""
        with self._lock:
            process, has_answered = os.getpid(), self._retrier.has_answered
            if (process, has_answered) not in self._clients:
                if process not in self._sessions:
                    self._sessions.clear()
                    self._clients.clear()
                self._clients[process, has_answered] = self._make_client(
                    place, has_answered=has_answered
                )
            return self._clients[process, has_answered]

    def _make_client(self, place: ObjectPlace, *, has_answered: bool) -> Any:
        with creation_named(place):
            import boto3
            from botocore import UNSIGNED
            from botocore.config import Config

            session = self._sessions.get(os.getpid()) or boto3.Session()
            self._sessions[os.getpid()] = session
            self._is_anonymous = self._may_be_anonymous and session.get_credentials() is None
            config = Config(
                signature_version=UNSIGNED if self._is_anonymous else None,
                connect_timeout=_CONNECT_TIMEOUT_S if has_answered else _FIRST_TIMEOUT_S,
                read_timeout=_READ_TIMEOUT_S if has_answered else _FIRST_TIMEOUT_S,
                max_pool_connections=self._connections,
                retries={"total_max_attempts": 1, "mode": "standard"},
                # other stores do not support CRC trailers; the manifest's sha256 is stronger
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            )
            client = session.client(
                "s3",
                config=config,
                endpoint_url=self._endpoint,
                region_name=self._region or os.environ.get("AWS_REGION"),
            )
        # botocore uses this request to find the region; redirecting it would loop forever
        client.meta.events.register("before-call.s3.HeadBucket", _no_second_redirect)
        return client


def _no_second_redirect(params: dict[str, Any], **_: Any) -> None:
    params["context"]["s3_redirect"]["redirected"] = True


class _Body:
    """The progress of reading the body of an object."""

    def __init__(self, *, at: int, stop: int | None, etag: str | None) -> None:
        self.at = at
        self._stop = stop
        self._etag = etag

    @property
    def is_complete(self) -> bool:
        """Whether all bytes were received; the connection may be lost after the last byte."""
        return self._stop is not None and self.at >= self._stop

    def begun(self, answer: dict[str, Any]) -> None:
        """Record the etag and the size of the object."""
        self._etag = answer.get("ETag")
        self._stop = self.at + int(answer["ContentLength"])

    def arguments(self) -> dict[str, str]:
        """Return the arguments that request the missing range of the same object."""
        asked = {"IfMatch": self._etag} if self._etag else {}
        if self.at or self._stop is not None:
            last = "" if self._stop is None else self._stop - 1
            asked["Range"] = f"bytes={self.at}-{last}"
        return asked


def _slice(path: Path, start: int, num_bytes: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), num_bytes, start)


def _info_of(place: ObjectPlace, found: dict[str, Any], size_bytes: int) -> ObjectInfo:
    changed = found.get("LastModified")
    return ObjectInfo(
        place=place,
        size_bytes=int(size_bytes),
        etag=found.get("ETag", ""),
        sha256=found.get("Metadata", {}).get(_SHA256),
        changed_s=0 if changed is None else int(changed.timestamp()),
    )

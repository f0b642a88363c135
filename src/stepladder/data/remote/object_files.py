"""Files in an object store as pyarrow opens them, for sources; what it raises, in our words.

It tries a request again by itself, and tells in one line of text what came of it. That line may
quote what a server says, and with it a key: it is never passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from typing import TYPE_CHECKING, Any, Final

from stepladder.data.remote.objects import TransferStats
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import PassingFailure, Retrier, RetryPolicy
from stepladder.data.remote.s3 import S3Objects
from stepladder.data.remote.s3_errors import answer_named
from stepladder.errors import MissingExtraError, ResourceError, StepladderError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
else:
    FileSystem = Any

_MAX_ATTEMPTS = 8
_CONNECT_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 60.0
_FIRST_TIMEOUT_S: Final = 8.0  # two of them use up the first patience
_POLICY = RetryPolicy()
_ONCE: Final = RetryPolicy(patience_s=0)
_ERROR: Final = re.compile(
    r"AWS Error (?P<name>\w+)(?: \(HTTP status (?P<status>\d+)\))? during (?P<operation>\w+)"
    r"(?:.*ExceptionName: (?P<code>\w+))?",
    re.DOTALL,
)
_CURL: Final = re.compile(r"curlCode: (\d+)")
_REASONS: Final = {
    **dict.fromkeys((5, 6, 7), "no connection could be made"),
    28: "the server did not answer in time",
    **dict.fromkeys((35, 51, 53, 58, 60, 77, 83), "no TLS connection could be made"),
}
_AGAIN: Final = "Look at the network and the server, then type the same command again."


def object_filesystem(place: ObjectPlace) -> FileSystem:
    """Give pyarrow's way to an object store, by the environment's endpoint and credentials.

    Args:
        place: what will be read. On AWS the region of its bucket is asked for where the environment
            names none.

    Raises:
        ResourceError: if nothing is heard from the store in the time that a mistyped address
            should take at most; see `RetryPolicy.first_patience_s`.
    """
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    options = _environment()
    _require_answer(place, options)
    if "region" not in options:
        with contextlib.suppress(OSError):  # what is wrong is told by the first request
            options["region"] = resolve_s3_region(place.bucket)
    return S3FileSystem(
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_MAX_ATTEMPTS),
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_REQUEST_TIMEOUT_S,
        **options,
    )


def store_error(
    error: BaseException,
    place: ObjectPlace,
    *,
    where: str | None = None,
    why: str | None = None,
    fix: str = _AGAIN,
) -> StepladderError | None:
    """Say what an object store answered, or that it did not; None if an error is not about one.

    Args:
        place: what was read.
        where: the same for a person, with the place in the file; None: the place.
        why, fix: what a person should know and do where it may pass.
    """
    match = _ERROR.search(str(error))
    if match is None:
        return None
    named = _named(match, str(error), place)
    if isinstance(named, PassingFailure):
        is_listing = match["operation"].startswith("List")
        what = "it could not be listed" if is_listing else "it could not be read"
        named = ResourceError(f"{what}: {named.reason}", where=str(place), why=why, fix=fix)
    elif match["name"] == "ACCESS_DENIED" or match["status"] in {"400", "403"}:
        named = asked_again(place) or named
    named.where = where or str(place)
    return named


def _environment() -> dict[str, Any]:
    """Give the options that the environment sets, as AWS tools find them."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not endpoint:
        return {"region": region} if region else {}
    scheme, _, host = endpoint.rpartition("://")
    return {
        "endpoint_override": host.rstrip("/"),
        "scheme": scheme or "https",
        "region": region or "us-east-1",
    }


def _require_answer(place: ObjectPlace, options: dict[str, Any]) -> None:
    """Wait for a first answer of any kind; one is enough for a process."""
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    server = options.get("endpoint_override", ""), place.bucket
    if server in _answered:
        return
    once = S3FileSystem(
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=1),
        connect_timeout=_CONNECT_TIMEOUT_S,
        request_timeout=_FIRST_TIMEOUT_S,
        **{"region": "us-east-1", **options},
    )
    retrier = Retrier(
        _POLICY, TransferStats(), on_message=lambda text: warnings.warn(text, stacklevel=2)
    )

    def look() -> None:
        try:
            once.get_file_info(place.bucket)
        except OSError as error:
            match = _ERROR.search(str(error))
            named = match and _named(match, str(error), place)
            if isinstance(named, PassingFailure):
                retrier.has_answered = "curlCode" not in str(error)
                raise named from None

    retrier.call(look, what="it could not be looked at", place=place)
    _answered.add(server)


_answered: set[tuple[str, str]] = set()


def _named(match: re.Match[str], text: str, place: ObjectPlace) -> PassingFailure | StepladderError:
    curl = _CURL.search(text)
    if curl is not None:
        return PassingFailure(_REASONS.get(int(curl[1]), "the connection was cut"))
    if match["name"] in {"NETWORK_CONNECTION", "REQUEST_TIMEOUT"}:
        return PassingFailure("the connection was cut")
    status = int(match["status"] or 0)
    if match["name"] == "ACCESS_DENIED":
        status = 403
    code = match["code"] or "".join(word.capitalize() for word in match["name"].split("_"))
    return answer_named(str(status) if code == "Unknown" else code, status, place)


def asked_again(place: ObjectPlace) -> StepladderError | None:
    """Ask by our own client, which sees more of an answer, why a request was refused.

    Returns:
        None where it is not refused, or boto3 is not installed.
    """
    try:
        objects = S3Objects(policy=_ONCE)
    except MissingExtraError:
        return None
    folder = ObjectPlace(place.bucket, place.key.rpartition("/")[0])
    try:
        next(objects.list_below(folder), None)
        objects.info(place)
    except StepladderError as error:
        return error
    finally:
        objects.close()
    return None

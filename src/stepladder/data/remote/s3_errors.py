"""Convert the errors of S3 and botocore to transient failures or errors with a fix.

The original messages are not shown, as they may contain keys, tokens or signed URLs.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from stepladder.data.remote.objects import NoSuchObjectError
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import PassingFailure, Retrier
from stepladder.errors import DataError, ResourceError, StepladderError, UsageError

_PASSING_CODES: Final = {
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "InternalFailure",
    "OperationAborted",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "XAmzContentSHA256Mismatch",
}
_PASSING_STATUS: Final = {408, 425, 429, 500, 502, 503, 504}
_KEY_CODES: Final = {
    "InvalidAccessKeyId": "the access key is unknown to the server",
    "SignatureDoesNotMatch": "the secret key does not match the access key",
    "ExpiredToken": "the credentials have expired",
    "TokenRefreshRequired": "the credentials have expired",
    "InvalidToken": "the session token is invalid",
}
_REGION_CODES: Final = {
    "301",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
}
_MISSING_CODES: Final = {"404", "NoSuchKey", "NotFound"}
_SKEW_CODES: Final = {"RequestTimeTooSkewed", "RequestExpired"}
_MAX_SKEW_S: Final = 300.0  # S3 rejects clocks 15 minutes off; a bare 403 may have other reasons
_LOG_IN: Final = (
    "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run: aws configure"
)


def is_missing(error: Any) -> bool:
    """Return True if a ClientError means that the object does not exist."""
    return _code(error) in _MISSING_CODES


def is_unexplained(error: Any) -> bool:
    """Return True if a ClientError has no reason: responses to HEAD have no body."""
    return _status(error) in (400, 401, 403) and (
        _code(error).isdigit() and _clock_named(_code(error), _headers(error)) is None
    )


def is_upload_gone(error: Any) -> bool:
    """Return True if a ClientError means that a multipart upload was completed or aborted."""
    return _code(error) == "NoSuchUpload"


@contextmanager
def creation_named(place: ObjectPlace) -> Iterator[None]:
    """Convert errors in creating a client to a UsageError."""
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    try:
        yield
    except ProfileNotFound:
        raise UsageError(
            "the profile that AWS_PROFILE names is not in the AWS configuration (~/.aws/config)",
            where=str(place),
            fix="Set AWS_PROFILE to one of the profiles that this prints: aws configure "
            "list-profiles",
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            f"the settings for S3 are not valid ({type(error).__name__})",
            where=str(place),
            fix="Correct AWS_ENDPOINT_URL (such as http://HOST:PORT), AWS_REGION or the file "
            "~/.aws/config.",
        ) from None


@contextmanager
def answers_named(
    place: ObjectPlace, retrier: Retrier, *, is_anonymous: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Convert the exceptions of a request to a `PassingFailure` or an error with a fix.

    Args:
        is_anonymous: whether requests are unsigned because no credentials were found.
    """
    from botocore import exceptions as raised
    from botocore.parsers import ResponseParserError

    try:
        yield
    except raised.ClientError as error:
        retrier.has_answered = True
        raise _client_error_named(error, place, is_anonymous=is_anonymous()) from None
    except (
        raised.NoCredentialsError,
        raised.PartialCredentialsError,
        raised.CredentialRetrievalError,
        raised.TokenRetrievalError,
        raised.UnauthorizedSSOTokenError,
        raised.SSOError,
    ) as error:
        raise _unusable(place, is_none=isinstance(error, raised.NoCredentialsError)) from None
    except raised.ParamValidationError:
        raise UsageError(
            "the name of the bucket is not valid, or the part of the address after it is longer "
            "than 1,024 bytes",
            where=str(place),
            fix="Correct the address: s3://BUCKET/PREFIX.",
        ) from None
    except (raised.ReadTimeoutError, raised.ConnectTimeoutError):
        raise PassingFailure("the server did not respond in time") from None
    except raised.SSLError:
        raise PassingFailure("the TLS connection failed") from None
    except raised.EndpointConnectionError:
        raise PassingFailure("the connection failed") from None
    except (raised.HTTPClientError, raised.IncompleteReadError):
        raise PassingFailure("the connection was lost") from None
    except ResponseParserError:
        raise PassingFailure("the response is not from an S3 server") from None
    except raised.BotoCoreError as error:
        raise ResourceError(
            f"the request could not be sent ({type(error).__name__})",
            where=str(place),
            fix="Check the S3 settings: AWS_ENDPOINT_URL, AWS_REGION, ~/.aws/config.",
        ) from None


def answer_named(
    code: str, status: int, place: ObjectPlace, headers: Mapping[str, str] = MappingProxyType({})
) -> PassingFailure | StepladderError:
    """Return the exception for an error response.

    Args:
        code: error code, such as NoSuchBucket; the status if there is no code.
        status: HTTP status; 0: unknown.
        headers: headers of the response, with lower-case names.
    """
    if code in _PASSING_CODES or (status in _PASSING_STATUS and code not in _MISSING_CODES):
        said = f"{status}" if code.isdigit() or not code else f"{status or ''} ({code})".strip()
        return PassingFailure(
            f"the server responded with {said}", retry_after_s=_retry_after_s(headers)
        )
    return (
        _skewed(code, headers, place)
        or _not_there(code, status, place)
        or _refused(code, status, place)
        or ResourceError(
            f"the object store rejected the request: {status or ''} ({code})",
            where=str(place),
            fix=f"Look up {code} in the documentation of your object store.",
        )
    )


def _not_there(code: str, status: int, place: ObjectPlace) -> StepladderError | None:
    if code == "NoSuchBucket":
        return UsageError(
            f"the bucket {place.bucket} does not exist",
            where=str(place),
            fix="Correct the name of the bucket, or set AWS_ENDPOINT_URL or AWS_PROFILE to the "
            "object store that has it.",
        )
    if code in _MISSING_CODES:
        return NoSuchObjectError(
            "the object does not exist",
            where=str(place),
            fix=f"List the objects: aws s3 ls {str(place).rpartition('/')[0]}/",
        )
    if code in {"InvalidRange", "PreconditionFailed"} or status in (412, 416):
        return DataError(
            "another program replaced the object in the store while it was being read",
            where=str(place),
            fix="Run the same command again when nothing writes to this address.",
        )
    return None


def _refused(code: str, status: int, place: ObjectPlace) -> StepladderError | None:
    if code in _KEY_CODES:
        return ResourceError(_KEY_CODES[code], where=str(place), fix=_LOG_IN)
    if code in _REGION_CODES:
        return UsageError(
            f"the bucket {place.bucket} is in another region",
            where=str(place),
            fix="Set AWS_REGION to the bucket's region.",
        )
    if status in (401, 403):
        return ResourceError(
            f"access is denied ({status if code.isdigit() else code})",
            where=str(place),
            why="Your credentials do not have the permissions for this address.",
            fix="Ask its owner for s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket, "
            "or set AWS_PROFILE to a profile that has these permissions.",
        )
    return None


def _skewed(code: str, headers: Mapping[str, str], place: ObjectPlace) -> StepladderError | None:
    how = _clock_named(code, headers)
    if how is None:
        return None
    return ResourceError(
        f"the object store rejected the request, because the clock of this machine {how}",
        where=str(place),
        why="Requests contain the time, which must be nearly that of the server.",
        fix="Set the clock, preferably by NTP: timedatectl set-ntp true",
    )


def _clock_named(code: str, headers: Mapping[str, str]) -> str | None:
    """Return how the clock is wrong; None if it is not the reason of the error."""
    if code not in _SKEW_CODES and code != "403":
        return None
    ahead_s = _clock_ahead_s(headers)
    if code == "403" and (ahead_s is None or abs(ahead_s) < _MAX_SKEW_S):
        return None
    if ahead_s is None:
        return "differs from the server's"
    return f"is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} the server's"


def _clock_ahead_s(headers: Mapping[str, str]) -> float | None:
    try:
        there = email.utils.parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError):
        return None
    return time.time() - there.timestamp()


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait in the Retry-After header, which is in seconds or a date."""
    value = headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    try:
        at = email.utils.parsedate_to_datetime(value).timestamp()
    except ValueError:
        return None
    return max(0.0, at - time.time())


def _client_error_named(
    error: Any, place: ObjectPlace, *, is_anonymous: bool
) -> PassingFailure | StepladderError:
    named = answer_named(_code(error), _status(error), place, _headers(error))
    is_refused = isinstance(named, ResourceError) and _status(error) in (401, 403)
    return _unusable(place, is_none=True) if is_anonymous and is_refused else named


def _unusable(place: ObjectPlace, *, is_none: bool) -> ResourceError:
    what = "no credentials were found" if is_none else "the credentials cannot be used"
    return ResourceError(what, where=str(place), fix=_LOG_IN)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _headers(error: Any) -> dict[str, str]:
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return {str(name).lower(): str(value) for name, value in headers.items()}

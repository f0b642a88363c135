"""What S3 and botocore say, in our words: what may pass, and what a person has to change.

Their own messages are not passed on: they may name keys, tokens or signed addresses.
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
    "InvalidAccessKeyId": "the access key is not known there",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the credentials have expired",
    "TokenRefreshRequired": "the credentials have expired",
    "InvalidToken": "the session token is not valid",
}
_REGION_CODES: Final = {
    "301",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
}
_MISSING_CODES: Final = {"404", "NoSuchKey", "NotFound"}
_SKEW_CODES: Final = {"RequestTimeTooSkewed", "RequestExpired"}
_MAX_SKEW_S: Final = 300.0  # S3 refuses what is 15 minutes off; a bare 403 may be that, or not
_LOG_IN: Final = (
    "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or type: aws configure"
)


def is_missing(error: Any) -> bool:
    """Return True if a ClientError says that there is no such object."""
    return _code(error) in _MISSING_CODES


def is_unexplained(error: Any) -> bool:
    """Return True if a ClientError is a refusal without a reason: answers to HEAD have no body."""
    return _status(error) in (400, 401, 403) and (
        _code(error).isdigit() and _clock_named(_code(error), _headers(error)) is None
    )


def is_upload_gone(error: Any) -> bool:
    """Return True if a ClientError says that an upload in parts was ended, one way or the other."""
    return _code(error) == "NoSuchUpload"


@contextmanager
def creation_named(place: ObjectPlace) -> Iterator[None]:
    """Turn a client that cannot be made into a UsageError."""
    from botocore.exceptions import BotoCoreError, ProfileNotFound

    try:
        yield
    except ProfileNotFound:
        raise UsageError(
            "the profile that AWS_PROFILE names is not in the AWS config",
            where=str(place),
            fix="List those that are there: aws configure list-profiles",
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise UsageError(
            f"the settings of S3 cannot be used ({type(error).__name__})",
            where=str(place),
            fix="Look at AWS_ENDPOINT_URL (http://HOST:PORT), AWS_REGION and ~/.aws/config.",
        ) from None


@contextmanager
def answers_named(
    place: ObjectPlace, retrier: Retrier, *, is_anonymous: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Turn what a request raises into a `PassingFailure` or an error that says what to do.

    Args:
        is_anonymous: whether requests are unsigned, as no credentials were found.
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
            "this is not the name of a bucket, or the key is longer than 1,024 bytes",
            where=str(place),
            fix="Write s3://BUCKET/PREFIX.",
        ) from None
    except (raised.ReadTimeoutError, raised.ConnectTimeoutError):
        raise PassingFailure("the server did not answer in time") from None
    except raised.SSLError:
        raise PassingFailure("no TLS connection could be made") from None
    except raised.EndpointConnectionError:
        raise PassingFailure("no connection could be made") from None
    except (raised.HTTPClientError, raised.IncompleteReadError):
        raise PassingFailure("the connection was cut") from None
    except ResponseParserError:
        raise PassingFailure("the answer was not that of an S3 server") from None
    except raised.BotoCoreError as error:
        raise ResourceError(
            f"the request could not be made ({type(error).__name__})",
            where=str(place),
            fix="Look at the settings of S3: AWS_ENDPOINT_URL, AWS_REGION, ~/.aws/config.",
        ) from None


def answer_named(
    code: str, status: int, place: ObjectPlace, headers: Mapping[str, str] = MappingProxyType({})
) -> PassingFailure | StepladderError:
    """Say in our words what an answer means that is an error.

    Args:
        code: of the error, such as NoSuchBucket; the status, where there is none.
        status: of HTTP; 0: unknown.
        headers: of the answer, their names in small letters.
    """
    if code in _PASSING_CODES or (status in _PASSING_STATUS and code not in _MISSING_CODES):
        said = f"{status}" if code.isdigit() or not code else f"{status or ''} ({code})".strip()
        return PassingFailure(f"the server answered {said}", retry_after_s=_retry_after_s(headers))
    return (
        _skewed(code, headers, place)
        or _not_there(code, status, place)
        or _refused(code, status, place)
        or ResourceError(
            f"the server refused the request: {status or ''} ({code})",
            where=str(place),
            fix="Look up the code in the documentation of your object store.",
        )
    )


def _not_there(code: str, status: int, place: ObjectPlace) -> StepladderError | None:
    if code == "NoSuchBucket":
        return UsageError(
            f"there is no bucket {place.bucket}",
            where=str(place),
            fix="Look at its name, and at AWS_ENDPOINT_URL and AWS_PROFILE: is it another store's?",
        )
    if code in _MISSING_CODES:
        return NoSuchObjectError(
            "there is no such object",
            where=str(place),
            fix=f"List what is there: aws s3 ls {str(place).rpartition('/')[0]}/",
        )
    if code in {"InvalidRange", "PreconditionFailed"} or status in (412, 416):
        return DataError(
            "the object was replaced while it was read",
            where=str(place),
            fix="Type the same command again.",
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
            why="The credentials that were found may not do this.",
            fix="Ask for s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket on it, or "
            "set AWS_PROFILE to one that may.",
        )
    return None


def _skewed(code: str, headers: Mapping[str, str], place: ObjectPlace) -> StepladderError | None:
    how = _clock_named(code, headers)
    if how is None:
        return None
    return ResourceError(
        f"the clock of this machine {how}",
        where=str(place),
        why="Requests carry the time, and the server refuses what is far from its own.",
        fix="Set the clock, best by NTP: timedatectl set-ntp true",
    )


def _clock_named(code: str, headers: Mapping[str, str]) -> str | None:
    """Name a clock that is wrong: requests carry the time, and S3 refuses what is far off."""
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
    """Read Retry-After: seconds, or a date."""
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

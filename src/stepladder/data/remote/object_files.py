"""Files in an object store as pyarrow opens them, for sources; by the client that reads stores."""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import RetryPolicy
from stepladder.data.remote.s3 import S3Objects
from stepladder.errors import MissingExtraError, StepladderError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
else:
    FileSystem = Any

_ONCE: Final = RetryPolicy(patience_s=0)
_SETTINGS: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)


def object_filesystem() -> FileSystem:
    """Give pyarrow's way to an object store, by the environment's endpoint and credentials.

    It is only read, and without credentials where none are found. It can be pickled: it then tells
    endpoint and region, and no secret.

    Raises:
        MissingExtraError: if boto3 is not installed.
    """
    from pyarrow.fs import PyFileSystem

    from stepladder.data.remote.arrow_files import ObjectFiles

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    shared_objects(endpoint, region)
    return PyFileSystem(ObjectFiles(endpoint, region))


def shared_objects(endpoint: str | None, region: str | None) -> S3Objects:
    """Give the client for sources that this process has; another where settings have changed."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    paths = [Path(settings.get(name, default)).expanduser() for name, default in _SETTINGS]
    changed_ns = tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in paths)
    return _opened(os.getpid(), endpoint, region, tuple(sorted(settings.items())), changed_ns)


@lru_cache(maxsize=4)
def _opened(process: int, endpoint: str | None, region: str | None, *settings: Any) -> S3Objects:
    del process, settings  # which the client has looked up by itself
    return S3Objects(
        endpoint=endpoint,
        region=region,
        may_be_anonymous=True,
        on_message=lambda text: warnings.warn(text, stacklevel=2),
    )


def asked_again(place: ObjectPlace) -> StepladderError | None:
    """Ask by our own client, which sees more of an answer, why a request of another was refused.

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

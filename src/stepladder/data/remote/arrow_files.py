"""A pyarrow file system for an object store: listings, and files read by range."""

from __future__ import annotations

import errno
import io
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, FileType, PyFileSystem

from stepladder.data.remote.objects import ObjectInfo
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.retries import RetryPolicy
from stepladder.data.remote.s3 import S3Objects
from stepladder.errors import MissingExtraError, StepladderError

_NS: Final = 10**9
_LARGE_BYTES: Final = 1 << 20  # smaller reads are footers and small columns
_ONCE: Final = RetryPolicy(patience_s=0)
_SETTINGS: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)


class ObjectFiles(FileSystemHandler):  # type: ignore[misc]
    """A file system whose paths are BUCKET/KEY; raises the same errors as `S3Objects`.

    Args:
        endpoint, region: see `S3Objects`.
    """

    def __init__(self, endpoint: str | None, region: str | None) -> None:
        self._settings = endpoint, region

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectFiles) and self._settings == other._settings

    def __hash__(self) -> int:
        return hash(self._settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectFiles, self._settings

    def get_type_name(self) -> str:
        """Return the type name of the file system."""
        return "s3"

    def normalize_path(self, path: str) -> str:
        """Return the path unchanged, as any string is a valid key."""
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Return the info of objects, or of folders (prefixes of keys)."""
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """List a folder recursively; folders are listed only if an object marks them."""
        base = _place(selector.base_dir)
        found = list(self._objects.list_below(base))
        if not found and base.key and not selector.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, "folder does not exist", selector.base_dir)
        start = len(selector.base_dir.rstrip("/")) + 1
        infos = [_file_info(info) for info in found]
        below = [info for info in infos if len(info.path) > start]
        return [info for info in below if selector.recursive or "/" not in info.path[start:]]

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open an object for random access.

        Raises:
            FileNotFoundError: if it does not exist.
        """
        place = _place(path)
        info = self._objects.head(place)
        if info is None:
            self._objects.has_below(ObjectPlace(place.bucket, ""))  # raises if there is no bucket
            raise FileNotFoundError(errno.ENOENT, "object does not exist", path)
        return pa.PythonFile(ObjectFile(self._objects, info), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("sources are read-only")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse

    @property
    def _objects(self) -> S3Objects:
        return shared_objects(*self._settings)

    def _info(self, path: str) -> FileInfo:
        place = _place(path)
        info = self._objects.head(place) if place.key else None
        if info is not None:
            return _file_info(info)
        is_folder = self._objects.has_below(place) or not place.key
        return FileInfo(path, FileType.Directory if is_folder else FileType.NotFound)


class ObjectFile(io.RawIOBase):
    """An object read by range; after consecutive large reads the next range is prefetched.

    pyarrow calls a Python file from one thread at a time, so that without prefetching the requests
    for two columns would run one after the other.
    """

    def __init__(self, objects: S3Objects, info: ObjectInfo) -> None:
        super().__init__()
        self._objects = objects
        self._info = info
        self._at = 0
        self._large_stop = 0
        self._ahead: _Ahead | None = None

    def readable(self) -> bool:
        """Return True: the file is readable."""
        return True

    def seekable(self) -> bool:
        """Return True: the file supports random access."""
        return True

    def tell(self) -> int:
        """Return the current position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read up to size bytes, or all remaining ones."""
        end = self._info.size_bytes
        start, stop = self._at, end if size < 0 else min(end, self._at + size)
        ahead = self._ahead
        if ahead is None or not ahead.start <= start < ahead.stop:
            ahead = None
        if stop - start >= _LARGE_BYTES:
            follows = start == self._large_stop if ahead is None else ahead.stop <= stop
            if follows:
                self._ahead = _Ahead(self._fetch, stop, min(end, 2 * stop - start))
            self._large_stop = stop
        data = ahead.read(start, stop) if ahead else b""
        if start + len(data) < stop:
            data += self._fetch(start + len(data), stop)
        self._at += len(data)
        return data

    def _fetch(self, start: int, stop: int) -> bytes:
        chunks = self._objects.stream(self._info.place, start, stop, etag=self._info.etag)
        return b"".join(chunks)


class _Ahead:
    """A range that is prefetched in a daemon thread."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._fetch = fetch
        self._fetched: Future[bytes] = Future()
        if start < stop:
            threading.Thread(target=self._run, name="stepladder-ahead", daemon=True).start()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes of the prefetched range; waits for them.

        Raises:
            Exception: the error of the request.
        """
        return self._fetched.result()[start - self.start : stop - self.start]

    def _run(self) -> None:
        try:
            self._fetched.set_result(self._fetch(self.start, self.stop))
        except BaseException as error:  # raised by the next read
            self._fetched.set_exception(error)


def _place(path: str) -> ObjectPlace:
    bucket, _, key = path.partition("/")
    return ObjectPlace(bucket, key.rstrip("/"))


def _file_info(info: ObjectInfo) -> FileInfo:
    path = f"{info.place.bucket}/{info.place.key}"
    if path.endswith("/"):
        return FileInfo(path.rstrip("/"), FileType.Directory)
    return FileInfo(path, FileType.File, size=info.size_bytes, mtime_ns=info.changed_s * _NS)


def object_filesystem() -> FileSystem:
    """Return a pyarrow file system for an object store, configured by the environment.

    It is read-only, and anonymous if no credentials are found. Its pickle contains the endpoint and
    region but no secrets.

    Raises:
        MissingExtraError: if boto3 is not installed.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    shared_objects(endpoint, region)
    return PyFileSystem(ObjectFiles(endpoint, region))


def shared_objects(endpoint: str | None, region: str | None) -> S3Objects:
    """Return this process's client for sources; a new one if the settings have changed."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    paths = [Path(settings.get(name, default)).expanduser() for name, default in _SETTINGS]
    changed_ns = tuple(path.stat().st_mtime_ns if path.is_file() else 0 for path in paths)
    return _opened(os.getpid(), endpoint, region, tuple(sorted(settings.items())), changed_ns)


@lru_cache(maxsize=4)
def _opened(process: int, endpoint: str | None, region: str | None, *settings: Any) -> S3Objects:
    del process, settings  # only part of the cache key
    return S3Objects(
        endpoint=endpoint,
        region=region,
        may_be_anonymous=True,
        on_message=lambda text: warnings.warn(text, stacklevel=2),
    )


def asked_again(place: ObjectPlace) -> StepladderError | None:
    """Repeat a request that failed in another library, to get a more specific error.

    Returns:
        The error; None if the request succeeds or boto3 is not installed.
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

"""A file system of pyarrow over an object store: what there is, and files read by ranges."""

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
_LARGE_BYTES: Final = 1 << 20  # shorter reads are of footers and small columns
_ONCE: Final = RetryPolicy(patience_s=0)
_SETTINGS: Final = (
    ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "~/.aws/config"),
)


class ObjectFiles(FileSystemHandler):  # type: ignore[misc]
    """Paths are BUCKET/KEY. What a store refuses is raised as in any other use of it.

    Args:
        endpoint, region: as `S3Objects` takes them.
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
        """Name the kind of file system."""
        return "s3"

    def normalize_path(self, path: str) -> str:
        """Return a path as it is: any key may be meant."""
        return path

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        """Look at objects, or at folders: what keys go on from."""
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        """List what lies below a folder, at any depth; folders only where an object marks one."""
        base = _place(selector.base_dir)
        found = list(self._objects.list_below(base))
        if not found and base.key and not selector.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, "no such folder", selector.base_dir)
        start = len(selector.base_dir.rstrip("/")) + 1
        infos = [_file_info(info) for info in found]
        below = [info for info in infos if len(info.path) > start]
        return [info for info in below if selector.recursive or "/" not in info.path[start:]]

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Open an object for reading at any place.

        Raises:
            FileNotFoundError: if there is none.
        """
        place = _place(path)
        info = self._objects.head(place)
        if info is None:
            self._objects.has_below(ObjectPlace(place.bucket, ""))  # says so if there is no bucket
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return pa.PythonFile(ObjectFile(self._objects, info), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("sources are only read")

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
    """An object, read by ranges; where large ones follow one another, the next is fetched ahead.

    pyarrow calls a file of Python from one thread at a time, so that without it the requests for
    two columns would wait for each other.
    """

    def __init__(self, objects: S3Objects, info: ObjectInfo) -> None:
        super().__init__()
        self._objects = objects
        self._info = info
        self._at = 0
        self._large_stop = 0
        self._ahead: _Ahead | None = None

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it is read at any place."""
        return True

    def tell(self) -> int:
        """Return the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or all that are left."""
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
    """A range that is being fetched, in a thread that nobody has to wait for."""

    def __init__(self, fetch: Callable[[int, int], bytes], start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._fetch = fetch
        self._fetched: Future[bytes] = Future()
        if start < stop:
            threading.Thread(target=self._run, name="stepladder-ahead", daemon=True).start()

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range that it has, waiting for them.

        Raises:
            Exception: what fetching them came to.
        """
        return self._fetched.result()[start - self.start : stop - self.start]

    def _run(self) -> None:
        try:
            self._fetched.set_result(self._fetch(self.start, self.stop))
        except BaseException as error:  # told to who reads on
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
    """Return pyarrow's way to an object store, by the environment's endpoint and credentials.

    It is only read, and without credentials where none are found. It can be pickled: it then tells
    endpoint and region, and no secret.

    Raises:
        MissingExtraError: if boto3 is not installed.
    """
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    shared_objects(endpoint, region)
    return PyFileSystem(ObjectFiles(endpoint, region))


def shared_objects(endpoint: str | None, region: str | None) -> S3Objects:
    """Return the client for sources that this process has; another where settings have changed."""
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

"""A file system of pyarrow over an object store: what there is, and files read by ranges."""

from __future__ import annotations

import errno
import io
from typing import Any, Final

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType

from stepladder.data.remote.object_files import shared_objects
from stepladder.data.remote.objects import ObjectInfo
from stepladder.data.remote.places import ObjectPlace
from stepladder.data.remote.s3 import S3Objects

_NS: Final = 10**9


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
        """Give a path as it is: any key may be meant."""
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
    """An object, read by ranges: one request each."""

    def __init__(self, objects: S3Objects, info: ObjectInfo) -> None:
        super().__init__()
        self._objects = objects
        self._info = info
        self._at = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it is read at any place."""
        return True

    def tell(self) -> int:
        """Give the place of the next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._info.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes, or all that are left."""
        end = self._info.size_bytes
        stop = end if size < 0 else min(end, self._at + size)
        if stop <= self._at:
            return b""
        chunks = self._objects.stream(self._info.place, self._at, stop, etag=self._info.etag)
        data = b"".join(chunks)
        self._at += len(data)
        return data


def _place(path: str) -> ObjectPlace:
    bucket, _, key = path.partition("/")
    return ObjectPlace(bucket, key.rstrip("/"))


def _file_info(info: ObjectInfo) -> FileInfo:
    path = f"{info.place.bucket}/{info.place.key}"
    if path.endswith("/"):
        return FileInfo(path.rstrip("/"), FileType.Directory)
    return FileInfo(path, FileType.File, size=info.size_bytes, mtime_ns=info.changed_s * _NS)

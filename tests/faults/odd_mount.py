"""A FUSE mount like those of object stores: python odd_mount.py BACKING MOUNTPOINT.

Files are written sequentially and read. Folders cannot be renamed; nothing can be locked, synced,
memory-mapped or written in the middle. It implements the kernel's protocol itself, so no library is
needed. Mounting needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_HEADER = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_ATTR = struct.Struct("<6Q10I")
_ROOT = 1
_MAX_WRITE = 1 << 17
_FLOCK_LOCKS = 1 << 10  # of INIT: send flock requests here
_BIG_WRITES = 1 << 5
_DIRECT_IO = 1  # of OPEN: no page cache, hence no shared mapping
_SIZE = 8  # of SETATTR
_NO_REPLY = {2, 36, 42}  # forget, interrupt, forget many
_DETACH = 2


def mount(point: Path, handle: int) -> None:
    options = f"fd={handle},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"odd", os.fsencode(point), b"fuse.odd", 0, options):
        raise OSError(ctypes.get_errno(), "mount")


def unmount(point: Path) -> None:
    ctypes.CDLL(None).umount2(os.fsencode(point), _DETACH)


@contextmanager
def serving(backing: Path, point: Path) -> Iterator[bool]:
    """Mount within the block; yield whether mounting worked: it needs root and /dev/fuse."""
    words = [sys.executable, __file__, str(backing), str(point)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline() == "ready\n"
        finally:
            unmount(point)
            server.kill()


class OddMount:
    """Answer kernel requests from a backing folder."""

    def __init__(self, backing: Path, handle: int) -> None:
        self._backing = backing
        self._handle = handle
        self._paths = {_ROOT: Path()}
        self._ids = {Path(): _ROOT}
        self._answers: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup,
            3: self._getattr,
            4: self._setattr,
            9: self._mkdir,
            10: self._unlink,
            11: self._rmdir,
            12: lambda node, data: self._rename(node, data[8:], data[:8]),
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._statfs,
            18: self._release,
            25: lambda node, data: b"",  # flush
            26: self._init,
            27: lambda node, data: bytes(16),  # opendir
            28: self._readdir,
            29: lambda node, data: b"",
            34: lambda node, data: b"",  # access
            35: self._create,
            45: lambda node, data: self._rename(node, data[16:], data[:8]),
            52: _unknown,  # statx: the kernel falls back to getattr
        }

    def serve(self) -> None:
        while True:
            try:
                data = os.read(self._handle, _MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return  # unmounted
            _, opcode, unique, node, *_ = _HEADER.unpack_from(data)
            if opcode in _NO_REPLY:
                continue
            try:
                answer = self._answers.get(opcode, _refuse)(node, data[_HEADER.size :])
                number = 0
            except OSError as error:
                answer, number = b"", -(error.errno or errno.EIO)
            os.write(self._handle, _REPLY.pack(16 + len(answer), number, unique) + answer)

    def _init(self, node: int, data: bytes) -> bytes:
        flags = struct.unpack_from("<4I", data)[3] & (_FLOCK_LOCKS | _BIG_WRITES)
        head = struct.pack("<4I2H2I", 7, 31, 1 << 16, flags, 8, 6, _MAX_WRITE, 1)
        return head.ljust(64, b"\0")

    def _lookup(self, node: int, data: bytes) -> bytes:
        return self._entry(self._paths[node] / _name(data))

    def _entry(self, path: Path) -> bytes:
        status = (self._backing / path).lstat()
        number = self._ids.setdefault(path, len(self._ids) + _ROOT)
        self._paths[number] = path
        return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + self._attr(status)

    def _getattr(self, node: int, data: bytes) -> bytes:
        return struct.pack("<Q2I", 0, 0, 0) + self._attr(
            (self._backing / self._paths[node]).lstat()
        )

    def _attr(self, found: os.stat_result) -> bytes:
        times = (found.st_atime, found.st_mtime, found.st_ctime)
        return _ATTR.pack(
            *(found.st_ino, found.st_size, found.st_blocks),
            *(int(time) for time in times),
            *(int(time % 1 * 1e9) for time in times),
            *(found.st_mode, found.st_nlink, found.st_uid, found.st_gid, 0, 4096, 0),
        )

    def _setattr(self, node: int, data: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<2I2Q", data)
        if valid & _SIZE:
            if size:
                raise OSError(errno.EOPNOTSUPP, "only to nothing")
            os.truncate(self._backing / self._paths[node], 0)
        return self._getattr(node, data)

    def _mkdir(self, node: int, data: bytes) -> bytes:
        path = self._paths[node] / _name(data[8:])
        (self._backing / path).mkdir()
        return self._entry(path)

    def _unlink(self, node: int, data: bytes) -> bytes:
        (self._backing / self._paths[node] / _name(data)).unlink()
        return b""

    def _rmdir(self, node: int, data: bytes) -> bytes:
        (self._backing / self._paths[node] / _name(data)).rmdir()
        return b""

    def _rename(self, node: int, names: bytes, folder: bytes) -> bytes:
        old, new, _ = names.split(b"\0", 2)
        source = self._paths[node] / os.fsdecode(old)
        target = self._paths[struct.unpack("<Q", folder)[0]] / os.fsdecode(new)
        if (self._backing / source).is_dir():
            raise OSError(errno.EOPNOTSUPP, "a folder")
        (self._backing / source).rename(self._backing / target)
        return b""

    def _open(self, node: int, data: bytes) -> bytes:
        flags = struct.unpack_from("<I", data)[0] & ~os.O_NOFOLLOW
        handle = os.open(self._backing / self._paths[node], flags & ~os.O_CREAT & ~os.O_EXCL)
        return struct.pack("<Q2I", handle, _DIRECT_IO, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        flags, mode = struct.unpack_from("<2I", data)
        path = self._paths[node] / _name(data[16:])
        handle = os.open(self._backing / path, flags | os.O_CREAT, mode & 0o777)
        return self._entry(path) + struct.pack("<Q2I", handle, _DIRECT_IO, 0)

    def _read(self, node: int, data: bytes) -> bytes:
        handle, at, size = struct.unpack_from("<2QI", data)
        return os.pread(handle, size, at)

    def _write(self, node: int, data: bytes) -> bytes:
        handle, at, size = struct.unpack_from("<2QI", data)
        if at != os.fstat(handle).st_size:
            raise OSError(errno.EOPNOTSUPP, "not at the end")
        return struct.pack("<2I", os.pwrite(handle, data[40 : 40 + size], at), 0)

    def _release(self, node: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def _readdir(self, node: int, data: bytes) -> bytes:
        _, at, size = struct.unpack_from("<2QI", data)
        answer = b""
        names = (path.name for path in (self._backing / self._paths[node]).iterdir())
        for number, name in enumerate(sorted(names), 1):
            if number <= at:
                continue
            encoded = os.fsencode(name)
            entry = struct.pack("<2Q2I", number, number, len(encoded), 0) + encoded
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _statfs(self, node: int, data: bytes) -> bytes:
        found = os.statvfs(self._backing)
        counts = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("<5Q10I", *counts, found.f_frsize, 255, found.f_frsize, *(0,) * 7)


def _name(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])


def _unknown(node: int, data: bytes) -> bytes:
    raise OSError(errno.ENOSYS, "no such call")


def _refuse(node: int, data: bytes) -> bytes:
    raise OSError(errno.EOPNOTSUPP, "not here")


if __name__ == "__main__":
    behind, here = (Path(word) for word in sys.argv[1:])
    device = os.open("/dev/fuse", os.O_RDWR)
    mount(here, device)
    print("ready", flush=True)
    OddMount(behind, device).serve()

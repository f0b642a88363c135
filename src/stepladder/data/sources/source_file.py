"""Read a source picture's bytes: never a FIFO or a device, never more than a picture can hold."""

from __future__ import annotations

import os
import stat

from stepladder.data.decoding.formats import BadPictureError

_BYTES_PER_PIXEL = 8  # 16-bit RGBA, not compressed at all
_BYTES_AROUND = 1 << 20
_MAX_BYTES = 2**31 - _BYTES_AROUND  # lengths in a Parquet page have 31 bits


def read_file(path: str, *, max_pixels: int) -> tuple[bytes, os.stat_result]:
    """Read a whole file, and its status as of the same open file.

    Raises:
        BadPictureError: if it cannot be read, is no regular file, is empty, or is larger than a
            picture of max_pixels can be.
    """
    try:
        # a FIFO without a writer would block an ordinary open for ever
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BadPictureError(_reason(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise BadPictureError("is not a regular file")
        if status.st_size == 0:
            raise BadPictureError("is empty (0 bytes)")
        if status.st_size > min(max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND, _MAX_BYTES):
            raise BadPictureError(f"is {status.st_size} bytes, larger than any picture allowed")
        data = _read_to_end(handle, status.st_size)
    except OSError as error:
        raise BadPictureError(_reason(error)) from None
    finally:
        os.close(handle)
    if len(data) != status.st_size:
        raise BadPictureError("changed while it was read")
    return data, status


def _read_to_end(handle: int, num_bytes: int) -> bytes:
    """Read so many bytes, or up to the end; a network file system may give them in pieces."""
    data = os.read(handle, num_bytes)
    while len(data) < num_bytes and (more := os.read(handle, num_bytes - len(data))):
        data += more
    return data


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    text = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot be read: {text}"

"""Read a source picture: regular files only, with an upper limit on their size."""

from __future__ import annotations

import os
import stat

from stepladder.data.decoding.formats import BadPictureError

NO_FILE = "does not exist"
EMPTY = "empty (0 bytes)"
_BYTES_PER_PIXEL = 8  # 16-bit RGBA, uncompressed
_BYTES_AROUND = 1 << 20
_MAX_BYTES = 2**31 - _BYTES_AROUND  # lengths in a Parquet page have 31 bits


def read_file(path: str, *, max_pixels: int) -> tuple[bytes, os.stat_result]:
    """Read a whole file and the status of the same open file.

    Raises:
        BadPictureError: if it cannot be read, is not a regular file, is empty, or is larger than
            a picture of max_pixels can be.
    """
    try:
        # a blocking open would wait forever for the writer of a FIFO
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise BadPictureError(_reason(error)) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise BadPictureError("is not a regular file")
        if status.st_size == 0:
            raise BadPictureError(f"is {EMPTY}")
        if status.st_size > min(max_pixels * _BYTES_PER_PIXEL + _BYTES_AROUND, _MAX_BYTES):
            raise BadPictureError(
                f"is {status.st_size} bytes, more than --max-pixels allows for a picture"
            )
        data = _read_to_end(handle, status.st_size)
    except OSError as error:
        raise BadPictureError(_reason(error)) from None
    finally:
        os.close(handle)
    if len(data) != status.st_size:
        raise BadPictureError("changed while it was read")
    return data, status


def _read_to_end(handle: int, num_bytes: int) -> bytes:
    """Read num_bytes, or up to the end; a network file system may return fewer per call."""
    data = os.read(handle, num_bytes)
    while len(data) < num_bytes and (more := os.read(handle, num_bytes - len(data))):
        data += more
    return data


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return NO_FILE
    text = error.strerror if isinstance(error, OSError) else str(error)
    return f"cannot be read: {text}"

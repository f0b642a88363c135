"""Keep freed memory in the process, so that large CPU tensors do not page-fault on every use.

Or return it at once, where memory is what is missing.

glibc returns every large block to the kernel when it is freed, and requests it again, zeroed page
by page, for the next layer. For a network's activations that can be half of all CPU time. Two
settings of malloc keep such blocks in the process. Results are bitwise identical.

Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_BLOCK_BYTES = (1 << 30, 32 << 20)  # older versions of glibc accept at most 32 MiB
_NEVER_TRIM = (1 << 31) - 1
_LARGE_BYTES = 128 << 10  # glibc's default, which grows with the blocks that are freed unless set
_OWN_SETTINGS = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def keep_freed_memory() -> bool:
    """Configure malloc to keep freed blocks of up to 1 GiB until the process ends.

    The process then keeps its peak memory, and more if blocks of many sizes cause fragmentation.
    Does nothing if the C library is not glibc, or if the user has configured malloc.

    Returns:
        Whether malloc was configured.
    """
    return _configure(_LARGEST_BLOCK_BYTES, _NEVER_TRIM)


def return_freed_memory() -> bool:
    """Configure malloc to return freed blocks of 128 KiB or more to the kernel at once.

    By default, glibc keeps blocks as large as those that were freed before, and fragments: where
    large tensors come and go, a process may keep several times what it uses.
    Does nothing if the C library is not glibc, or if the user has configured malloc.

    Returns:
        Whether malloc was configured.
    """
    return _configure((_LARGE_BYTES,), _LARGE_BYTES)


def _configure(mmap_bytes: tuple[int, ...], trim_bytes: int) -> bool:
    """Set the size from which a block is a mapping of its own, and what is kept at the heap's end.

    Args:
        mmap_bytes: sizes, of which the first that glibc accepts is used.
    """
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    is_set = any(mallopt(_MMAP_THRESHOLD, size) == 1 for size in mmap_bytes)
    return is_set and mallopt(_TRIM_THRESHOLD, trim_bytes) == 1

"""Keep freed memory in the process, so that large CPU tensors do not fault in anew each time.

glibc gives every large block back to the kernel when it is freed, and asks for it again, zeroed and
page by page, when the next layer needs one. For a network's activations that can be half of all CPU
time. Two settings of malloc keep such blocks in the process. Results do not change by a bit.

Source: mallopt(3), M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
"""

from __future__ import annotations

import ctypes
import os
import platform

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_BLOCK_BYTES = (1 << 30, 32 << 20)  # older versions of glibc take at most 32 MiB
_NEVER_TRIM = (1 << 31) - 1
_OWN_SETTINGS = (
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
)


def keep_freed_memory() -> bool:
    """Tell malloc to keep freed blocks of up to 1 GiB, for as long as the process lives.

    The process then holds what it needed at its peak, and more where blocks of many sizes leave
    gaps. Does nothing where the C library is not glibc, or where the user has set malloc up.

    Returns:
        Whether it was done.
    """
    if platform.libc_ver()[0] != "glibc" or any(os.environ.get(name) for name in _OWN_SETTINGS):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    keeps_large = any(mallopt(_MMAP_THRESHOLD, size) == 1 for size in _LARGEST_BLOCK_BYTES)
    return keeps_large and mallopt(_TRIM_THRESHOLD, _NEVER_TRIM) == 1

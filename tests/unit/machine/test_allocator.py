"""The allocator setting: applied on glibc, and left alone if the user has configured malloc."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from stepladder.machine import keep_freed_memory

# Frees and allocates 64 MB repeatedly, and counts the page faults.
COUNT_FAULTS = """
import ctypes, resource, sys
from stepladder.machine.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(ctypes.c_void_p(block))
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_a_freed_block_is_used_again_without_page_faults() -> None:
    faults = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", COUNT_FAULTS, mode],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for mode in ("keep", "plain")
    }
    assert faults["keep"] < faults["plain"] / 4


def test_a_user_who_has_set_malloc_up_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert not keep_freed_memory()


# Frees 32 MB, after which glibc would take such blocks from the heap; a smaller block behind each
# keeps the heap from shrinking.
COUNT_KEPT = """
import ctypes, sys, psutil
from stepladder.machine.allocator import return_freed_memory
if sys.argv[1] == "return":
    assert return_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
SIZE = 24 << 20
libc.free(ctypes.c_void_p(libc.malloc(SIZE)))
before = psutil.Process().memory_info().rss
blocks = []
for _ in range(8):
    block = libc.malloc(SIZE)
    ctypes.memset(block, 1, SIZE)
    blocks.append(block)
    pin = libc.malloc(100_000)
for block in blocks:
    libc.free(ctypes.c_void_p(block))
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the setting is glibc's")
def test_freed_blocks_are_returned_where_memory_is_short() -> None:
    kept = {
        mode: int(
            subprocess.run(
                [sys.executable, "-c", COUNT_KEPT, mode],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for mode in ("return", "plain")
    }
    assert kept["plain"] > 100 << 20
    assert kept["return"] < 30 << 20

"""Reading the frames of a thread that runs on, and collects garbage that lets others run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import _thread, gc, sys, threading, time
from pathlib import Path
from types import SimpleNamespace

from stepladder.watching.hooks.costs import stacks
from stepladder.watching.script.own_code import OwnCode

class Circle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        time.sleep(0)

def numbers(n):
    yield from range(n)

def work(depth):
    Circle()
    return depth and work(depth - 1) + sum(map(lambda n: n + depth, numbers(3)))

def read():
    try:
        end = time.monotonic() + 4
        while time.monotonic() < end:
            parts.add(watch._read(threading.main_thread().ident)[1])
            time.sleep(0.0003)
    except Exception as error:
        parts.add(repr(error))
    ended.set()

parts, ended = set(), threading.Event()
watch = stacks.StackWatch()
watch._watcher = SimpleNamespace(own=OwnCode(Path(__file__).parent))
gc.set_threshold(300)
_thread.start_new_thread(read, ())
while not ended.is_set():
    work(12)
assert gc.isenabled() and parts == {"own"}, parts
"""


@pytest.mark.thorough
def test_garbage_is_collected_while_stacks_are_read(tmp_path: Path) -> None:
    """In Python 3.11 this ended in frames without code, or in threads that wait for each other."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    run = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr

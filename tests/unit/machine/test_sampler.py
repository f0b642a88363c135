"""Samples tell what the process uses; whatever goes wrong in them stays in them."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from threading import Event

import numpy as np

from stepladder.machine import SystemSampler
from stepladder.machine.sampler import tree_memory_bytes


def test_a_busy_process_shows_as_busy() -> None:
    samples: list[dict[str, float]] = []
    enough = Event()

    def keep(sample: dict[str, float]) -> None:
        samples.append(sample)
        if len(samples) == 2:
            enough.set()

    with SystemSampler(0.1, keep):
        while not enough.is_set():
            sum(range(10_000))
    assert max(sample["cpu_percent"] for sample in samples) > 5
    assert all(sample["rss_bytes"] > 1e6 for sample in samples)
    count = len(samples)
    time.sleep(0.2)
    assert len(samples) == count


def test_memory_of_this_process_and_of_children_counts() -> None:
    before = tree_memory_bytes()
    fresh = mmap.mmap(-1, 50_000_000)  # not from malloc, which may keep freed memory resident
    block = np.frombuffer(fresh, dtype=np.uint8)
    block[:] = 1
    grown = tree_memory_bytes()
    assert grown - before > 45e6
    code = "block = bytearray(b'1') * 60_000_000; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert tree_memory_bytes() - grown > 55e6
        child.communicate(b"\n")
    assert block.sum() == 50_000_000


def test_an_error_in_the_callback_ends_the_samples_only() -> None:
    called = Event()

    def fail(_: dict[str, float]) -> None:
        called.set()
        raise RuntimeError("no")

    sampler = SystemSampler(0.01, fail)
    sampler.start()
    assert called.wait(10)
    sampler.stop()


def test_stop_does_not_wait_for_the_interval() -> None:
    with SystemSampler(3600.0, lambda _: None):
        pass


def test_stop_without_start_does_nothing() -> None:
    SystemSampler(1.0, lambda _: None).stop()

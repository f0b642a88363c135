"""Samples show the resources that the process uses; errors in sampling do not spread."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from stepladder.machine import EnergyMeter, SystemSampler
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes by process")
def test_bytes_to_the_disk_count_once_those_of_ended_children_too(tmp_path: Path) -> None:
    samples: list[dict[str, float]] = []
    target = tmp_path / "written"
    code = (
        "import os, sys; f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT); "
        "os.write(f, os.urandom(8_000_000)); os.fsync(f); "
        "import psutil; print(psutil.Process().io_counters().write_bytes)"
    )
    with SystemSampler(0.1, samples.append):
        child = [sys.executable, "-c", code, str(target)]
        done = subprocess.run(child, check=True, capture_output=True, text=True)
        while len(samples) < 3 or samples[-1]["disk_write_bytes_per_s"] != 0:
            time.sleep(0.02)
    counted = int(done.stdout)  # none where files are in memory
    written = 0.1 * sum(sample["disk_write_bytes_per_s"] for sample in samples)
    assert all(sample["disk_read_bytes_per_s"] >= 0 for sample in samples)
    assert (written > 0) == (counted > 0)
    assert written < 1.5 * counted + 1  # samples are at least 0.1 s apart


def test_network_and_energy_are_reported_where_they_are_counted(tmp_path: Path) -> None:
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (zone / "energy_uj").write_text("0")
    meter = EnergyMeter(tmp_path)
    meter.start()
    (zone / "energy_uj").write_text("3600000000")  # one watt-hour
    samples: list[dict[str, float]] = []
    enough = Event()

    def keep(sample: dict[str, float]) -> None:
        samples.append(sample)
        enough.set()

    with SystemSampler(0.01, keep, energy=meter):
        assert enough.wait(10)
    assert samples[0]["energy_wh"] == 1.0
    assert samples[0].get("network_bytes_per_s", 0.0) >= 0


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

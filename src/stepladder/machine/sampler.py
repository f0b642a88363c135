"""A thread that samples CPU, memory and GPU use during training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

import psutil

from stepladder.machine.energy import EnergyMeter
from stepladder.machine.gpu import Nvml


class SystemSampler:
    """Sample the use of this process and its children every few seconds.

    A sample is {"cpu_percent", "rss_bytes"} and, if the system reports them, {"energy_wh",
    "disk_read_bytes_per_s", "disk_write_bytes_per_s", "network_bytes_per_s"}, and if a GPU reports
    them {"gpu_percent", "gpu_memory_bytes", "power_w"}. 100 % is one core. Memory is anonymous and
    shared pages, without the page cache. Energy is since the meter's start. Disk bytes exclude the
    page cache. Network bytes are those of the whole machine or container, in and out, without
    loopback, as the system does not count them per process. A sampler never stops a run: it ends
    silently after an error, also of the callback.

    Args:
        every_s: seconds between samples.
        on_sample: called in the sampler's thread.
        energy: a meter to poll on each sample.
    """

    def __init__(
        self,
        every_s: float,
        on_sample: Callable[[dict[str, float]], None],
        *,
        energy: EnergyMeter | None = None,
    ) -> None:
        self._every_s = every_s
        self._on_sample = on_sample
        self._energy = energy
        self._nvml = Nvml()
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="stepladder-sampler", daemon=True)

    def __enter__(self) -> SystemSampler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; no callback runs after that."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            tree = _tree()
            last_s, last_cpu_s, traffic = time.monotonic(), _cpu_s(tree), _Traffic(tree)
            while not self._stopping.wait(self._every_s):
                tree = _tree()  # once per sample, as it scans all processes of the machine
                now_s, cpu_s = time.monotonic(), _cpu_s(tree)
                passed_s = max(now_s - last_s, 1e-9)
                share = max(0.0, cpu_s - last_cpu_s) / passed_s
                last_s, last_cpu_s = now_s, cpu_s
                self._on_sample(self._sample(tree, 100 * share) | traffic.rates(tree, passed_s))
        except Exception:  # telemetry must not stop a run or disturb its output
            return

    def _sample(self, tree: Sequence[psutil.Process], cpu_percent: float) -> dict[str, float]:
        sample: dict[str, float] = {
            "cpu_percent": round(cpu_percent, 1),
            "rss_bytes": sum(map(_memory_bytes, tree)),
        }
        use = self._nvml.use()
        if use is not None:
            parts = {
                "gpu_percent": use.percent,
                "gpu_memory_bytes": use.memory_bytes,
                "power_w": use.power_w,
            }
            sample.update({key: value for key, value in parts.items() if value is not None})
        if self._energy is not None and (so_far := self._energy.stop()) is not None:
            sample["energy_wh"] = round(so_far, 6)  # also polls, before a counter wraps
        return sample


class _Traffic:
    """Disk and network rates since the last call."""

    def __init__(self, tree: Sequence[psutil.Process]) -> None:
        self._disk = _disk_bytes(tree)
        self._network = _network_bytes()

    def rates(self, tree: Sequence[psutil.Process], passed_s: float) -> dict[str, float]:
        """Return bytes per second since the last call, without keys that are not available."""
        disk, network = _disk_bytes(tree), _network_bytes()
        found: dict[str, float] = {}
        if disk:
            for idx, key in enumerate(("disk_read_bytes_per_s", "disk_write_bytes_per_s")):
                # a process that ended is counted by its parent, so that the sum is unaffected
                grown = sum(io[idx] for io in disk.values())
                grown -= sum(io[idx] for io in self._disk.values())
                found[key] = round(max(0, grown) / passed_s, 1)
        if network is not None and self._network is not None:
            found["network_bytes_per_s"] = round(max(0, network - self._network) / passed_s, 1)
        self._disk, self._network = disk, network
        return found


def _disk_bytes(tree: Sequence[psutil.Process]) -> dict[int, tuple[int, int]]:
    """Return bytes read from and written to disks by process; empty if not available."""
    found = {}
    for process in tree:
        try:
            counters = process.io_counters()
        except (psutil.Error, OSError, AttributeError):  # macOS has no such counters
            continue
        found[process.pid] = (int(counters.read_bytes), int(counters.write_bytes))
    return found


def _network_bytes() -> int | None:
    """Return bytes in and out of all interfaces except loopback; None if not available."""
    try:
        counters = psutil.net_io_counters(pernic=True, nowrap=True)
    except (psutil.Error, OSError):
        return None
    if not counters:
        return None
    return sum(
        int(nic.bytes_sent + nic.bytes_recv)
        for name, nic in counters.items()
        if not name.startswith("lo")
    )


def tree_memory_bytes() -> int:
    """Return the anonymous and shared memory of this process and its children, in bytes."""
    return sum(map(_memory_bytes, _tree()))


def _tree() -> list[psutil.Process]:
    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _cpu_s(tree: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of running processes and of their children that ended."""
    total = 0.0
    for process in tree:
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue  # it ended between listing and reading
        total += times.user + times.system
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def _memory_bytes(process: psutil.Process) -> int:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
        pairs = (line.partition(":") for line in lines)
        sizes = {name: value.split() for name, _, value in pairs}
        return sum(int(sizes[name][0]) * 1024 for name in ("RssAnon", "RssShmem"))
    except (OSError, KeyError, IndexError, ValueError):
        try:
            return int(process.memory_info().rss)
        except psutil.Error:
            return 0

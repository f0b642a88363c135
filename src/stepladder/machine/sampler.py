"""A thread that reads CPU, memory and GPU use while training runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from types import TracebackType

import psutil

from stepladder.machine.energy import EnergyMeter
from stepladder.machine.gpu import Nvml


class SystemSampler:
    """Call back with the use of this process and its children, every few seconds.

    A sample is {"cpu_percent", "rss_bytes"} and, where a GPU reports them, {"gpu_percent",
    "gpu_memory_bytes", "power_w"}. 100 % is one core. Memory is anonymous and shared pages,
    without the page cache. A sampler never stops a run: after an error, its callback's too, it
    falls silent.

    Args:
        every_s: seconds between samples.
        on_sample: called in the sampler's thread.
        energy: a meter to poll at each sample.
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
        """End the thread; after return no callback runs."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            last_s, last_cpu_s = time.monotonic(), _tree_cpu_s()
            while not self._stopping.wait(self._every_s):
                now_s, cpu_s = time.monotonic(), _tree_cpu_s()
                share = max(0.0, cpu_s - last_cpu_s) / max(now_s - last_s, 1e-9)
                last_s, last_cpu_s = now_s, cpu_s
                self._on_sample(self._sample(100 * share))
                if self._energy is not None:
                    self._energy.poll()
        except Exception:  # telemetry must not stop a run, nor print into its display
            return

    def _sample(self, cpu_percent: float) -> dict[str, float]:
        sample: dict[str, float] = {
            "cpu_percent": round(cpu_percent, 1),
            "rss_bytes": tree_memory_bytes(),
        }
        use = self._nvml.use()
        if use is not None:
            parts = {
                "gpu_percent": use.percent,
                "gpu_memory_bytes": use.memory_bytes,
                "power_w": use.power_w,
            }
            sample.update({key: value for key, value in parts.items() if value is not None})
        return sample


def tree_memory_bytes() -> int:
    """Give the anonymous and shared memory of this process and its children, in bytes."""
    return sum(_memory_bytes(process) for process in _tree())


def _tree() -> list[psutil.Process]:
    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _tree_cpu_s() -> float:
    """Give the CPU seconds of the living processes and of the children that ended."""
    total = 0.0
    for process in _tree():
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

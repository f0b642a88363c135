"""NVIDIA GPUs through NVML, without a CUDA context and if possible without torch.

NVML is installed by the extra `gpu`. Failures (no driver, no library, an unsupported query) are
reported as "not known" and never raised: telemetry must not stop a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A device that this process may use."""

    name: str
    memory_bytes: int
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """Current use of the visible devices; None if they do not report it.

    Attributes:
        percent: mean over devices of the percentage of time with a kernel running.
        memory_bytes: memory in use, summed.
        power_w: power drawn, summed.
    """

    percent: float | None
    memory_bytes: int | None
    power_w: float | None


def gpu_of_rank(local_rank: int) -> torch.device:
    """Return the GPU of a process by its number among those of this host.

    Where the scheduler shows each process only GPUs of its own, as Slurm does with
    `--gpus-per-task`, there are fewer visible devices than local ranks, and each process counts
    its own from 0.
    """
    import torch

    return torch.device("cuda", local_rank % max(torch.cuda.device_count(), 1))


class Nvml:
    """The visible devices of NVML; empty without driver or library."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml  # optional dependency

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = _visible_handles(pynvml)
        except Exception:  # a missing or broken driver can raise anything
            self._handles = []

    def __len__(self) -> int:
        return len(self._handles)

    def gpus(self) -> tuple[Gpu, ...]:
        """Return the visible devices."""
        found = []
        for handle in self._handles:
            name = _ask(self._nvml.nvmlDeviceGetName, handle)
            memory = _ask(self._nvml.nvmlDeviceGetMemoryInfo, handle)
            driver = _ask(self._nvml.nvmlSystemGetDriverVersion)
            found.append(
                Gpu(
                    name=_text(name) or "unknown",
                    memory_bytes=int(memory.total) if memory else 0,
                    driver=_text(driver),
                )
            )
        return tuple(found)

    def use(self) -> GpuUse | None:
        """Return the current use of the visible devices, or None if there are no devices."""
        if not self._handles:
            return None
        nvml = self._nvml
        rates = self._all(nvml.nvmlDeviceGetUtilizationRates)
        memories = self._all(nvml.nvmlDeviceGetMemoryInfo)
        powers = self._all(nvml.nvmlDeviceGetPowerUsage)  # milliwatts
        return GpuUse(
            percent=sum(rate.gpu for rate in rates) / len(rates) if rates else None,
            memory_bytes=sum(int(memory.used) for memory in memories) if memories else None,
            power_w=sum(powers) / 1000 if powers else None,
        )

    def energy_j(self) -> float | None:
        """Return the energy since the driver was loaded, in joules, summed (Volta and later)."""
        if not self._handles:
            return None
        totals = self._all(self._nvml.nvmlDeviceGetTotalEnergyConsumption)  # millijoules
        return sum(totals) / 1000 if len(totals) == len(self._handles) else None

    def _all(self, function: Callable[[Any], Any]) -> list[Any]:
        answers = [_ask(function, handle) for handle in self._handles]
        return [answer for answer in answers if answer is not None]


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use, from NVML, else from torch (imported then)."""
    found = Nvml().gpus()
    return found or _gpus_by_torch()


def _gpus_by_torch() -> tuple[Gpu, ...]:
    try:
        import torch  # takes seconds to import

        properties = [
            torch.cuda.get_device_properties(idx) for idx in range(torch.cuda.device_count())
        ]
        return tuple(Gpu(name=item.name, memory_bytes=item.total_memory) for item in properties)
    except Exception:  # a broken CUDA build can raise anything
        return ()


def _visible_handles(nvml: Any) -> list[Any]:
    """Return NVML's handles of CUDA_VISIBLE_DEVICES, given as indices or UUIDs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(idx) for idx in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        if word.isdigit():
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(word)))
        elif word.startswith(("GPU-", "MIG-")):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(word))
        else:
            break  # like CUDA: -1 hides this and all following devices
    return handles


def _ask(function: Callable[..., Any], *args: Any) -> Any | None:
    try:
        return function(*args)
    except Exception:  # an unsupported query on one device must not hide the others
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

"""NVIDIA GPUs through NVML, without a CUDA context and without torch where that is possible.

NVML comes with the extra `gpu`. Whatever fails here (no driver, no library, a device that does
not report) means "not known", never an error: telemetry must not stop a run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device this process may use."""

    name: str
    memory_bytes: int
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class GpuUse:
    """Use of the visible devices at one moment; None where they do not report it.

    Attributes:
        percent: mean over devices of the share of time with a kernel running.
        memory_bytes: memory in use, summed.
        power_w: power drawn, summed.
    """

    percent: float | None
    memory_bytes: int | None
    power_w: float | None


class Nvml:
    """The visible devices of NVML; empty where there is no driver or no library."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml  # an extra

            pynvml.nvmlInit()
            self._nvml = pynvml
            self._handles = _visible_handles(pynvml)
        except Exception:  # a missing or broken driver raises whatever it likes
            self._handles = []

    def __len__(self) -> int:
        return len(self._handles)

    def gpus(self) -> tuple[Gpu, ...]:
        """Name the visible devices."""
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
        """Read the use of the visible devices, or None if there is none."""
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
        """Read the energy drawn since the driver was loaded, in joules, summed (from Volta on)."""
        if not self._handles:
            return None
        totals = self._all(self._nvml.nvmlDeviceGetTotalEnergyConsumption)  # millijoules
        return sum(totals) / 1000 if len(totals) == len(self._handles) else None

    def _all(self, function: Callable[[Any], Any]) -> list[Any]:
        answers = [_ask(function, handle) for handle in self._handles]
        return [answer for answer in answers if answer is not None]


def gpus() -> tuple[Gpu, ...]:
    """Name the GPUs this process may use: by NVML, else by torch (imported only then)."""
    found = Nvml().gpus()
    return found or _gpus_by_torch()


def _gpus_by_torch() -> tuple[Gpu, ...]:
    try:
        import torch  # seconds to import

        properties = [
            torch.cuda.get_device_properties(idx) for idx in range(torch.cuda.device_count())
        ]
        return tuple(Gpu(name=item.name, memory_bytes=item.total_memory) for item in properties)
    except Exception:  # a broken CUDA build raises whatever it likes
        return ()


def _visible_handles(nvml: Any) -> list[Any]:
    """Map CUDA_VISIBLE_DEVICES, as indices or UUIDs, onto NVML's devices."""
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
            break  # as CUDA does: -1 hides itself and all that follow
    return handles


def _ask(function: Callable[..., Any], *args: Any) -> Any | None:
    try:
        return function(*args)
    except Exception:  # an unsupported query on one device must not hide the others
        return None


def _text(value: Any) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

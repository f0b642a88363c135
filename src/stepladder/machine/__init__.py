"""The machine: cores, memory and cgroup limits, disks, GPUs, versions, energy."""

from stepladder.machine.allocator import keep_freed_memory, return_freed_memory
from stepladder.machine.contention import MAX_CORES_MISSING, Usage, cores_missing_since
from stepladder.machine.energy import EnergyMeter
from stepladder.machine.environment import cpu_model, environment, instruction_set, versions
from stepladder.machine.filesystem import is_on_spinning_disk
from stepladder.machine.gpu import Gpu, gpus
from stepladder.machine.limits import (
    available_memory_bytes,
    disk_free_bytes,
    memory_limit_bytes,
    num_cores,
)
from stepladder.machine.sampler import SystemSampler

__all__ = [
    "MAX_CORES_MISSING",
    "EnergyMeter",
    "Gpu",
    "SystemSampler",
    "Usage",
    "available_memory_bytes",
    "cores_missing_since",
    "cpu_model",
    "disk_free_bytes",
    "environment",
    "gpus",
    "instruction_set",
    "is_on_spinning_disk",
    "keep_freed_memory",
    "return_freed_memory",
    "memory_limit_bytes",
    "num_cores",
    "versions",
]

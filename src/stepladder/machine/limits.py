"""Cores, memory and disk that this process may use, including limits of its container."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/")
_NO_LIMIT = 1 << 60  # cgroup v1 has a number near 2^63 if there is no limit


def num_cores(root: Path = ROOT) -> int:
    """Return the cores that this process may use: affinity and cgroup quota, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _cpu_quota(root)
    return max(1, min(allowed or 1, math.ceil(quota) if quota else allowed or 1))


def memory_limit_bytes(root: Path = ROOT) -> int:
    """Return the memory limit of this process: the minimum of the machine and its cgroups."""
    limits = [limit for limit, _ in _memory_cgroups(root)]
    return min([psutil.virtual_memory().total, *limits])


def available_memory_bytes(root: Path = ROOT) -> int:
    """Return the memory available without swapping, within the cgroup's limit."""
    left = [max(0, limit - used) for limit, used in _memory_cgroups(root)]
    return min([psutil.virtual_memory().available, *left])


def disk_free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist."""
    place = path.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return shutil.disk_usage(place).free


def _cpu_quota(root: Path) -> float | None:
    """Return the lowest CPU quota of all enclosing cgroups, in cores."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        words = _read(folder / "cpu.max").split()  # v2: "200000 100000" or "max 100000"
        if len(words) != 2:
            words = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        quota, period = (_number(word) for word in words)
        if quota and period and quota > 0:
            quotas.append(quota / period)
    return min(quotas, default=None)


def _memory_cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield (limit, usage without cache) in bytes for each enclosing cgroup with a limit."""
    names = (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    )
    for folder in _cgroup_folders(root, "memory"):
        for limit_name, use_name, cache_name in names:
            limit = _number(_read(folder / limit_name))
            if limit is None or limit >= _NO_LIMIT:
                continue
            words = _read(folder / "memory.stat").split()
            stat = dict(zip(words[::2], words[1::2], strict=False))
            cache = _number(stat.get(cache_name, "0")) or 0
            yield limit, max(0, (_number(_read(folder / use_name)) or 0) - cache)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield this process's cgroup of a controller and its parents, innermost first.

    In a container, its own cgroup is often mounted as the root while /proc has the host's path;
    callers skip folders that do not exist.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        inner = mount / path.lstrip("/")
        yield inner
        for folder in inner.parents:
            if not folder.is_relative_to(mount):
                break
            yield folder


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None

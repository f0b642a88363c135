"""A container's limits are respected, read from cgroup file trees as kernels lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from stepladder.machine import (
    available_memory_bytes,
    disk_free_bytes,
    memory_limit_bytes,
    num_cores,
)

GIB = 1 << 30


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert num_cores(tmp_path) == len(os.sched_getaffinity(0))
    assert memory_limit_bytes(tmp_path) == psutil.virtual_memory().total
    assert 0 < available_memory_bytes(tmp_path) <= psutil.virtual_memory().total


@pytest.mark.parametrize(("quota", "cores"), [("50000", 1), ("100000", 1), ("150000", 2)])
def test_a_version_2_quota_is_rounded_up(
    tmp_path: Path, quota: str, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root = lay(
        tmp_path,
        {"proc/self/cgroup": "0::/box/job", "sys/fs/cgroup/box/job/cpu.max": f"{quota} 100000"},
    )
    assert num_cores(root) == cores


def test_the_tightest_enclosing_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "0::/box/job",
            "sys/fs/cgroup/box/job/cpu.max": "max 100000",
            "sys/fs/cgroup/box/cpu.max": "300000 100000",
            "sys/fs/cgroup/box/job/memory.max": "max",
            "sys/fs/cgroup/box/memory.max": str(GIB),
            "sys/fs/cgroup/box/memory.current": str(GIB // 2),
            "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {GIB // 4}",
        },
    )
    assert num_cores(root) == 3
    assert memory_limit_bytes(root) == GIB
    assert available_memory_bytes(root) == GIB - GIB // 4


def test_version_1_limits_are_read_where_a_container_mounts_them(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc\n0::/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.stat": f"cache 1\ntotal_inactive_file {GIB // 8}",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert num_cores(root) == 1
    assert memory_limit_bytes(root) == GIB
    assert available_memory_bytes(root) == GIB // 8


def test_version_1_without_a_limit_is_not_a_limit(tmp_path: Path) -> None:
    root = lay(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
        },
    )
    assert memory_limit_bytes(root) == psutil.virtual_memory().total


def test_free_space_of_a_place_that_is_not_made_yet(tmp_path: Path) -> None:
    assert disk_free_bytes(tmp_path / "not" / "made" / "yet") > 0
    assert not (tmp_path / "not").exists()

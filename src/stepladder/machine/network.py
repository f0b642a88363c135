"""What processes on several devices or machines need to reach each other."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import psutil

SHARED_MEMORY: Final = Path("/dev/shm")
_CHOICES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA")
_OWN: Final = "an interface of this machine"
_LEAST_SHM_BYTES: Final = 256 * 2**20
"""Shared memory below which NCCL between GPUs may fail: Docker's default is 64 MB."""


def network_facts() -> dict[str, Any]:
    """Return the network interfaces that are up with their speed, and where the host's name leads.

    Contains no addresses.
    """
    interfaces = _interfaces_up()
    leads_to = _leads_to(_host_addresses())
    if leads_to != _OWN and interfaces and "GLOO_SOCKET_IFNAME" not in os.environ:
        leads_to += f"; for several machines: export GLOO_SOCKET_IFNAME={next(iter(interfaces))}"
    found: dict[str, Any] = {
        "interfaces": [_interface(name, stats) for name, stats in interfaces.items()],
        "host_name_leads_to": leads_to,
    }
    return found | {name: os.environ[name] for name in _CHOICES if name in os.environ}


def shared_memory_facts(folder: Path = SHARED_MEMORY) -> dict[str, int]:
    """Return the size of the shared memory and its free part, in bytes; {} without it."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return {}
    return {"total_bytes": usage.total, "free_bytes": usage.free}


def network_problems(
    network: Mapping[str, Any], shared_memory: Mapping[str, int], *, num_gpus: int
) -> list[str]:
    """Return what would stop a run on several machines or GPUs, each with what to type.

    Args:
        network, shared_memory: of `network_facts` and `shared_memory_facts`.
    """
    problems = []
    interfaces = [words.split(" ")[0] for words in network["interfaces"]]
    unknown = [
        (name, network[name])
        for name in _CHOICES[:2]
        if name in network and not _is_there(network[name], interfaces)
    ]
    problems += [
        f"{name} is {value}, but this machine has the network interfaces "
        f"{', '.join([*interfaces, 'lo'])}. Type: unset {name}"
        for name, value in unknown
    ]
    total = shared_memory.get("total_bytes")
    if num_gpus > 1 and total is not None and total < _LEAST_SHM_BYTES:
        problems.append(
            f"{SHARED_MEMORY} has {total / 1e6:.0f} MB, which is too little for several GPUs. In "
            "Docker, type: docker run --shm-size=8g …"
        )
    return problems


def _is_there(value: str, interfaces: list[str]) -> bool:
    """Return whether a choice names an interface: NCCL takes prefixes, exclusions and lists."""
    if value.startswith("^"):
        return True
    wanted = [word.removeprefix("=") for word in value.split(",")]
    names = [*interfaces, "lo"]
    return any(name.startswith(word) for word in wanted for name in names)


def _interfaces_up() -> dict[str, Any]:
    """Return the statistics of the interfaces that are up, without the loopback; fastest first."""
    stats = {
        name: one
        for name, one in psutil.net_if_stats().items()
        if one.isup and "loopback" not in getattr(one, "flags", "") and name != "lo"
    }
    return dict(sorted(stats.items(), key=lambda item: (-item[1].speed, item[0])))


def _interface(name: str, stats: Any) -> str:
    speed = f"{stats.speed / 1000:g} Gbit/s" if stats.speed else "speed unknown"
    return f"{name} ({speed})"


def _host_addresses() -> list[str]:
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return sorted({str(item[4][0]) for item in found})


def _leads_to(addresses: list[str]) -> str:
    """Return where the addresses of the host's name lead, in words."""
    if not addresses:
        return "no address"
    if all(ipaddress.ip_address(one).is_loopback for one in addresses):
        return "the loopback interface"
    own = {address.address for found in psutil.net_if_addrs().values() for address in found}
    return _OWN if set(addresses) & own else "another host"

"""What processes on several devices or machines need to reach each other."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

SHARED_MEMORY: Final = Path("/dev/shm")
GLOO_INTERFACE: Final = "GLOO_SOCKET_IFNAME"
NCCL_INTERFACE: Final = "NCCL_SOCKET_IFNAME"
NCCL_ADAPTERS: Final = "NCCL_IB_HCA"
_CHOICES: Final = (GLOO_INTERFACE, NCCL_INTERFACE, NCCL_ADAPTERS)
_ADAPTERS: Final = Path("/sys/class/infiniband")
_VIRTUAL: Final = ("docker", "veth", "br-", "virbr", "cni", "flannel", "cali", "tun", "dummy")
_OWN: Final = "an interface of this machine"
_PORTS: Final = (29400, 29500)  # torchrun's defaults, with and without a rendezvous
_ANSWER_S: Final = 3.0
_LEAST_SHM_BYTES: Final = 256 * 2**20
"""Shared memory below which NCCL between GPUs may fail: Docker's default is 64 MB."""


@dataclass(frozen=True, kw_only=True)
class Interface:
    """A network interface that is up.

    Attributes:
        addresses: IPv4 and IPv6.
        gbit_s: None: unknown.
        is_loopback: it leads only to this machine.
        is_virtual: its name is that of a bridge between containers, which leads to no other host.
    """

    name: str
    addresses: tuple[str, ...] = ()
    gbit_s: float | None = None
    is_loopback: bool = False
    is_virtual: bool = False

    def __str__(self) -> str:
        speed = "speed unknown" if self.gbit_s is None else f"{self.gbit_s:g} Gbit/s"
        return f"{self.name} ({speed})"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """A port of an adapter for RDMA: InfiniBand, or RoCE on Ethernet.

    Attributes:
        name: as in NCCL_IB_HCA, such as `mlx5_0:1`.
        kind: "InfiniBand" or "Ethernet".
        gbit_s: None: unknown.
    """

    name: str
    kind: str
    is_active: bool
    gbit_s: float | None = None

    def __str__(self) -> str:
        speed = "" if self.gbit_s is None else f", {self.gbit_s:g} Gbit/s"
        return f"{self.name} ({self.kind}{speed}{'' if self.is_active else ', not active'})"


def interfaces_up() -> list[Interface]:
    """Return the network interfaces that are up, fastest first, with the loopback."""
    addresses = psutil.net_if_addrs()
    found = [
        Interface(
            name=name,
            addresses=tuple(
                address.address.partition("%")[0]
                for address in addresses.get(name, ())
                if address.family in (socket.AF_INET, socket.AF_INET6)
            ),
            gbit_s=stats.speed / 1000 if stats.speed else None,
            is_loopback=name == "lo" or "loopback" in getattr(stats, "flags", ""),
            is_virtual=name.startswith(_VIRTUAL),
        )
        for name, stats in psutil.net_if_stats().items()
        if stats.isup
    ]
    return sorted(found, key=lambda one: (-(one.gbit_s or 0.0), one.name))


def source_address(host: str, port: int) -> str | None:
    """Return the address of this machine from which it reaches another; None: there is no route.

    The kernel is asked for the route: no packet is sent.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            address: str = probe.getsockname()[0]
    except OSError:
        return None
    return address


def adapters(folder: Path = _ADAPTERS) -> list[Adapter]:
    """Return the ports of the adapters for RDMA; empty without any."""
    found = []
    for port in sorted(folder.glob("*/ports/*")):
        found.append(
            Adapter(
                name=f"{port.parent.parent.name}:{port.name}",
                kind=_line(port / "link_layer") or "InfiniBand",
                is_active="ACTIVE" in _line(port / "state"),
                gbit_s=_first_number(_line(port / "rate")),  # such as "200 Gb/sec (4X HDR)"
            )
        )
    return found


def _line(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return ""


def _first_number(words: str) -> float | None:
    try:
        return float(words.split()[0])
    except (IndexError, ValueError):
        return None


def network_facts(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Return the network interfaces that are up with their speed, and where the host's name leads.

    Contains no addresses.
    """
    found: dict[str, Any] = {
        "interfaces": [str(one) for one in interfaces_up() if not one.is_loopback],
        "host_name_leads_to": _leads_to(_host_addresses()),
    }
    if ports := adapters():
        found["rdma_adapters"] = [str(one) for one in ports]
    return found | {name: environ[name] for name in _CHOICES if name in environ}


def shared_memory_facts(folder: Path = SHARED_MEMORY) -> dict[str, int]:
    """Return the size of the shared memory and its free part, in bytes; {} without it."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return {}
    return {"total_bytes": usage.total, "free_bytes": usage.free}


def port_facts(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return whether the ports at which the processes of a run meet are free, and rank 0 answers.

    Contains no addresses.
    """
    found = {str(port): "free" if is_free(port) else "in use" for port in _PORTS}
    if (rank_0 := rank_0_state(environ)) is not None:
        found["rank_0"] = rank_0
    return found


def rank_0_state(environ: Mapping[str, str]) -> str | None:
    """Return what is at MASTER_ADDR and MASTER_PORT, in words; None: they are not both set."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT", "")
    if not host or not port.isdigit():
        return None
    address = source_address(host, int(port))
    if address is None:
        return "this machine has no route to it"
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_S):
            return "answers"
    except OSError as error:
        return f"does not answer: {error.strerror or error}"


def is_free(port: int) -> bool:
    """Return whether a process can listen at a port of this machine."""
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            own.bind(("", port))
        except OSError:
            return False
    return True


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

"""Choose the network through which gloo and NCCL exchange data, unless the user has chosen one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.machine.network import (
    GLOO_INTERFACE,
    NCCL_ADAPTERS,
    NCCL_INTERFACE,
    Adapter,
    Interface,
    adapters,
    interfaces_up,
    source_address,
)
from stepladder.parallel.place import Place

_own: dict[str, str] = {}  # variables that were set here: another group may need others
_EXACT: Final = "="  # NCCL otherwise takes a name as a prefix: eth1 would include eth10


@dataclass(frozen=True, kw_only=True)
class Network:
    """What gloo and NCCL use on this machine.

    Attributes:
        interface: what is printed about the interface; None: all processes are on one machine, or
            nothing is known.
        adapters: what is printed about the adapters for RDMA; None: this machine has no adapter.
        variables: environment variables to set.
    """

    interface: str | None = None
    adapters: str | None = None
    variables: Mapping[str, str]

    def __str__(self) -> str:
        if self.adapters is None:
            return str(self.interface)
        return f"{self.interface}, RDMA by {self.adapters}"


def use_network(place: Place, *, peer: str | None, is_cuda: bool) -> Network:
    """Choose the network of this process, and set the variables that the user has not set.

    Args:
        peer: an address of another host than that of rank 0; None: it is not known.
    """
    network = chosen_network(
        place,
        {name: value for name, value in os.environ.items() if _own.get(name) != value},
        interfaces=interfaces_up(),
        ports=adapters() if is_cuda else [],
        peer=peer,
    )
    _own.update(network.variables)
    os.environ.update(network.variables)
    return network


def chosen_network(
    place: Place,
    environ: Mapping[str, str],
    *,
    interfaces: Sequence[Interface],
    ports: Sequence[Adapter],
    peer: str | None = None,
    route: Callable[[str, int], str | None] = source_address,
) -> Network:
    """Choose the interface that leads to rank 0, and the fastest adapters that are connected.

    Without a choice, gloo uses the address that the name of the host leads to, which may be that
    of the loopback, and NCCL uses all interfaces, also those that lead to no other host.

    Args:
        environ: of this process; what it sets is kept.
        interfaces: those that are up, fastest first.
        ports: of adapters for RDMA.
        peer: an address of another host than that of rank 0, whose own name may lead to its
            loopback there.
        route: returns the own address from which a host and port are reached, or None.
    """
    if place.local_size == place.size:
        loopback = next((one.name for one in interfaces if one.is_loopback), None)
        is_set = GLOO_INTERFACE in environ or loopback is None
        return Network(variables={} if is_set else {GLOO_INTERFACE: str(loopback)})
    variables: dict[str, str] = {}
    interface = _interface(place, peer, interfaces, route)
    theirs = environ.get(GLOO_INTERFACE) or _one_name(environ.get(NCCL_INTERFACE), interfaces)
    if theirs is not None:
        interface = next((one for one in interfaces if one.name == theirs), None)
    if interface is not None:
        wanted = {GLOO_INTERFACE: interface.name, NCCL_INTERFACE: _EXACT + interface.name}
        variables |= {name: value for name, value in wanted.items() if name not in environ}
    names = _fastest(ports)
    if names and NCCL_ADAPTERS not in environ:
        variables[NCCL_ADAPTERS] = _EXACT + ",".join(one.name for one in names)
    return Network(
        interface=theirs if interface is None else str(interface),
        adapters=environ.get(NCCL_ADAPTERS, ", ".join(map(str, names))) if ports else None,
        variables=variables,
    )


def _interface(
    place: Place,
    peer: str | None,
    interfaces: Sequence[Interface],
    route: Callable[[str, int], str | None],
) -> Interface | None:
    """Return the interface that leads to rank 0, or to another host; else the fastest one."""
    outward = [one for one in interfaces if not one.is_loopback and one.addresses]
    for host in filter(None, (place.address, peer)):
        address = route(host, place.port)
        if (found := next((one for one in outward if address in one.addresses), None)) is not None:
            return found
    return next((one for one in outward if not one.is_virtual), None)


def _one_name(value: str | None, interfaces: Sequence[Interface]) -> str | None:
    """Return the interface that a choice for NCCL names, if it is one, else None."""
    name = (value or "").removeprefix(_EXACT)
    return name if any(one.name == name for one in interfaces) else None


def _fastest(ports: Sequence[Adapter]) -> list[Adapter]:
    """Return the connected ports with the highest speed: others are for storage, or slow all."""
    active = [one for one in ports if one.is_active]
    most = max((one.gbit_s or 0.0 for one in active), default=0.0)
    return [one for one in active if (one.gbit_s or 0.0) == most]

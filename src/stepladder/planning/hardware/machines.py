"""Machines to plan for: those of clouds by name, described in words, or this one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from stepladder.errors import UsageError
from stepladder.planning.hardware.connections import CONNECTIONS, Connection, connection_named
from stepladder.planning.hardware.gpus import GPUS, OLDER_GPUS, Gpu, gpu_named

THIS: Final = "this"
_DESCRIBED: Final = re.compile(r"(?:(\d+)x)?([A-Za-z0-9 -]+?)(?::([\w.-]+))?(?:@([\w./ -]+))?")
_EXAMPLE: Final = "4xA100:nvlink3@100Gbit"
_BY_NAME: Final = {one.name: one for one in CONNECTIONS}
_AWS: Final = "Amazon EC2, accelerated computing instances, as of 2024, from memory"
_AZURE: Final = "Azure, sizes of virtual machines with GPUs, as of 2024, from memory"
_GOOGLE: Final = "Google Compute Engine, GPU machine types, as of 2024, from memory"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine with one kind of device.

    Attributes:
        name: as users type it.
        gpu: its devices, by data sheet; None: those that the job was measured on.
        devices: number of them.
        inside: connection between its devices; None if it has one.
        network: connection of one of its network cards to other machines.
        cards: number of network cards.
        source: of these facts, with a date.
    """

    name: str
    gpu: Gpu | None
    devices: int
    inside: Connection | None
    network: Connection
    cards: int = 1
    source: str = "described by the user"


def _gbit(gbit_per_s: float) -> Connection:
    network = connection_named(f"{gbit_per_s:g}Gbit")
    return replace(network, source="the provider's page; 30 µs a message, assumed")


def _machine(  # noqa: PLR0917  (a row of the table below)
    name: str,
    gpu: str,
    devices: int,
    inside: str,
    network: Connection,
    source: str,
    cards: int = 1,
) -> Machine:
    return Machine(
        name=name,
        gpu=gpu_named((*GPUS, *OLDER_GPUS), gpu),
        devices=devices,
        inside=_BY_NAME[inside] if devices > 1 else None,
        network=network,
        cards=cards,
        source=source,
    )


MACHINES: Final = (
    _machine("g4dn.xlarge", "T4", 1, "pcie3", _gbit(5), f"{_AWS}; without bursts"),
    _machine("g4dn.12xlarge", "T4", 4, "pcie3", _gbit(50), _AWS),
    _machine("g4dn.metal", "T4", 8, "pcie3", _gbit(100), _AWS),
    _machine("g6.xlarge", "L4", 1, "pcie4", _gbit(2.5), f"{_AWS}; without bursts"),
    _machine("g6.12xlarge", "L4", 4, "pcie4", _gbit(40), _AWS),
    _machine("p3.2xlarge", "V100", 1, "nvlink2", _gbit(2.5), f"{_AWS}; without bursts"),
    _machine("p3.8xlarge", "V100", 4, "nvlink2", _gbit(10), _AWS),
    _machine("p3.16xlarge", "V100", 8, "nvlink2", _gbit(25), _AWS),
    _machine("p4d.24xlarge", "A100", 8, "nvlink3", _gbit(100), _AWS, cards=4),
    _machine("p4de.24xlarge", "A100 80GB", 8, "nvlink3", _gbit(100), _AWS, cards=4),
    _machine("p5.48xlarge", "H100", 8, "nvlink4", _gbit(400), _AWS, cards=8),
    _machine("p5en.48xlarge", "H200", 8, "nvlink4", _gbit(400), _AWS, cards=8),
    _machine("a2-highgpu-1g", "A100", 1, "nvlink3", _gbit(24), _GOOGLE),
    _machine("a2-highgpu-4g", "A100", 4, "nvlink3", _gbit(50), _GOOGLE),
    _machine("a2-highgpu-8g", "A100", 8, "nvlink3", _gbit(100), _GOOGLE),
    _machine("NC4as_T4_v3", "T4", 1, "pcie3", _gbit(8), _AZURE),
    _machine("NC64as_T4_v3", "T4", 4, "pcie3", _gbit(32), _AZURE),
    _machine("ND96asr_v4", "A100", 8, "nvlink3", _BY_NAME["200gb-ib"], _AZURE, cards=8),
    _machine("ND96isr_H100_v5", "H100", 8, "nvlink4", _BY_NAME["400gb-ib"], _AZURE, cards=8),
)
"""Machines of three clouds: devices and networks, without prices, which change."""


def machine_named(
    text: str,
    *,
    network: Connection | None = None,
    inside: Connection | None = None,
    gpus: tuple[Gpu, ...] = GPUS,
) -> Machine:
    """Return a machine of a cloud, one described as `4xA100:nvlink3@100Gbit`, or `this`.

    Args:
        network, inside: replace those of the machine.
        gpus: the user's list, before the built-in one.

    Raises:
        UsageError: if it is not known, its devices are not known, or its network is missing.
    """
    found = next((one for one in MACHINES if one.name.lower() == text.strip().lower()), None)
    if found is not None:
        cards = found.cards if network is None else 1
        within = None if found.inside is None else inside or found.inside
        return replace(found, network=network or found.network, cards=cards, inside=within)
    count, name, between, given = _parts_of(text)
    if network is None and given is not None:
        network = connection_named(given, option="--machines", example=_EXAMPLE)
    if network is None:
        network = replace(_BY_NAME["10gbe"], name="10gbe (assumed; --network changes it)")
    is_this = name.lower() == THIS
    gpu = None if is_this else gpu_named((*gpus, *GPUS, *OLDER_GPUS), name)
    if gpu is None and not is_this:
        known = ", ".join(one.name for one in MACHINES)
        devices = ", ".join(dict.fromkeys(one.name for one in (*gpus, *GPUS)))
        raise UsageError(
            f"{text!r} is no known machine, and {name!r} no known device",
            where="--machines",
            fix=f"Type {_EXAMPLE} for a machine of your own (devices: {devices}), {THIS} for one "
            f"like that of the profile, or one of: {known}.",
        )
    if inside is None:
        inside = _BY_NAME["pcie3"]
        if between is not None:
            inside = connection_named(between, option="--machines", example=_EXAMPLE)
    return Machine(
        name=text.strip(),
        gpu=gpu,
        devices=count,
        inside=inside if count > 1 else None,
        network=network,
    )


def _parts_of(text: str) -> tuple[int, str, str | None, str | None]:
    """Return devices, their name, and the connections of `4xA100:nvlink3@100Gbit`."""
    match = _DESCRIBED.fullmatch(text.strip())
    if match is None:
        return 1, text.strip(), None, None
    if int(match[1] or 1) < 1:
        raise UsageError(
            f"{text!r} has no device",
            where="--machines",
            fix="Type the number of devices of a machine, such as 4xA100.",
        )
    return int(match[1] or 1), match[2], match[3], match[4]

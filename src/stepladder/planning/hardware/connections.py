"""Connections between devices and between machines: by data sheet, fitted, or from the user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from stepladder.errors import UsageError
from stepladder.planning.hardware.ranges import Case
from stepladder.records.collectives import Collectives, Link
from stepladder.records.profile import Provenance

_BITS: Final = 8
_GIGA: Final = 1e9
_SPEED: Final = re.compile(r"([\d.eE+-]+)\s*([A-Za-z/]*)")
_UNITS: Final = {
    "gbit": _GIGA / _BITS,
    "gbit/s": _GIGA / _BITS,
    "gbps": _GIGA / _BITS,
    "mbit": _GIGA / _BITS / 1000,
    "mbit/s": _GIGA / _BITS / 1000,
    "mbps": _GIGA / _BITS / 1000,
    "gbyte": _GIGA,
    "gbyte/s": _GIGA,
    "mbyte": _GIGA / 1000,
    "mbyte/s": _GIGA / 1000,
}
_LOWEST_BYTES_PER_S: Final = 1e5
_HIGHEST_BYTES_PER_S: Final = 2e12
"""Above the connections of one device that can be bought; a higher number is a slip of units."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """What messages between two devices, or two machines, cost.

    Attributes:
        name: as users type it.
        bytes_per_s: in one direction, by data sheet.
        alpha_s: of a message.
        achieved: share of the bytes per second that collectives reach: worst, likely and best.
        gamma_s: to add up a byte, in seconds.
        fit: of messages, measured; None: only the data sheet is known.
        provenance, source: of the numbers.
    """

    name: str
    bytes_per_s: float
    alpha_s: float
    achieved: tuple[float, float, float] = (0.5, 0.75, 0.95)
    gamma_s: float = 0.0
    fit: Link | None = None
    provenance: Provenance = Provenance.READ
    source: str = ""

    def link(self, case: Case = Case.LIKELY) -> Link:
        """Return the cost of messages."""
        if self.fit is not None:
            return self.fit
        share = dict(zip((Case.WORST, Case.LIKELY, Case.BEST), self.achieved, strict=True))[case]
        return Link.plain(
            alpha_s=self.alpha_s,
            beta_s=1 / (share * self.bytes_per_s),
            gamma_s=self.gamma_s,
        )

    @property
    def words(self) -> str:
        """Return the speed, and where it is from."""
        speed = self.bytes_per_s * _BITS / _GIGA
        return f"{self.name}, {speed:,.3g} Gbit/s ({self.provenance}: {self.source})"


_RDMA: Final = (0.8, 0.9, 0.97)
"""Share of the line rate that messages reach if the network card writes them into memory."""


def _sheet(
    name: str,
    gb_per_s: float,
    alpha_us: float,
    source: str,
    achieved: tuple[float, float, float] = (0.5, 0.75, 0.95),
) -> Connection:
    return Connection(
        name=name,
        bytes_per_s=gb_per_s * _GIGA,
        alpha_s=alpha_us * 1e-6,
        achieved=achieved,
        source=source,
    )


_TCP: Final = "IEEE 802.3; time of a message by TCP, assumed"
_TUNING: Final = "time of a message: NCCL 2.1, tuning.cc"
CONNECTIONS: Final = (
    _sheet("pcie3", 15.75, 5.7, f"PCI-SIG, PCIe 3.0 with 16 lanes, 2010; {_TUNING}"),
    _sheet("pcie4", 31.5, 5.7, f"PCI-SIG, PCIe 4.0 with 16 lanes, 2017; {_TUNING}"),
    _sheet("pcie5", 63.0, 5.7, f"PCI-SIG, PCIe 5.0 with 16 lanes, 2019; {_TUNING}"),
    _sheet("nvlink1", 80, 3.4, f"NVIDIA, Tesla P100 white paper, 2016; {_TUNING}"),
    _sheet("nvlink2", 150, 3.4, f"NVIDIA, Tesla V100 white paper, 2017; {_TUNING}"),
    _sheet("nvlink3", 300, 3.4, f"NVIDIA, A100 white paper, 2020; {_TUNING}"),
    _sheet("nvlink4", 450, 3.4, f"NVIDIA, H100 white paper, 2022; {_TUNING}"),
    _sheet(
        "gemini",
        6.0,
        1.5,
        "Cray, Gemini network, 2010; gradients pass through the host's memory, assumed",
        (0.3, 0.5, 0.75),
    ),
    _sheet("10gbe", 1.25, 50, _TCP),
    _sheet("25gbe", 3.125, 30, _TCP),
    _sheet("50gbe", 6.25, 30, _TCP),
    _sheet("100gbe", 12.5, 30, _TCP),
    _sheet("25gb-roce", 3.125, 9.6, f"RoCE v2, 2014; {_TUNING}", _RDMA),
    _sheet("100gb-roce", 12.5, 9.6, f"RoCE v2, 2014; {_TUNING}", _RDMA),
    _sheet("100gb-ib", 12.5, 9.6, f"InfiniBand EDR, 2014; {_TUNING}", _RDMA),
    _sheet("200gb-ib", 25.0, 9.6, f"InfiniBand HDR, 2018; {_TUNING}", _RDMA),
    _sheet("400gb-ib", 50.0, 9.6, f"InfiniBand NDR, 2021; {_TUNING}", _RDMA),
)
"""Connections by data sheet: bytes per second in one direction, of one device or network card."""


def connection_named(
    text: str, *, option: str = "--network", example: str = "--network 25Gbit"
) -> Connection:
    """Return a connection from the list, or one of a speed such as `25Gbit`.

    Args:
        option, example: that name it, and a right one, for errors.

    Raises:
        UsageError: if it is neither, the unit is missing or may mean bits or bytes, or the speed is
            not possible.
    """
    found = next((one for one in CONNECTIONS if one.name == text.strip().lower()), None)
    if found is not None:
        return found
    match = _SPEED.fullmatch(text.strip())
    number = _number(match[1]) if match else None
    if match is None or number is None:
        names = ", ".join(one.name for one in CONNECTIONS)
        raise UsageError(
            f"{text!r} is neither a known connection nor a speed",
            where=option,
            fix=f"Type a speed such as {example}, or one of: {names}.",
        )
    unit = _UNITS.get(match[2].lower())
    if unit is None:
        raise UsageError(
            f"{text!r} may mean bits or bytes per second, which differ by a factor of eight",
            where=option,
            fix=f"Write {match[1]}Gbit (networks) or {match[1]}GByte (buses), as in {example}.",
        )
    speed = number * unit
    if not _LOWEST_BYTES_PER_S <= speed <= _HIGHEST_BYTES_PER_S:
        raise UsageError(
            f"a connection of {text} is not possible: "
            f"{'hardly a byte would arrive' if not speed > 1 else 'none has such a speed'}",
            where=option,
            fix=f"Type the speed of one machine's network, such as {example}.",
        )
    return Connection(
        name=text.strip(),
        bytes_per_s=speed,
        alpha_s=30e-6,
        provenance=Provenance.ASSUMED,
        source=f"{option}; 30 µs a message, assumed",
    )


def fitted_connection(found: Collectives, *, line_bytes_per_s: float | None = None) -> Connection:
    """Return the connection that `bench-collectives` measured.

    Args:
        line_bytes_per_s: of the network, if the user has named it.

    Raises:
        UsageError: if the fit is faster than the line, so that one of the two must be wrong.
    """
    link = found.fit.link
    speed = 1 / max(link.exchange_beta_s, 1e-15)
    if line_bytes_per_s is not None and speed > line_bytes_per_s * 1.05:
        raise UsageError(
            f"the measured messages travel at {speed * _BITS / _GIGA:,.3g} Gbit/s, above the line "
            f"rate of {line_bytes_per_s * _BITS / _GIGA:,.3g} Gbit/s",
            where="--link",
            why="They were measured on another network, or within one machine.",
            fix="Run `stepladder bench-collectives` under torchrun on two machines, or leave out "
            "--network.",
        )
    hosts = len(set(found.hosts))
    return Connection(
        name="measured",
        bytes_per_s=speed,
        alpha_s=link.exchange_alpha_s,
        fit=link,
        provenance=Provenance.FITTED,
        source=f"bench-collectives, {found.fit.num_ranks} ranks on {hosts} "
        f"host{'s' if hosts > 1 else ''}",
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None

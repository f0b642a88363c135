"""How the GPUs of this machine are connected, from `nvidia-smi topo -m`."""

from __future__ import annotations

import re
import subprocess
from typing import Final

_LIMIT_S: Final = 10.0
_CONTROL: Final = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined
_GPU: Final = re.compile(r"GPU\d+")
_MEANINGS: Final = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}
"""Fastest first."""


def gpu_links() -> list[str]:
    """Return the kinds of links between GPUs and the pairs that have them; empty without GPUs."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"],
            capture_output=True,
            check=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return []
    return links_of(done.stdout)


def links_of(text: str) -> list[str]:
    """Return the links in the matrix that `nvidia-smi topo -m` prints, fastest first.

    Returns:
        Such as ["NV12 (NVLink): 0-1, 2-3", "SYS (the link between NUMA nodes): 0-2, …"]; empty if
        there are fewer than two GPUs.
    """
    rows = [line.split() for line in _CONTROL.sub("", text).splitlines() if line.strip()]
    head = next((row for row in rows if row[0] == "GPU0" and "X" not in row), [])
    gpus = [word for word in head if _GPU.fullmatch(word)]
    pairs: dict[str, list[str]] = {}
    for row in rows:
        if row[0] not in gpus or row is head:
            continue
        first = gpus.index(row[0])
        for second, link in enumerate(row[1 : 1 + len(gpus)]):
            if second > first:
                pairs.setdefault(link, []).append(f"{row[0][3:]}-{gpus[second][3:]}")
    kinds = sorted(pairs, key=lambda link: (_order(link), link))
    return [f"{kind}{_meaning(kind)}: {', '.join(pairs[kind])}" for kind in kinds]


def _order(link: str) -> tuple[int, int]:
    """Return the place of a link by speed: more NVLinks are faster."""
    name, number = link.rstrip("0123456789"), link.removeprefix("NV")
    place = list(_MEANINGS).index(name) if name in _MEANINGS else len(_MEANINGS)
    return place, -int(number) if number.isdigit() else 0


def _meaning(link: str) -> str:
    words = _MEANINGS.get(link.rstrip("0123456789"))
    return "" if words is None else f" ({words})"

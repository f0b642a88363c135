"""Energy of a run, if the machine reports it: RAPL for the CPU, NVML for GPUs."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from stepladder.machine.gpu import Nvml

_JOULES_PER_WH = 3600.0
POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Sum the energy that the machine's counters report.

    The counters cover the whole package or device, including other programs on the machine. RAPL
    counters wrap within an hour under load; call `poll` at least that often (SystemSampler does).

    Attributes:
        sources: the counters in the sum, such as ("rapl:package-0", "nvml"); empty if none can be
            read, and `stop` then returns None.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._rapl = [zone for zone in _package_zones(powercap) if _counter(zone) is not None]
        self._nvml = Nvml()
        self._lock = Lock()
        self._rapl_last: dict[Path, int] = {}
        self._rapl_j = 0.0
        self._nvml_start_j: float | None = None
        self._nvml_last_j: float | None = None
        names = tuple(f"rapl:{_name(zone)}" for zone in self._rapl)
        self.sources = (*names, "nvml") if self._nvml.energy_j() is not None else names

    def start(self) -> None:
        """Reset the sum to zero."""
        with self._lock:
            self._rapl_j = 0.0
            counters = {zone: _counter(zone) for zone in self._rapl}
            self._rapl_last = {zone: now for zone, now in counters.items() if now is not None}
            self._nvml_start_j = self._nvml_last_j = self._nvml.energy_j()

    def poll(self) -> None:
        """Read the counters, so that a wrap-around is not missed."""
        with self._lock:
            for zone, last in list(self._rapl_last.items()):
                now = _counter(zone)
                if now is None:
                    continue
                gone = now - last if now >= last else now - last + _range(zone)
                self._rapl_j += gone / 1e6
                self._rapl_last[zone] = now
            self._nvml_last_j = self._nvml.energy_j() or self._nvml_last_j

    def stop(self) -> float | None:
        """Return the energy since `start` in watt-hours, or None if nothing can be read."""
        if not self.sources:
            return None
        self.poll()
        joules = self._rapl_j
        if self._nvml_last_j is not None and self._nvml_start_j is not None:
            joules += self._nvml_last_j - self._nvml_start_j
        return joules / _JOULES_PER_WH


def _package_zones(powercap: Path) -> list[Path]:
    """List the top-level zones (intel-rapl:0), which include their children."""
    if not powercap.is_dir():
        return []
    return sorted(zone for zone in powercap.glob("intel-rapl:*") if zone.name.count(":") == 1)


def _counter(zone: Path) -> int | None:
    """Return a zone's energy in microjoules (readable only by root on most systems)."""
    try:
        return int((zone / "energy_uj").read_text())
    except (OSError, ValueError):
        return None


def _range(zone: Path) -> int:
    try:
        return int((zone / "max_energy_range_uj").read_text())
    except (OSError, ValueError):
        return 0


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except OSError:
        return zone.name

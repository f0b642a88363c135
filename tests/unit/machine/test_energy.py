"""Energy is the difference of the machine's counters, across overflows, or None."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepladder.machine import EnergyMeter


@pytest.fixture(autouse=True)
def no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def zone(root: Path, name: str, energy_uj: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "name").write_text(f"package-{name[-1]}\n")
    (folder / "energy_uj").write_text(f"{energy_uj}\n")
    (folder / "max_energy_range_uj").write_text("10000000000\n")
    return folder


def test_packages_add_up_and_their_parts_do_not_count_twice(tmp_path: Path) -> None:
    first = zone(tmp_path, "intel-rapl:0", 5)
    second = zone(tmp_path, "intel-rapl:1", 0)
    core = zone(tmp_path, "intel-rapl:0:0", 0)
    meter = EnergyMeter(tmp_path)
    assert meter.sources == ("rapl:package-0", "rapl:package-1")
    meter.start()
    (first / "energy_uj").write_text(str(5 + 3_600_000_000))  # one watt-hour
    (second / "energy_uj").write_text("1800000000")
    (core / "energy_uj").write_text("1800000000")
    assert meter.stop() == pytest.approx(1.5)


def test_a_counter_that_wraps_loses_nothing_when_polled(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", 9_000_000_000)
    meter = EnergyMeter(tmp_path)
    meter.start()
    for value in (1_000_000_000, 9_000_000_000, 1_000_000_000):
        (folder / "energy_uj").write_text(str(value))
        meter.poll()
    assert meter.stop() == pytest.approx((2 + 8 + 2) * 1e3 / 3600)


def test_a_counter_that_vanishes_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", 0)
    meter = EnergyMeter(tmp_path)
    meter.start()
    (folder / "energy_uj").unlink()
    assert meter.stop() == 0.0


def test_without_counters_the_answer_is_none(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path / "missing")
    meter.start()
    meter.poll()
    assert meter.sources == ()
    assert meter.stop() is None

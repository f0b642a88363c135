"""Charts of a run's devices: each has its line, whatever the events hold."""

from __future__ import annotations

from typing import Any

from stepladder.reporting.charts.curves import Figure, machine_figures
from stepladder.reporting.tables import RunRecords

TITLE = "Busy share by device"


def drawn(*events: dict[str, Any]) -> Figure | None:
    records = RunRecords(name="run", events={"devices": events})
    return next((one for one in machine_figures(records) if one.title == TITLE), None)


def event(elapsed_s: float, *busy_frac: float, hosts: Any = ("a", "a")) -> dict[str, Any]:
    return {"elapsed_s": elapsed_s, "busy_frac": list(busy_frac), "hosts": list(hosts)}


def names(*events: dict[str, Any]) -> list[str]:
    figure = drawn(*events)
    assert figure is not None
    assert figure.svg is not None
    return [name for _, name in figure.keys]


def test_an_idle_device_is_visible() -> None:
    assert names(event(10.0, 0.9, 0.1), event(20.0, 0.7, 0.1)) == [
        "device 0, 80 % on average",
        "device 1, 10 % on average",
    ]


def test_devices_of_several_hosts_are_named_with_them() -> None:
    two = ("a", "b")
    assert names(event(10.0, 0.5, 0.5, hosts=two), event(20.0, 0.5, 0.5, hosts=two)) == [
        "device 0 on a, 50 % on average",
        "device 1 on b, 50 % on average",
    ]


def test_a_run_on_other_devices_after_a_restart_has_a_line_for_each() -> None:
    found = names(event(10.0, 0.5, 0.5), event(20.0, 0.5, 0.5), event(30.0, 0.9, hosts=("a",)))
    assert [name.split(",")[0] for name in found] == ["device 0", "device 1"]


def test_of_many_devices_the_first_are_drawn_and_the_rest_is_named() -> None:
    hosts = ["a"] * 12
    figure = drawn(*(event(at, *([0.5] * 12), hosts=hosts) for at in (1.0, 2.0)))
    assert figure is not None
    assert len(figure.keys) == 9
    assert figure.note == "The first 9 of 12 devices are drawn."


def test_damaged_events_are_left_out() -> None:
    broken = {"elapsed_s": "x", "busy_frac": [0.5]}, {"elapsed_s": 1.0, "busy_frac": "0.5"}
    assert drawn(*broken) is None

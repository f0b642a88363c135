"""Documentation pages written by benchmarks match the stored results."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _bench_from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_every_benchmark_that_writes_results_is_run_with_all_or_has_a_reason() -> None:
    run_all = importlib.import_module("bench.run_all")
    listed = {name.split()[0] for name in (*run_all.SCRIPTS, *run_all.ON_CALTECH)}
    bench = ROOT / "bench"
    writing = {
        ".".join(path.relative_to(bench).with_suffix("").parts)
        for path in bench.rglob("*.py")
        if "write_rows(" in path.read_text() and path.name != "rows.py"
    }
    assert len(writing) > 20
    assert writing - listed == run_all.ELSEWHERE.keys() - listed
    assert all(importlib.util.find_spec(f"bench.{name}") for name in listed)


def test_hits() -> None:
    hits = importlib.import_module("bench.faults.hits")
    assert hits.PAGE.read_text() == hits.page(hits.written_results())


def test_six_steps() -> None:
    six_steps = importlib.import_module("bench.accuracy.six_steps")
    assert six_steps.PAGE.read_text() == six_steps.page(json.loads(six_steps.FOUND.read_text()))


def test_loaders() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        importlib.import_module("bench.loaders.page").main()
    assert (ROOT / "docs" / "loaders.md").read_text() == printed.getvalue()


@pytest.mark.thorough
def test_parallelism() -> None:
    module = importlib.import_module("bench.devices.parallelism_page")
    text = module.PAGE.read_text()
    assert text == module.page(text)


def test_curves() -> None:
    """The pictures in the docs are those of the results."""
    for name, text in importlib.import_module("bench.curves").pictures().items():
        assert (ROOT / "docs" / name).read_text() == text, name


def test_benchmarks() -> None:
    page = importlib.import_module("bench.benchmarks_page").page()
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a benchmark's results."""
    text = (ROOT / "bench" / "results" / f"{name}.json").read_text()
    found: list[dict[str, Any]] = json.loads(text)["rows"]
    return found


def test_the_numbers_in_devices_are_those_of_the_results() -> None:
    text = (ROOT / "docs" / "devices.md").read_text()
    ratio, share = "ours / bare DDP", "efficiency (apart / ours)"
    small, full = (
        (float(row[ratio].split()[0]), float(row[share].split()[0]), row["step of ours, ms"])
        for row in rows_of("devices_overhead")
    )
    assert f"a step takes {small[0]:.2f} times as long as with bare" in text
    assert f"(small convolutions, {small[2]:.0f} ms), and {small[1]:.0%}".replace("%", " %") in text
    assert f"demo's network, {full[0]:.2f} times and {full[1]:.0%}".replace("%", " %") in text
    more = "more than one process, s"
    added = {row["launcher"]: row[more].partition(" ")[0] for row in rows_of("devices_startup")}
    assert f"adds {added['--devices 2']} s to a short run, torchrun {added['torchrun']} s" in text
    errors = [row["error"] for row in rows_of("devices_predicted")]
    middle, most = math.exp(statistics.median(errors)), math.exp(max(errors))
    assert f"was a factor of {middle:.2f}, the largest {most:.2f}" in text
    hosts = rows_of("devices_hosts_predicted")
    errors = [row["error"] for row in hosts]
    middle, most = math.exp(statistics.median(errors)), math.exp(max(errors))
    assert sum(row["measured gain"] > 1.2 for row in hosts) == 1
    assert f"more than 1.2×, it was {middle:.2f}, the largest {most:.2f}" in text

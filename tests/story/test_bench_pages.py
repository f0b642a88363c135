"""Documentation pages written by benchmarks match the stored results."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
from pathlib import Path

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


def test_benchmarks() -> None:
    page = importlib.import_module("bench.benchmarks_page").page()
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page

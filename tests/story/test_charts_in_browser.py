"""Charts in headless Chromium, with a real mouse: crosshair, zoom, smoothing, and no error."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import SHARE
from stepladder.reporting.html import template


def _module(file: str) -> Any:
    spec = importlib.util.spec_from_file_location(file, Path(__file__).with_name(f"{file}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


IN_BROWSER, DEVTOOLS = _module("test_report_in_browser"), _module("devtools")
pytestmark = IN_BROWSER.pytestmark
PAGE = """{% extends "page.html" %}{% from "figure.html" import figure %}
{% block content %}<div class="grid curves">
{% for item in figures %}{{ figure(item) }}{% endfor %}</div>{% endblock %}"""
NUM, SPIKE = 100, 50
LOSSES = [2.0 / (1 + x) + (5.0 if x == SPIKE else 0.0) for x in range(NUM)]


def _page(folder: Path) -> Path:
    """Write a page with a logarithmic chart of two lines and a chart of a fraction."""
    xs = [float(x) for x in range(NUM)]
    val = [20.0 * x for x in range(5)]
    loss = line_chart(
        [
            Series(name="train", style="train", xs=xs, ys=LOSSES),
            Series(
                name="<validation>",
                style="val",
                xs=val,
                ys=[1.0, 0.8, 0.7, 0.6, 0.5],
                noise=[0.1] * 5,
                tips=["a"] * 5,
            ),
        ],
        title="Loss",
        x_label="steps",
        may_be_log=True,
        mark=(60.0, "best"),
    )
    shares = [0.5 + 0.004 * x for x in range(NUM)]
    share = line_chart(
        [Series(name="", style="val", xs=xs, ys=shares)],
        title="Accuracy",
        x_label="steps",
        y_unit=SHARE,
    )
    figures = [Figure(title="Loss", svg=loss), Figure(title="Accuracy", svg=share)]
    environment = template("page.html").environment
    path = folder / "page.html"
    path.write_text(environment.from_string(PAGE).render(figures=figures), encoding="utf-8")
    return path


class Opened:
    """The test page in a browser; `chart` is 0 or 1."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab

    def path(self, style: str, chart: int = 0) -> list[tuple[float, float]]:
        d = self.tab.js(f"{self._svg(chart)}.querySelector('.{style}').getAttribute('d')")
        return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", d)]

    def ticks(self, chart: int = 0) -> list[str]:
        found: list[str] = self.tab.js(
            f"[...{self._svg(chart)}.querySelectorAll('.tick')].map((one) => one.textContent)"
        )
        return found

    def at(self, x: float, y: float, chart: int = 0) -> tuple[float, float]:
        """Return the place on the screen of a place in a drawing of 460 by 250 units."""
        box = self.tab.js(
            f"(() => {{ const box = {self._svg(chart)}.getBoundingClientRect();"
            " return [box.left, box.top, box.width, box.height]; })()"
        )
        return box[0] + box[2] * x / 460, box[1] + box[3] * y / 250

    def smooth(self, weight: float) -> None:
        self.tab.js(
            "(() => { const slider = document.querySelector('.smoothing input');"
            f" slider.value = {weight}; slider.dispatchEvent(new Event('input')); }})()"
        )

    def read(self) -> str:
        text: str = self.tab.js("document.querySelector('.readout:not([hidden])')?.innerText ?? ''")
        return text

    def _svg(self, chart: int) -> str:
        return f"document.querySelectorAll('[data-chart]')[{chart}]"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("charts")
    chromium = IN_BROWSER.CHROMIUM
    with DEVTOOLS.Tab(
        chromium, _page(folder), folder / "profile", IN_BROWSER.FLAGS, width=1200
    ) as opened:
        yield opened


@pytest.fixture
def opened(tab: Any) -> Opened:
    """Return the page as it was loaded, with the mouse outside of the charts."""
    page = Opened(tab)
    page.smooth(0)
    tab.js("document.querySelectorAll('.reset').forEach((button) => button.click())")
    tab.mouse("Moved", (1, 1))
    return page


def test_the_crosshair_shows_the_values_at_the_nearest_logged_x(opened: Opened) -> None:
    assert opened.read() == ""
    opened.tab.mouse("Moved", opened.at(46 + 400 * 60.3 / 99, 100))
    lines = opened.read().splitlines()
    assert lines == ["steps 60", f"train {LOSSES[60]:.4g}", "<validation> 0.6 ± 0.1"]
    opened.tab.mouse("Moved", opened.at(46 + 400 * 65 / 99, 100))
    assert opened.read().splitlines()[2] == "<validation> 0.6 ± 0.1, at 60"
    opened.tab.mouse("Moved", opened.at(46 + 400 * 25 / 99, 100, chart=1))
    assert opened.read().splitlines() == ["steps 25", "60 %"]
    opened.tab.mouse("Moved", (1, 1))
    assert opened.read() == ""
    assert opened.tab.logged == []


def test_a_drag_zooms_to_its_range_and_a_double_click_resets(opened: Opened) -> None:
    whole, ticks = opened.path("line.train"), opened.ticks()
    opened.tab.drag(opened.at(46 + 400 * 40 / 99, 60), opened.at(46 + 400 * 60 / 99, 160))
    zoomed = opened.path("line.train")
    assert zoomed != whole
    assert len(zoomed) in (21, 22, 23)  # 40 to 60, and where the line is cut
    assert (zoomed[0][0], zoomed[-1][0]) == (46, 446)
    assert min(zoomed, key=lambda point: point[1])[0] == pytest.approx(246, abs=3)  # the spike
    assert opened.ticks() != ticks
    assert {"45", "50", "55"} <= set(opened.ticks())
    assert opened.path("line.val", chart=1)[0][0] == 46  # the other chart is unchanged
    assert opened.ticks(chart=1)[-1] == "80"
    for _ in range(2):
        opened.tab.mouse("Pressed", opened.at(200, 100), button="left", clickCount=2)
        opened.tab.mouse("Released", opened.at(200, 100), button="left", clickCount=2)
    assert (opened.path("line.train"), opened.ticks()) == (whole, ticks)
    assert opened.tab.logged == []


def test_a_click_does_not_zoom_and_the_button_resets(opened: Opened) -> None:
    whole = opened.path("line.val", chart=1)
    is_hidden = "document.querySelectorAll('.reset')[1].hidden"
    opened.tab.drag(opened.at(200, 100, 1), opened.at(202, 100, 1))
    assert opened.path("line.val", chart=1) == whole
    assert opened.tab.js(is_hidden)
    opened.tab.drag(opened.at(300, 100, 1), opened.at(100, 100, 1))  # to the left
    assert opened.path("line.val", chart=1) != whole
    assert not opened.tab.js(is_hidden)
    opened.tab.js("document.querySelectorAll('.reset')[1].click()")
    assert opened.path("line.val", chart=1) == whole
    assert opened.tab.logged == []


def test_the_slider_draws_the_moving_average_over_the_faint_line(opened: Opened) -> None:
    whole = opened.path("line.val", chart=1)
    opened.smooth(0.9)
    raw, smooth = opened.path("line.raw", 1), opened.path("line.val:not(.raw)", 1)
    assert _is_same(raw, whole)
    assert smooth != whole
    assert len(smooth) == NUM
    mean = 0.0
    for x in range(NUM):
        mean = 0.9 * mean + 0.1 * (0.5 + 0.004 * x)
    share = mean / (1 - 0.9**NUM)
    unit = (whole[0][1] - whole[-1][1]) / (0.004 * (NUM - 1))
    assert whole[0][1] - smooth[-1][1] == pytest.approx(unit * (share - 0.5), abs=0.2)
    opened.smooth(0)
    assert opened.path("line.val", chart=1) == whole
    assert opened.tab.logged == []


def _is_same(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> bool:
    """Return True if two paths have the same points, up to the rounding of one decimal."""
    return bool(np.abs(np.array(first) - np.array(second)).max() < 0.15)


@pytest.mark.parametrize("chart", [0, 1])
def test_the_script_draws_the_same_chart_as_the_page(opened: Opened, chart: int) -> None:
    """A slider at almost 0 lets the script draw the whole chart."""
    ticks, whole = opened.ticks(chart), opened.path("line", chart)
    band, mark = opened.path("band"), opened.path("mark")
    opened.smooth(0.01)
    assert opened.ticks(chart) == ticks
    assert _is_same(opened.path("line.raw", chart), whole)
    assert _is_same(opened.path("band"), band)
    assert _is_same(opened.path("mark")[:1], mark)  # its end is a vertical step


def test_a_page_without_script_shows_the_same_charts(tmp_path: Path) -> None:
    page = _page(tmp_path)
    page.write_text(page.read_text().replace("sha256-", "sha256-x"))  # not the hash of the script
    flags = IN_BROWSER.FLAGS
    with DEVTOOLS.Tab(IN_BROWSER.CHROMIUM, page, tmp_path / "profile", flags, width=1200) as tab:
        assert "Content Security Policy" in str(tab.logged)
        assert tab.js("document.querySelectorAll('.line').length") == 3
        assert tab.js("document.querySelectorAll('.dots title, .dot title').length") == 5
        assert tab.js("document.querySelector('.smoothing, .reset, .readout')") is None

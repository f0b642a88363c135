from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from stepladder.reporting.charts.bars import Part, accuracy_bar, stacked_bar
from stepladder.reporting.charts.heatmap import confusion_map
from stepladder.reporting.charts.lines import MAX_POINTS, Series, line_chart


def _line(xs: list[float], ys: list[float], **more: object) -> Series:
    return Series(name="s", style="val", xs=xs, ys=ys, **more)  # type: ignore[arg-type]


def _points(svg: str, style: str) -> list[tuple[float, float]]:
    path = re.search(rf'class="{style}" d="M([^"Z]+)', svg)
    assert path is not None
    return [tuple(map(float, point.split())) for point in path[1].split("L")]  # type: ignore[misc]


def test_a_rising_line_rises_on_the_page() -> None:
    svg = line_chart([_line([0, 1, 2], [1, 2, 3])], title="t", x_label="x")
    points = _points(str(svg), "line val")
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted((y for _, y in points), reverse=True)


def test_a_band_is_one_standard_error_to_both_sides() -> None:
    svg = str(line_chart([_line([0, 1], [2, 4], noise=[1, 1])], title="t", x_label="x"))
    (line, band) = (_points(svg, "line val"), _points(svg, "band val"))
    above, below = band[0][1], band[3][1]
    assert (above + below) / 2 == pytest.approx(line[0][1], abs=0.11)
    unit = (line[0][1] - line[1][1]) / 2
    assert line[0][1] - above == pytest.approx(unit, abs=0.11)


def test_values_that_are_not_finite_are_left_out_and_nothing_but_them_gives_no_chart() -> None:
    svg = str(line_chart([_line([0, 1, 2], [1, math.nan, 2])], title="t", x_label="x"))
    assert "nan" not in svg
    assert len(_points(svg, "line val")) == 2
    assert line_chart([_line([0, 1], [math.nan, math.inf])], title="t", x_label="x") is None
    assert line_chart([], title="t", x_label="x") is None


def test_a_long_series_is_thinned_and_keeps_its_spike() -> None:
    ys = [1.0] * 50_000
    ys[31_234] = 9.0
    svg = str(line_chart([_line([float(i) for i in range(50_000)], ys)], title="t", x_label="x"))
    points = _points(svg, "line val")
    assert len(points) <= MAX_POINTS + 2
    assert sum(y < 60 for _, y in points) == 1
    assert len(svg) < 10_000


@pytest.mark.parametrize("ys", [[1.0], [0.0, 0.0], [1e-9, 1e9], [-5.0, 5.0]])
def test_every_shape_of_data_gives_sound_xml(ys: list[float]) -> None:
    xs = [float(i) for i in range(len(ys))]
    svg = line_chart(
        [_line(xs, ys)], title='a "b" <c>', x_label="x", may_be_log=True, mark=(0, "b")
    )
    ET.fromstring(str(svg))


def test_names_are_escaped_in_every_drawing() -> None:
    evil = '<script>alert(1)</script>"'
    drawings = [
        line_chart([_line([0], [1], tips=[evil])], title=evil, x_label=evil, mark=(0, evil)),
        stacked_bar([Part(name=evil, style="ph-other", size=1, share=1)], title=evil),
        confusion_map({(0, 1): 3, (0, 0): 1}, [evil, "b"]),
    ]
    for svg in drawings:
        assert "<script" not in str(svg)
        ET.fromstring(str(svg))


def test_parts_of_a_bar_are_as_long_as_their_share() -> None:
    parts = [Part(name=str(s), style="ph-other", size=s, share=0) for s in (1.0, 3.0, 0.0, -1.0)]
    svg = str(stacked_bar(parts, title="t"))
    assert re.findall(r'x="([\d.]+)" width="([\d.]+)"', svg) == [("0", "250"), ("250", "750")]
    assert stacked_bar([parts[2]], title="t") is None


def test_an_accuracy_bar_shows_its_noise_within_the_bar() -> None:
    svg = str(accuracy_bar(0.5, 100))  # one standard error is 0.05
    assert 'class="fill" width="500"' in svg
    assert 'x="450" y="5" width="100"' in svg
    assert 'x="1000" y="5" width="0"' in str(accuracy_bar(1.0, 3))


def test_a_small_confusion_matrix_counts_in_cells_and_a_large_one_stays_small() -> None:
    svg = str(confusion_map({(0, 0): 7, (0, 1): 3}, ["cat", "dog"]))
    assert "cat: 3 of 10 predicted as dog" in svg
    large = {(i, (i * 7 + j) % 1000): 1 for i in range(1000) for j in range(50)}
    svg = str(confusion_map(large, [f"c{i}" for i in range(1000)]))
    assert len(svg) < 60_000
    ET.fromstring(svg)


def _named(svg: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return the height of each row's name, and the place of each column's."""
    rows = re.findall(r'class="row" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]+)<', svg)
    columns = re.findall(r'transform="translate\(([\d.]+) [\d.]+\) rotate\(-90\)">([^<]+)<', svg)
    return {name: float(y) for y, name in rows}, {name: float(x) for x, name in columns}


def test_rows_and_columns_of_a_confusion_matrix_have_the_names_of_their_classes() -> None:
    svg = str(confusion_map({(0, 1): 3, (1, 1): 5}, ["cat", "dog"]))
    rows, columns = _named(svg)
    cells = re.findall(r'class="(right|wrong)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', svg)
    found = {
        style: (float(x) + float(width) / 2, float(y) + float(width) / 2)
        for style, x, y, width in cells
    }
    assert found["wrong"] == pytest.approx((columns["dog"], rows["cat"]), abs=0.2)
    assert found["right"] == pytest.approx((columns["dog"], rows["dog"]), abs=0.2)


def test_a_coarse_confusion_matrix_names_the_first_class_of_some_rows() -> None:
    names = [f"c{idx}" for idx in range(96)]  # 48 rows of two classes
    svg = str(confusion_map({(idx, idx): 1 for idx in range(96)}, names))
    rows, columns = _named(svg)
    assert list(rows) == list(columns) == [f"c{12 * idx}" for idx in range(8)]
    corners = re.findall(r"M([\d.]+) ([\d.]+)h", svg)
    side = 460 / 48
    for name, y in rows.items():
        x, top = (float(value) for value in corners[int(name[1:]) // 2])
        assert (columns[name] - x, y - top) == pytest.approx((side / 2, side / 2), abs=0.6)


def test_a_chart_carries_its_values_and_the_means_of_what_was_thinned() -> None:
    ys = [float(idx % 7) for idx in range(MAX_POINTS * 10)]
    svg = line_chart([_line([float(idx) for idx in range(len(ys))], ys)], title="t", x_label="x")
    found = ET.fromstring(str(svg)).get("data-chart")
    (line,) = json.loads(found or "")["lines"]
    assert len(line["xs"]) == len(line["ys"]) <= MAX_POINTS + 2
    assert [ys[x] for x in line["xs"]] == line["ys"]
    assert len(line["meanYs"]) == len(line["meanXs"]) == MAX_POINTS // 2
    stretch = ys[:20]
    assert line["meanYs"][0] == pytest.approx(sum(stretch) / len(stretch), rel=1e-4)
    assert line["meanXs"][0] == pytest.approx(9.5)

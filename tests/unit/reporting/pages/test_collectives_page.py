"""The page and the text of `stepladder bench-collectives`, and drawings of schedules."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from stepladder.parallel.collectives.algorithms import ALGORITHMS, RING, Algorithm, Shape
from stepladder.parallel.collectives.picture import schedule_svg
from stepladder.records import to_json
from stepladder.records.collectives import Collectives, CollectiveTime, Fit, Link
from stepladder.records.from_json import from_json
from stepladder.reporting.pages.collectives_page import (
    choice_words,
    collectives_text,
    render_collectives,
    size_words,
)

SIZES = (16_000, 4_000_000)


def time(name: str, num_bytes: int, median_s: float, predicted_s: float | None) -> CollectiveTime:
    return CollectiveTime(
        name=name,
        num_bytes=num_bytes,
        num_segments=1,
        times_s=(median_s,),
        median_s=median_s,
        predicted_s=predicted_s,
    )


FOUND = Collectives(
    backend="gloo",
    hosts=("one",) * 4,
    fit=Fit(
        num_ranks=4,
        num_local=4,
        link=Link.plain(alpha_s=5e-4, beta_s=6e-10),
        native_sizes=SIZES,
        native_s=(2e-3, 8e-3),
    ),
    times=(
        time("native", SIZES[0], 2e-3, None),
        time("ring", SIZES[0], 3e-3, 3.3e-3),
        time("native", SIZES[1], 8e-3, None),
        time("ring", SIZES[1], 5e-3, 4e-3),
    ),
    choice=(("native", SIZES[0]), ("ring", 0)),
    machine="a processor, 4 cores",
)


def test_the_text_has_measured_beside_predicted_and_the_choice() -> None:
    text = collectives_text(FOUND)
    assert "all-reduce of 4 ranks on one host, over gloo" in text
    assert re.search(r"^ring +3 / 3\.3 ms +5 / 4 ms$", text, re.MULTILINE)
    assert re.search(r"^native +2 ms +8 ms$", text, re.MULTILINE)
    assert "a message of n bytes takes 0.5 ms + n × 0.6 ns one way" in text
    assert "auto: native up to 16 KB, ring above" in text


def test_the_headline_is_the_largest_gain() -> None:
    page = render_collectives(FOUND)
    assert "<h1>1.60× <small>as fast as torch's own, with ring at 4 MB</small></h1>" in page
    assert "<b>5 / 4</b>" in page
    assert page.count("<svg") >= 2


def test_a_machine_on_which_torch_is_the_fastest_is_described_as_such() -> None:
    slow = replace(FOUND, times=(*FOUND.times[:3], time("ring", SIZES[1], 9e-3, 4e-3)))
    assert "is the fastest at every size" in render_collectives(slow)
    assert choice_words(replace(FOUND, choice=(("native", 0),))) == "native at every size"


def test_the_record_is_read_back() -> None:
    assert from_json(Collectives, to_json(FOUND)) == FOUND
    assert FOUND.times[3].bus_bytes_per_s(4) == pytest.approx(4e6 / 5e-3 * 1.5)
    assert FOUND.at("ring", 1) is None


def test_sizes_have_units() -> None:
    assert [size_words(size) for size in (4, 16_000, 1_500_000)] == ["4 B", "16 KB", "1.5 MB"]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
def test_each_message_is_an_arrow_between_the_lines_of_its_ranks(algorithm: Algorithm) -> None:
    schedule = algorithm.schedule(Shape(num_ranks=6, num_local=3, num_segments=2))
    drawn = ElementTree.fromstring(schedule_svg(schedule))
    lines = [one for one in drawn.iter() if one.tag.endswith("line")]
    lanes = [float(one.attrib["y1"]) for one in lines if one.attrib["class"] == "lane"]
    arrows = [one.attrib for one in lines if one.attrib["class"] in ("added", "copied")]
    assert len(lanes) == 6
    expected = [
        (lanes[one.source], lanes[one.target], "added" if one.is_added else "copied")
        for one in schedule.messages
    ]
    found = [(float(one["y1"]), float(one["y2"]), one["class"]) for one in arrows]
    assert found == expected


def test_the_chunks_are_written_at_the_arrows() -> None:
    drawn = schedule_svg(RING.schedule(Shape(num_ranks=4)))
    assert drawn.count('class="part"') == 24
    assert "step 6" in drawn

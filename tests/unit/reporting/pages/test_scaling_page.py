"""The page and the table of scaling have every part, measured and predicted apart."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from stepladder.records import to_json, write_json
from stepladder.records.ladder import Interval
from stepladder.records.scaling import (
    SCALING_FILE,
    WORDS,
    DeviceUse,
    Part,
    Scaling,
    ScalingPoint,
)
from stepladder.reporting.pages.scaling_page import (
    render_scaling,
    scaling_text,
    write_scaling_page,
)

SHARES = (0.6, 0.05, 0.0, 0.05, 0.2, 0.06, 0.06, -0.02)


def point(
    hosts: int,
    devices: int,
    *,
    is_measured: bool,
    epoch_s: float = 10.0,
    price: float | None = None,
) -> ScalingPoint:
    parts = {part.value: epoch_s * share for part, share in zip(Part, SHARES, strict=True)}
    return ScalingPoint(
        hosts=hosts,
        devices=devices,
        is_measured=is_measured,
        step_s=epoch_s / 10,
        epoch_s=epoch_s,
        examples_per_s=100 / epoch_s,
        efficiency=Interval(estimate=0.75, low=0.7, high=0.8),
        parts_s=parts,
        serial_s={"validation": 0.4, "checkpoint": 0.2, "start": 0.0},
        cost_per_epoch=price,
        cost=None if price is None else 5 * price,
        use=tuple(
            DeviceUse(
                rank=rank,
                host="one",
                ends_s=(0.5, 1.0, 1.5),
                busy_frac=(0.9, 0.5 * (1 - rank), 0.1),
            )
            for rank in range(devices)
            if is_measured
        ),
    )


def scaling(*, price: float | None = None) -> Scaling:
    return Scaling(
        job="photos",
        device="cpu",
        device_name="cpu",
        cores=1,
        batch=10,
        num_train=100,
        epochs=5.0,
        network_gbit_s=10.0,
        is_network_assumed=True,
        points=(
            point(1, 1, is_measured=True, price=price),
            point(1, 2, is_measured=True, epoch_s=6.0, price=price),
            point(2, 1, is_measured=False, epoch_s=8.0, price=price),
        ),
        notes=("A note on <this>.",),
    )


def test_the_table_has_each_part_and_each_point() -> None:
    text = scaling_text(scaling())
    for part, share in zip(Part, SHARES, strict=True):
        assert re.search(rf"^{WORDS[part]}( +{100 * share:.1f} %){{2}}$", text, re.MULTILINE), part
    assert re.search(r"^1 × 2 +measured .* 75.0 % \[70.0, 80.0\]$", text, re.MULTILINE)
    assert re.search(r"^2 × 1 +predicted .* 75.0 %$", text, re.MULTILINE)
    assert "busy share of each device on 2 devices: 0: 50 %, 1: 33 %" in text
    assert "note: A note on <this>." in text
    assert "per epoch" not in text
    assert re.search(r"per epoch +to the end\n.*0.2 +1\n", scaling_text(scaling(price=0.2)))


def test_the_page_is_read_from_the_folder_and_shows_what_is_predicted(tmp_path: Path) -> None:
    write_json(tmp_path / SCALING_FILE, to_json(scaling()))
    page = write_scaling_page(tmp_path).read_text()
    assert page == render_scaling(scaling())
    assert "<title>photos · stepladder scaling</title>" in page
    assert "A note on &lt;this&gt;." in page
    assert 'class="line good dashed"' in page  # hosts of one device are predicted
    assert 'class="line val"' in page
    assert 'class="line run2"' in page  # the second device's use
    assert "1 × 2 is 1.33× as fast" in page
    assert "Most is lost to communication" in page
    assert len(page) < 200_000
    assert "cost of an epoch" not in page
    assert "cost of an epoch" in render_scaling(scaling(price=0.2))


def test_a_split_that_does_not_close_is_no_basis_for_a_decision() -> None:
    whole = point(1, 2, is_measured=True)
    assert whole.why_no_advice() is None
    parts = dict(whole.parts_s) | {Part.UNEXPLAINED.value: 1.2}
    assert "12 % of the time is not explained" in str(replace(whole, parts_s=parts).why_no_advice())
    unsound = replace(scaling(), points=(replace(whole, parts_s=parts),))
    assert "The parts do not add up" in render_scaling(unsound)
    parts[Part.UNEXPLAINED.value] = -0.6
    assert "add up to 106 %" in str(replace(whole, parts_s=parts).why_no_advice())

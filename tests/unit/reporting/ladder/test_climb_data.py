from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stepladder.records.ladder import Decision, Interval
from stepladder.reporting.ladder.charts import prediction_chart, sample_chart, time_unit
from stepladder.reporting.ladder.climb_data import ClimbRecords, read_climb
from stepladder.reporting.ladder.picture import ladder_picture
from stepladder.reporting.ladder.profile import profile_view
from stepladder.reporting.ladder.table import ladder_headline, ladder_rows
from stepladder.reporting.ladder.trials import trial_details
from stepladder.reporting.pages.report_page import MAX_REPORT_BYTES, write_report
from stepladder.reporting.titles import titled

Build = Callable[..., Path]
Line = dict[str, Any]


class Page(HTMLParser):
    """Collects tags, event handlers and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path.stat().st_size < MAX_REPORT_BYTES
    return Page(path.read_text(encoding="utf-8"))


def climb_of(folder: Path) -> ClimbRecords:
    missing: list[str] = []
    climb = read_climb(folder, missing)
    assert climb is not None
    assert missing == []
    return climb


def lines_of(folder: Path) -> list[Line]:
    text = (folder / "trials.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def write_lines(folder: Path, lines: list[Line]) -> None:
    (folder / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_picture_ends_with_the_headline_of_the_pairs(
    build_climb: Build, tmp_path: Path
) -> None:
    climb = climb_of(build_climb(tmp_path / "run"))
    assert climb.summary.result is not None
    paired = replace(
        climb,
        summary=replace(
            climb.summary,
            result=replace(climb.summary.result, paired_s=6.0),
            speedup_bounds=Interval(estimate=240.0, low=200.0, high=288.0),
        ),
    )
    picture = ladder_picture(paired)
    assert picture is not None
    end = picture.steps[-1]
    assert (end.time, end.words) == ("6.0 s", "240× [200, 288]")


def test_the_page_shows_the_climb_first_and_then_the_training(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    page = page_of(build_climb(build_run(tmp_path / "run")))
    order = [
        "196× faster 24 min → 7.4 s",
        "Test accuracy 75.0 % → 75.3 % (difference +0.3 ± 0.9 points from a single "
        "training run each, over 661 examples, evaluated once)",
        "64.9 % → 66.0 % validation accuracy", "The ladder",
        "Early stopping: 24 min to 4.3 min, 5.65× [5.56, 5.74]",
            "end to end: 7.4 s",
        "What was tried", "kept : 11 epochs (by replay, 5 seeds)",
        "dropped : 17 epochs (by replay, 5 seeds); accuracy may fall by more than 1.0 points",
        "Predicted and measured", "Every trial", "All samples", "Profile before and after",
        "What was not tried, and why", "no GPU on this machine (a T4: at most 14×)",
        "The next step beyond this machine", "Larger GPU , predicted 3.1×",
        "The final training, with all kept rungs", "Learning", "Where the time went",
        "How this was measured", "extrapolated from 3 measured epochs",
    ]  # fmt: skip
    places = [page.text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert page.tags.count("script") == 1  # its own
    assert page.handlers == []


def test_the_page_shows_ranges_where_early_stopping_decides_the_length(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    climb = json.loads((folder / "climb.json").read_text())
    found = {"low": 12, "high": 21, "mean": 15.0, "num_seeds": 20, "provenance": "replayed"}
    climb["baseline"] |= {"epochs": 15.0, "epoch_range": found, "low_s": 546.0, "high_s": 960.0}
    climb |= {"speedup_low": 74.0, "speedup_high": 130.0}
    climb["next"] |= {"gain_low": 2.0, "gain_high": 4.0}
    (folder / "climb.json").write_text(json.dumps(climb))
    lines = lines_of(folder)
    for line in lines:
        if line["kind"] == "profile":
            line["profile"]["epoch_range"] = found
        if line["kind"] == "trial" and line["trial"]["after_epochs"]:
            line["trial"]["after_range"] = {**found, "low": 10, "high": 12}
    write_lines(folder, lines)
    text = page_of(folder).text
    for words in (
        "74 to 130× over its seeds, 9.1 to 16 min → 7.4 s",
        "12 to 21 → 17",
        "predicted 2.0 to 4.0× (7.4 s → 1.8 to 3.7 s)",
        "original: 9.1 to 16 min",
        "for 60 epochs; 12 to 21 epochs, ",
        "kept : 10 to 12 epochs (by replay, 5 seeds)",
    ):
        assert words in text, words


def test_a_profile_that_is_the_first_again_is_shown_once(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    profiles = climb_of(folder).profiles
    two, one = profile_view(profiles), profile_view([*profiles, profiles[0]])
    assert two is not None
    assert one is not None
    assert (two.has_two, one.has_two) == (True, False)
    assert one.times[0].bars[0].title.startswith("Original job")


def test_an_undone_rung_is_one_trial_that_was_dropped(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    before = climb_of(folder)
    first = next(line for line in lines_of(folder) if line["kind"] == "trial" and is_kept(line))
    undone = json.loads(json.dumps(first))
    undone["trial"]["is_undone"] = True
    undone["trial"]["verdict"] |= {"decision": "dropped", "reason": "too much was lost"}
    write_lines(folder, [*lines_of(folder), undone, first, undone])  # and once more, resumed
    after = climb_of(folder)
    rungs = [trial.rung for trial in after.trials]
    assert rungs == [trial.rung for trial in before.trials]
    (one,) = [trial for trial in after.trials if trial.rung == first["trial"]["rung"]]
    assert one.verdict.decision is Decision.DROPPED
    assert one.rung not in {trial.rung for trial in after.kept}
    picture = ladder_picture(after)
    assert picture is not None
    assert [step.style for step in picture.steps if step.name == one.rung] == ["dropped"]
    assert "is tried again" not in page_of(folder).text


def is_kept(line: Line) -> bool:
    return bool(line["trial"]["verdict"]["decision"] == "kept")


def test_a_run_without_a_climb_has_no_ladder(build_run: Build, tmp_path: Path) -> None:
    text = page_of(build_run(tmp_path / "run")).text
    assert "ladder " not in text.replace("stepladder ", "")
    assert "The final training, with all kept rungs" not in text


def test_every_sample_and_option_of_a_trial_is_on_the_page(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    text = page_of(folder).text
    for trial in climb_of(folder).trials:
        for samples in (trial.before_s, trial.after_s, trial.before_epochs, trial.after_epochs):
            assert ", ".join(f"{value:.4g}" for value in samples) in text
        for name in trial.change:
            assert name in text


def test_the_picture_moves_only_where_a_rung_was_kept(build_climb: Build, tmp_path: Path) -> None:
    picture = ladder_picture(climb_of(build_climb(tmp_path / "run")))
    assert picture is not None
    assert [step.style for step in picture.steps] == [
        "start", "kept", "kept", "kept", "undecided", "kept", "dropped", "end",
    ]  # fmt: skip
    assert picture.has_negative
    ends = []
    for step in picture.steps:
        found = re.findall(r'class="way" d="M([\d.]+) 20[VL]', str(step.strip))
        ends.append(float(found[-1]) if found else None)
    way = [x for x in ends if x is not None]
    assert way[0] == max(way)
    undecided, before = ends[4], ends[3]
    assert undecided == pytest.approx(before, abs=5)  # it continues at the same place
    labels = [label for _, label in picture.ticks]
    assert {"10 s", "1 min", "10 min"} <= set(labels)
    places = [float(at) for at, _ in picture.ticks]
    assert places == sorted(places)
    assert min(b - a for a, b in pairwise(places)) > 11  # labels do not overlap


def test_a_prediction_that_came_true_is_on_the_line(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    lines = lines_of(folder)
    for line in lines:
        if line["kind"] == "trial" and line["trial"]["verdict"]["speed"]:
            line["trial"]["prediction"]["gain"] = line["trial"]["verdict"]["speed"]["estimate"]
    write_lines(folder, lines)
    svg = str(prediction_chart(climb_of(folder).trials))
    (line_ends,) = re.findall(r'class="equal" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)"', svg)
    x0, y0, x1, y1 = (float(value) for value in line_ends)
    dots = re.findall(r'class="try \w+" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert len(dots) == 6
    for x, y in dots:
        assert float(y) == pytest.approx(y0 + (float(x) - x0) * (y1 - y0) / (x1 - x0), abs=0.3)


def test_every_dot_is_named_however_crowded(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    lines = lines_of(folder)
    tried = [line["trial"] for line in lines if line["kind"] == "trial"]
    tried = [trial for trial in tried if trial["verdict"]["speed"]]
    for idx, trial in enumerate(tried[1:]):
        gain = 1.1 + 0.01 * idx
        trial["prediction"]["gain"] = gain
        trial["verdict"]["speed"] |= {"estimate": gain, "low": gain, "high": gain}
    write_lines(folder, lines)
    svg = str(prediction_chart(climb_of(folder).trials))
    named = re.findall(r'class="named" x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]+)<', svg)
    names = sorted(titled(trial["rung"]) for trial in tried)
    assert sorted(name for _, _, name in named) == names
    assert len({place[:2] for place in named}) == len(named)
    assert 'class="leader"' in svg


def test_a_rung_is_explained_where_it_first_appears(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    climb = climb_of(folder)
    first, *rest = ladder_rows([climb.trials[0], *climb.trials])
    assert first.name == "early_stopping"
    assert "Stop when validations no longer improve" in first.about
    assert [bool(row.about) for row in rest] == [False, *[True] * (len(rest) - 1)]


def test_the_end_says_which_time_was_found_ready(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    climb, summary = (json.loads((folder / f"{n}.json").read_text()) for n in ("climb", "summary"))
    climb["result"]["total_s"] = summary["train_s"]
    (folder / "climb.json").write_text(json.dumps(climb))
    assert "the total time of the final training" in page_of(folder).text
    climb["result"]["total_s"] = summary["train_s"] + 20
    (folder / "climb.json").write_text(json.dumps(climb))
    text = page_of(folder).text
    assert "the total time of the final training" not in text
    assert "the time to compute its cached features (20 s)" in text
    assert "With 20 s to compute the cached features, the total is" in text


def test_a_climb_that_predicts_nothing_beyond_this_machine_says_so(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    summary = json.loads((folder / "climb.json").read_text())
    (folder / "climb.json").write_text(json.dumps(summary | {"next": None}))
    text = page_of(folder).text
    beyond = text[text.index("The next step beyond this machine") :]
    assert "No gain is predicted for the current job" in beyond
    assert "GPU : no GPU on this machine (a T4: at most 14×)." in beyond


def changed(folder: Path, **values: Any) -> Path:
    path = folder / "climb.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def test_the_next_step_is_distinguished_from_the_result(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    result = json.loads((folder / "climb.json").read_text())["result"]
    step = {"rung": "gpu", "gain": 2.0, "text": "a bound"}
    changed(folder, result=result | {"total_s": 4.8}, next=step)
    assert "GPU , predicted 2.0× (4.8 s → 2.4 s): a bound." in page_of(folder).text


def test_the_original_job_is_not_a_speedup(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    text = page_of(changed(folder, is_as_written=True, untried=[])).text
    assert "No rung kept 7.4 s Nothing paid off: the original job." in text
    assert "196×" not in text


def test_what_was_not_tried_once_more_is_named(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    name = climb_of(folder).trials[0].rung
    text = page_of(changed(folder, untried=[name])).text
    assert f"because the budget ran out: {name}." in text


def test_a_difference_within_the_noise_is_not_a_speed_up(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    baseline = json.loads((folder / "climb.json").read_text())["baseline"]
    whole = baseline | {"total_s": 8.0, "runs_s": [6.0, 10.0], "is_extrapolated": False}
    text = page_of(changed(folder, baseline=whole, speedup=1.08)).text
    assert "No clear difference 8.0 s → 7.4 s" in text
    said = "The original job took 6.0 s and 10 s: the noise is larger than the effect."
    assert f"No clear difference 8.0 s → 7.4 s {said} Time to a trained model" in text
    assert "Both were run in full." in text
    text = page_of(changed(folder, baseline=whole | {"is_extrapolated": True}, speedup=1.08)).text
    assert f"{said} Time to a trained model" in text
    assert "epochs; the second is measured." in text
    far = whole | {"total_s": 24.0, "runs_s": [20.0, 28.0], "is_extrapolated": True}
    text = page_of(changed(folder, baseline=far, speedup=24 / 7.4)).text
    assert "No clear difference" not in text
    assert "3.2× faster 24 s → 7.4 s" in text
    said = "The original job took 20 s and 28 s: other processes used the machine, so the shorter"
    assert f"3.2× faster 24 s → 7.4 s {said} time is used. Time to a trained model" in text
    assert "epochs; the second is measured." in text
    near = whole | {"total_s": 9.0, "runs_s": [8.2, 9.8]}
    text = page_of(changed(folder, baseline=near, speedup=9 / 7.4)).text
    assert "Both were run in full (the original job took 8.2 s and 9.8 s)." in text


def test_a_ratio_from_pairs_is_shown_with_its_bounds_and_its_doubts(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    found = json.loads((folder / "climb.json").read_text())
    bounds = {"estimate": 154.0, "low": 140.0, "high": 168.0, "confidence": 0.95}
    parts = {
        "baseline": found["baseline"] | {"total_s": 1080.0, "runs_s": [1000.0, 1080.0]},
        "result": found["result"] | {"total_s": 9.0, "paired_s": 7.0},
        "speedup": 154.0,
        "speedup_bounds": bounds,
        "speedup_from": "pairs",
        "paired": bounds,
        "num_pairs": 8,
        "loads": [
            {"name": "trials", "seconds": 200.0, "cores_missing": 0.4},
            {"name": "pairs", "seconds": 10.0, "cores_missing": 0.0},
        ],
    }
    text = page_of(changed(folder, **parts)).text
    assert "154× faster [140, 168], 18 min → 7.0 s, from 8 pairs Time to a trained model" in text
    assert "8 pairs, and extrapolated to their epochs." in text
    assert "The final training itself took 9.0 s." in text
    assert "Cores used by other processes: 0.4 during the trials, 0.0 during the pairs." in text
    chain = {"estimate": 110.0, "low": 100.0, "high": 120.0, "confidence": 0.95}
    other = {
        "speedup": 110.0, "speedup_from": "chain", "speedup_bounds": chain, "chain": chain,
        "has_other_chain": True,
    }  # fmt: skip
    text = page_of(changed(folder, **parts | other)).text
    assert (
        "110× faster [100, 120], 18 min → 7.0 s 8 pairs gave 154× [140, 168]; "
        "the kept rungs' gains multiply to 110× [100, 120], the smaller is shown. Time to"
    ) in text
    parts["has_other_chain"] = False
    text = page_of(changed(folder, **parts | {"num_pairs": 3})).text
    few = "from 3 pairs Only 3 pairs were timed, fewer than 8, because the time ran out. Time to"
    assert few in text
    alone = {"num_pairs": 0, "paired": None, "speedup_bounds": None, "why_no_pairs": EVIL}
    text = page_of(changed(folder, **parts | alone)).text
    assert f"The ratio is not from pairs timed in turn: {EVIL}. Time to" in text
    noise = {"estimate": 1.02, "low": 0.97, "high": 1.08, "confidence": 0.95}
    text = page_of(changed(folder, **parts | {"speedup": 1.02, "speedup_bounds": noise})).text
    assert "No clear difference" in text


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"over_default": 4.6},
        {"aim": "accuracy"},
        {"is_as_written": True},
        {"test_change": None, "loss_change": {"estimate": -0.02, "low": -0.05, "high": 0.01}},
        {"test_change": None},
        {"num_pairs": 3, "has_other_chain": True, "chain": {"estimate": 2, "low": 1, "high": 3}},
        {"result": None},
        {"why_no_pairs": "timing both in turn failed: raised ValueError: the third batch"},
    ],
)
def test_each_line_below_the_figure_is_one_sentence(
    build_climb: Build, tmp_path: Path, parts: Line
) -> None:
    head = ladder_headline(climb_of(changed(build_climb(tmp_path / "run"), **parts)), "finished")
    lines = [*head.doubts, head.caption, head.against_default, head.ending]
    for line in filter(None, lines):
        assert line.endswith(".")
        assert len(re.findall(r"[.!?](?= |$)", line)) == 1, line


def test_the_machine_is_named_beside_the_figure(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    said = (
        "Measured on: Some Processor, 2 of 64 cores, 2 threads, avx2, fma, "
        "idle threads wait by GOMP_SPINCOUNT=3000. "
    )
    text = page_of(folder).text
    assert text.index("196× faster") < text.index(said) < text.index("duration of the climb")
    evil = {"model": EVIL, "waiting": {"GOMP_SPINCOUNT": EVIL}, "instructions": 3, "num_cores": "x"}
    page = page_of(changed(folder, machine=evil))
    assert EVIL in page.text
    assert page.tags.count("script") == 1
    assert "Measured on" not in page_of(changed(folder, machine={})).text


def test_a_task_without_classes_ends_with_the_change_of_its_loss(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    found = json.loads((folder / "climb.json").read_text())
    ends = {key: found[key] | {"test_accuracy": None} for key in ("baseline", "result")}
    change = {"estimate": -0.02, "low": -0.05, "high": 0.01}
    text = page_of(changed(folder, **ends, test_change=None, loss_change=change)).text
    said = (
        "Test loss changed by −0.020 [−0.050, +0.010], over 661 examples, evaluated once; lower is"
    )
    assert said in text
    text = page_of(changed(folder, test_change=None, loss_change=None)).text
    assert "The results on test were not compared." in text


def test_what_all_kept_rungs_change_together_is_reported(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    assert "All kept rungs together" not in page_of(folder).text
    change = {"accuracy": {"estimate": -0.002, "low": -0.008, "high": 0.003}, "num_trainings": 5}
    text = page_of(changed(folder, together=change | {"undone": ["larger_batch"]})).text
    said = (
        "All kept rungs together, compared with the original job; undone: larger_batch: "
        "accuracy −0.2"
    )
    assert said in text
    text = page_of(changed(folder, together={"why_not": EVIL})).text
    assert EVIL in text


def test_one_time_work_outside_the_clock_is_named(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    train_s = json.loads((folder / "summary.json").read_text())["train_s"]
    changed(folder, result={"total_s": train_s + 20, "one_time_s": {"compile": 19, "store": 1}})
    text = page_of(folder).text
    assert "20 s of one-time work (compilation, decoded copy)" in text


def test_a_damaged_file_is_not_taken_for_a_running_climb(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    for name in ("climb.json", "summary.json"):
        (folder / name).write_text('{"baseline": ')
    text = page_of(folder).text
    assert "climb.json is damaged" in text
    assert "Result and times: summary.json is damaged." in text
    for claim in ("kept so far", "has not ended"):
        assert claim not in text


def test_the_parts_of_a_trial_end_with_their_sum(build_climb: Build, tmp_path: Path) -> None:
    details = trial_details(climb_of(build_climb(tmp_path / "run")).trials)
    cached = next(detail for detail in details if detail.name == "cached_features")
    names = [part.name for part in cached.parts]
    assert {"features, once", "loading, once"} < set(names)
    assert names.index("total") == len(names) - 1


def test_dots_are_in_pairs_in_the_order_of_the_blocks() -> None:
    svg = str(sample_chart([4.0, 5.0, float("nan"), 6.0], [1.0, 2.0, 3.0, 4.0], title="t"))
    dots = re.findall(r'class="dot (\w+)" cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert [style for style, _, _ in dots] == ["train", "val"] * 3
    assert [dots[i][1] == dots[i + 1][1] for i in (0, 2, 4)] == [True] * 3
    before, after = ([float(y) for style, _, y in dots if style == s] for s in ("train", "val"))
    assert before == sorted(before, reverse=True)  # larger numbers are higher
    assert all(old < new for old, new in zip(before, after, strict=True))
    assert sample_chart([float("inf")], [1.0], title="t") is None
    assert sample_chart([], [], title="t") is None


@pytest.mark.parametrize(
    ("times", "unit"),
    [((1450.0, 260.0), "minutes"), ((100.0,), "seconds"), ((0.004,), "milliseconds"),
     ((9e4,), "hours"), ((float("nan"),), "milliseconds")],
)  # fmt: skip
def test_samples_are_shown_in_the_unit_of_the_largest(times: Any, unit: str) -> None:
    assert time_unit(times)[1] == unit


def test_a_climb_that_has_not_ended_gives_no_product_of_gains(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run", ended=False)
    page = page_of(folder)
    assert "4 rungs kept so far" in page.text
    assert "the total gain is not known yet" in page.text
    assert "climb.json is missing: the climb has not ended." in page.text
    assert "end to end:" not in page.text
    assert "Learning" not in page.text  # there is no training yet
    missing: list[str] = []
    climb = read_climb(folder, missing)
    assert climb is not None
    assert ladder_headline(climb, "unfinished").facts[0].value == "4 of 6"


def test_damaged_lines_are_counted_and_the_others_shown(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"))
    lines = lines_of(folder)
    lines[-1]["trial"]["level"] = "high"
    lines[1]["profile"] = None
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "trials.jsonl").write_text(text + '[1]\n{"kind": "trial", "tri')
    (folder / "climb.json").write_text('{"baseline": {"total_s": "soon"}}')
    page = page_of(folder)
    assert "trials.jsonl: 4 lines could not be read." in page.text
    assert "expected float, got 'soon'" in page.text
    assert "5 Cached features" in page.text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[]\n[]\n", b'{"kind": "trial"}\n'])
def test_a_ledger_without_a_trial_still_gives_a_page(
    content: bytes, build_run: Build, tmp_path: Path
) -> None:
    folder = build_run(tmp_path / "run")
    (folder / "trials.jsonl").write_bytes(content)
    page = page_of(folder)
    assert "0 rungs kept so far" in page.text
    assert "Learning" in page.text


def test_what_is_said_twice_is_shown_once_and_the_last_word_counts(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    lines = lines_of(folder)
    tried = climb_of(folder).trials
    later = json.loads(json.dumps(next(li for li in lines if li["kind"] == "trial")))
    later["trial"]["verdict"]["reason"] = "still on"
    write_lines(folder, [*lines, *lines, later])
    climb = climb_of(folder)
    assert climb.trials == tried
    assert climb.untried[0].rung == "pretrained"
    assert climb.untried[0].verdict.reason == "still on"
    assert [t.verdict.decision for t in climb.kept] == [Decision.KEPT] * 4


def test_a_rung_that_was_dropped_first_and_kept_later_is_kept(
    build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run")
    lines = lines_of(folder)
    last = next(li for li in reversed(lines) if li.get("trial", {}).get("rung") == "larger_batch")
    again = json.loads(json.dumps(last))
    again["trial"]["verdict"]["decision"] = "kept"
    write_lines(folder, [*lines, again])
    climb = climb_of(folder)
    assert [t.rung for t in climb.trials].count("larger_batch") == 2
    assert "larger_batch" in [t.rung for t in climb.kept]


EVIL = '<script>alert(1)</script>{{7*7}}"><img src=x onerror=alert(1)>'


def test_hostile_words_stay_text(build_climb: Build, tmp_path: Path) -> None:
    folder = build_climb(tmp_path / "run")
    lines = lines_of(folder)
    for line in lines:
        if line["kind"] == "trial":
            trial = line["trial"]
            trial["rung"] = EVIL + trial["rung"]
            trial["verdict"]["reason"] = trial["verdict"]["exactness"] = EVIL
            trial["change"] = {EVIL: [EVIL, {"a": EVIL}]}
            trial["machine"] = trial["commit"] = EVIL
            if trial["prediction"]:
                trial["prediction"] |= {"note": EVIL, "inputs": {EVIL: 1.0}}
        if line["kind"] == "profile":
            line["profile"]["phases_s"] = {EVIL: 1.0}
            line["profile"]["time"]["one_time_s"] = {EVIL: 1.0}
    write_lines(folder, lines)
    summary = json.loads((folder / "climb.json").read_text())
    summary["next"] |= {"rung": EVIL, "text": EVIL}
    (folder / "climb.json").write_text(json.dumps(summary))
    page = page_of(folder)
    assert page.tags.count("script") == 1  # its own
    assert "img" not in page.tags
    assert page.handlers == []
    assert "{{7*7}}" in page.text


def test_a_long_climb_of_many_blocks_stays_small(
    build_run: Build, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(build_run(tmp_path / "run"), num_blocks=200)
    lines = lines_of(folder)
    many = []
    for idx in range(12):
        for line in lines:
            copy = json.loads(json.dumps(line))
            if copy["kind"] == "trial":
                copy["trial"]["rung"] += f"_{idx}"
            many.append(copy)
    write_lines(folder, many)
    assert "cached_features_9" in page_of(folder).text  # page_of checks its size


def _spoiled(value: Any, odd: Callable[[], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _spoiled(item, odd) for key, item in value.items()}
    if isinstance(value, list):
        return [_spoiled(item, odd) for item in value]
    return odd() if isinstance(value, float) else value


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", 0.0, -1.0, 1e-300, 1e300, 1.0])
def test_numbers_that_no_one_measured_do_not_break_the_page(
    number: object, build_climb: Build, tmp_path: Path
) -> None:
    folder = build_climb(tmp_path / "run", num_blocks=2)
    write_lines(folder, [_spoiled(line, lambda: number) for line in lines_of(folder)])
    summary = json.loads((folder / "climb.json").read_text())
    (folder / "climb.json").write_text(json.dumps(_spoiled(summary, lambda: number)))
    text = page_of(folder).text
    assert "What was tried" in text
    assert not re.search(r'(?:d|x|y|cx|cy)="[^"]*(?:nan|inf)', (folder / "report.html").read_text())


@pytest.mark.parametrize("seed", range(3))
def test_odd_numbers_among_good_ones_do_not_break_the_page(
    seed: int, build_climb: Build, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    odd = ["nan", "inf", "-inf", 0.0, -1.0, 1e-300, 1e300, 1e-9, 1e9, 3.0]
    folder = build_climb(tmp_path / "run", num_blocks=3)
    write_lines(folder, [_spoiled(line, lambda: rng.choice(odd)) for line in lines_of(folder)])
    assert "What was tried" in page_of(folder).text
    assert not re.search(r'(?:d|x|y|cx|cy)="[^"]*(?:nan|inf)', (folder / "report.html").read_text())

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from stepladder.errors import DataError
from stepladder.reporting.addresses import MAX_PICTURE_BYTES
from stepladder.reporting.headline import headline
from stepladder.reporting.html import script
from stepladder.reporting.pages.report_page import MAX_REPORT_BYTES, ReportView, write_report
from stepladder.reporting.schema import SUMMARY_KEYS, check_summary
from stepladder.reporting.tables import read_run

Build = Callable[..., Path]

EVIL = (
    "<script>alert(1)</script>",
    "{{7*7}}",
    '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0",
)


class Page(HTMLParser):
    """Collects tags, attributes that load something, and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "srcset", "action", "poster", "data", "xlink:href"}:
                self.loads.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def _report(run: Path) -> str:
    path = write_report(run)
    assert path == run / "report.html"
    assert path.stat().st_size < MAX_REPORT_BYTES
    return path.read_text(encoding="utf-8")


def test_the_headline_gives_the_accuracy_with_its_standard_error(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary["test_accuracy"] = 0.75
    (run / "summary.json").write_text(json.dumps(summary))
    html = _report(run)
    assert re.search(r"<h1>75\.0 % <small>± 1\.7</small></h1>", html)
    text = " ".join(Page(html).text.split())
    assert "Test accuracy over 661 pictures. Stopped after 12 epochs" in text
    assert "± is one standard error over the choice of 661 pictures." in text
    for shown in (
        "2 min 8 s",
        "68 / s",
        "2.4 %",
        "unexplained",
        "3.6 s",
        "Energy: no energy counter",
    ):
        assert shown in text


def test_it_loads_nothing_and_runs_its_own_script_only(build_run: Build, tmp_path: Path) -> None:
    html = _report(build_run(tmp_path / "run"))
    page = Page(html)
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src" in html
    assert f"script-src '{script().source}'; base-uri 'none'" in html
    assert f"<script>{script().text}</script>" in html
    assert page.tags.count("script") == 1
    assert not {"iframe", "object", "embed", "base"} & set(page.tags)
    assert page.loads
    assert all(load.startswith("data:") for load in page.loads)
    assert not page.handlers
    assert not re.search(r"https?://|@import|url\(", html)


def test_hostile_names_are_only_text(build_run: Build, tmp_path: Path) -> None:
    run = build_run(tmp_path / EVIL[1], classes=EVIL, warnings=EVIL)
    thumbs = json.loads((run / "thumbs/thumbs.json").read_text())
    thumbs[0] |= {"path": EVIL[2], "label": EVIL[0]}
    (run / "thumbs/thumbs.json").write_text(json.dumps(thumbs))
    with (run / "config.yaml").open("a") as file:
        file.write(f"  note: {EVIL[0]}{EVIL[1]}\n")
    html = _report(run)
    page = Page(html)
    assert page.tags.count("script") == 1  # its own
    assert page.tags.count("img") == 12
    assert not page.handlers
    assert "49" not in re.findall(r"<title>(.*?) ·", html)[0]
    for text in EVIL:
        assert text in page.text


def test_secrets_in_config_and_environment_are_blanked(build_run: Build, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", warnings=["cannot reach http://me:canary@host/"])
    with (run / "config.yaml").open("a") as file:
        file.write("  mlflow_uri: https://me:canary@host/?token=canary\n")
    (run / "env.json").write_text(json.dumps({"AWS_SECRET_ACCESS_KEY": "canary"}))
    html = _report(run)
    assert "canary" not in html
    assert "***" in html


def test_a_thousand_classes_with_long_names_fit(build_run: Build, tmp_path: Path) -> None:
    names = [f"{i:04d} " + "&<é" * 80 for i in range(1000)]
    run = build_run(tmp_path / "run", classes=names, num_test=6_000, epochs=60, log_every=2)
    for thumb in (run / "thumbs").glob("*.jpg"):
        thumb.write_bytes(thumb.read_bytes()[:3].ljust(MAX_PICTURE_BYTES, b"\x00"))
    html = _report(run)
    assert "All classes" in html
    assert "Most frequent confusions" in html


def test_more_than_the_page_can_carry_drops_pictures_not_the_page(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", warnings=["&" * 500 + str(i) for i in range(100)])
    (run / "config.yaml").write_text("&" * 30_000)
    (run / "env.json").write_text(json.dumps({"x": "<" * 30_000}))
    for thumb in (run / "thumbs").glob("*.jpg"):
        thumb.write_bytes(b"\xff\xd8\xff".ljust(MAX_PICTURE_BYTES, b"\x00"))
    _report(run)


@pytest.mark.parametrize(
    "gone", ["summary.json", "events.jsonl", "predictions.csv", "thumbs", "config.yaml", "env.json"]
)
def test_a_missing_file_is_named_and_the_rest_is_shown(
    gone: str, build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run")
    path = run / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = Page(_report(run)).text
    assert gone in text.partition("Not measured")[2]


@pytest.mark.parametrize(
    "content",
    [b"", b'{"event": "tra', b"\xff\xfe\x00", b"[]", b"null\n", b'{"event": 3, "step": []}\n'],
)
def test_torn_files_still_give_a_report(content: bytes, build_run: Build, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    for name in (
        "summary.json",
        "events.jsonl",
        "predictions.csv",
        "env.json",
        "thumbs/thumbs.json",
    ):
        (run / name).write_bytes(content)
    text = Page(_report(run)).text
    assert "No result yet" in text
    assert "Not measured" in text


@pytest.mark.parametrize("value", ["x", [], {}, -1, 1e308, True, None, "nan", {"a": "b"}, [[]]])
def test_values_of_another_kind_never_break_the_report(
    value: object, build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", epochs=2)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(dict.fromkeys(summary, value)))
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    odd = [dict.fromkeys(line, value) | {"event": line["event"]} for line in lines]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in odd))
    (run / "thumbs/thumbs.json").write_text(json.dumps([{"file": value, "path": value}, value]))
    assert "Not measured" in Page(_report(run)).text


def test_a_run_that_was_killed_shows_its_curves_and_says_what_is_missing(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", epochs=3)
    for name in ("summary.json", "predictions.csv"):
        (run / name).unlink()
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "train", "step": 130, "epo')
    html = _report(run)
    text = " ".join(Page(html).text.split())
    assert "unfinished" in text
    assert "Validation accuracy at the best epoch so far" in text
    assert "The last logged event is step 129" in text
    assert html.count('class="line val"') == 2


def test_a_run_that_ends_with_its_last_weights_does_not_claim_the_best(
    build_run: Build, tmp_path: Path
) -> None:
    folder = build_run(tmp_path / "run")
    assert "best epoch; the last weights are used" not in _report(folder)
    config = "stopping:\n  early: false\n  patience: 3\n  restore_best: false\nrun:\n  dir: x\n"
    (folder / "config.yaml").write_text(config)
    html = _report(folder)
    assert "best epoch; the last weights are used" in html
    assert "best, not used" in html


def test_one_sample_is_reported(build_run: Build, tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    path = folder / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    system = [line for line in lines if line["event"] == "system"]
    kept = [line for line in lines if line["event"] != "system"] + system[:1]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    html = _report(folder)
    assert "Only one sample: CPU (100 % is one core) 1" in html
    assert "CPU and GPU" not in html


def test_a_run_of_no_steps_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    start = {"event": "start", "step": 0, "epoch": 0, "attempt": 1, "elapsed_s": 0.1}
    (tmp_path / "events.jsonl").write_text(json.dumps(start) + "\n")
    text = Page(_report(tmp_path)).text
    for said in ("No result yet", "No loss was logged", "Validation: no validation was completed"):
        assert said in text


def test_values_that_are_not_finite_are_counted_and_left_out(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run", epochs=2)
    bad = {"event": "train", "step": 87, "epoch": 2, "elapsed_s": 30, "train_loss": "nan"}
    worse = {"event": "validation", "step": 129, "epoch": 3, "elapsed_s": 40, "val_loss": "inf"}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(bad) + "\n" + json.dumps(worse) + "\n")
    html = _report(run)
    assert "2 values are not finite" in html
    assert not re.search(r'd="[^"]*(nan|inf)', html)


def test_without_a_test_split_validation_is_used_and_called_optimistic(
    build_run: Build, tmp_path: Path
) -> None:
    text = " ".join(Page(_report(build_run(tmp_path / "run", num_test=0))).text.split())
    assert "Validation accuracy over 57 pictures; there is no test result." in text
    assert "± is one standard error over the choice of 57" in text
    assert "Validation accuracy is optimistic" in text
    assert "57 validation pictures" in text


def test_a_gpu_run_shows_its_second_timeline_and_use(build_run: Build, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", with_gpu=True)
    summary = json.loads((run / "summary.json").read_text())
    summary["device_phases_s"] = {"forward": 20.0, "data_wait": 5.0, "unexplained": -0.5}
    (run / "summary.json").write_text(json.dumps(summary))
    text = " ".join(Page(_report(run)).text.split())
    assert "Host, wall time" in text
    assert "GPU usage:" not in text
    assert "-0.5 s" in text


def test_thumbs_outside_the_folder_or_of_another_kind_are_not_read(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run")
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xffcanary")
    (run / "thumbs/00.jpg").write_bytes(b"<svg onload=alert(1)>")
    (run / "thumbs/01.jpg").write_bytes(b"\xff\xd8\xff" + bytes(MAX_PICTURE_BYTES))
    thumbs = json.loads((run / "thumbs/thumbs.json").read_text())
    thumbs[2]["file"], thumbs[3]["file"] = "../../secret.jpg", str(tmp_path / "secret.jpg")
    (run / "thumbs/thumbs.json").write_text(json.dumps(thumbs))
    addresses = [thumb.address for thumb in read_run(run).thumbs]
    assert addresses[:4] == ["", "", "", ""]
    assert all(addresses[4:])


def test_a_folder_that_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the run folder does not exist"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(DataError, match="this is not the folder of a run"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_notebook_gets_the_page_in_a_frame_of_its_own(build_run: Build, tmp_path: Path) -> None:
    frame = ReportView(build_run(tmp_path / "run"))._repr_html_()
    assert Page(frame).tags == ["iframe"]
    assert "&lt;h1&gt;" in frame
    assert 'sandbox="allow-scripts"' in frame  # its own script, without access to the notebook


def test_the_same_folder_gives_the_same_report(build_run: Build, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    assert _report(run) == _report(run)


def test_the_documented_keys_are_the_promised_ones() -> None:
    page = (Path(__file__).parents[4] / "docs/run-folder.md").read_text(encoding="utf-8")
    table = page.partition("## summary.json")[2].partition("\n## ")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|$", table, flags=re.MULTILINE))
    assert documented == {key.name: key.meaning for key in SUMMARY_KEYS}


def test_a_broken_promise_of_a_summary_is_named(build_run: Build, tmp_path: Path) -> None:
    summary = json.loads((build_run(tmp_path / "run") / "summary.json").read_text())
    assert check_summary(summary) == []
    broken = summary | {"num_test": "661", "attempts": True}
    del broken["test_accuracy"]
    assert check_summary(broken) == [
        "test_accuracy is missing", "num_test is str", "attempts is bool",
    ]  # fmt: skip


def test_predictions_without_classes_are_no_class(build_run: Build, tmp_path: Path) -> None:
    folder = build_run(tmp_path / "run")
    header = "split,id,path,label,predicted,probability,loss"
    (folder / "predictions.csv").write_text(f"{header}\ntest,0,row 0,,,,0.5\ntest,1,row 1,,,,2\n")
    page = write_report(folder).read_text()
    assert "Accuracy by class" not in page
    assert "predictions.csv contains no classes" in page


def test_rate_and_wait_are_reported_of_the_steps_where_these_are_not_most_of_the_time(
    build_run: Build, tmp_path: Path
) -> None:
    run = build_run(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    labels = [fact.label for fact in headline(read_run(run)).facts]
    assert labels[0] == "to a trained model"
    phases = {"features": 34.9, "forward": 0.4, "data_wait": 0.35, "setup": 9.0}
    summary |= {"train_s": 36.6, "phases_s": phases}
    (run / "summary.json").write_text(json.dumps(summary))
    labels = [fact.label for fact in headline(read_run(run)).facts]
    assert labels[:3] == [
        "to a trained model, 35 s of it for features",
        "pictures, in the steps",
        "of the steps' time spent waiting for data",
    ]

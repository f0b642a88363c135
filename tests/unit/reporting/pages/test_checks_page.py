"""The page of checks: failures first, and one row for checks that could not run for one reason."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import replace

from stepladder.checks.wording import folded, group_lines
from stepladder.records.findings import CheckReport, Finding, Outcome, PicturePair
from stepladder.records.watch import WatchReport
from stepladder.reporting.html import template
from stepladder.reporting.pages.checks_page import view_of
from stepladder.reporting.pages.watch_page import render_watch


def raised(check: str, size: int, *, fix: str = "Run `train`.") -> Finding:
    evidence = f"RuntimeError: shapes cannot be multiplied ({size}x5 and 4x32)"
    return Finding(check=check, outcome=Outcome.COULD_NOT_RUN, evidence=evidence, fix=fix)


FINDINGS = (
    Finding(check="labels", outcome=Outcome.PASSED, evidence="from 0 to 1"),
    raised("chance_level", 16),
    Finding(check="tokens", outcome=Outcome.NOT_APPLICABLE, evidence="no token ids"),
    raised("loss_sign", 2),
    Finding(
        check="validation_pass", outcome=Outcome.FAILED, evidence="`metrics` fails", fix="Run it."
    ),
    raised("seeds", 16, fix="Another."),
)


def page_of(findings: Sequence[Finding], left_out: tuple[str, ...] = ()) -> str:
    report = CheckReport(
        tier="full", key="k", findings=tuple(findings), took_s=1.0, left_out=left_out
    )
    return template("checks_page.html").render(checks=view_of(report), name="run")


def test_one_reason_is_one_row_with_the_names_of_its_checks() -> None:
    groups = folded(FINDINGS)
    assert [[finding.check for finding in group] for group in groups] == [
        ["labels"],
        ["chance_level", "loss_sign"],  # only batch sizes differ
        ["tokens"],
        ["validation_pass"],
        ["seeds"],  # has a different fix
    ]
    text = group_lines(groups[1])
    assert "could not run   2 checks" in text
    assert "(16x5 and 4x32)" in text
    assert text.endswith("  chance_level, loss_sign")
    assert "seeds" in group_lines(groups[4])


def test_alarms_of_one_kind_are_never_folded() -> None:
    alarm = Finding(check="labels", outcome=Outcome.FAILED, evidence="the same")
    assert len(folded([alarm, alarm])) == 2


def test_what_failed_comes_first_and_what_passed_is_folded_away() -> None:
    page = page_of(FINDINGS)
    details = page.index("<details>")
    places = [page.index(f">{name}</") for name in ("validation_pass", "2 checks", "seeds")]
    assert places == sorted(places)
    assert places[-1] < details < page.index("labels") < page.index("tokens")
    names = re.findall(r'(\w[\w ]*) <code class="id">(\w+)</code>', page[:details])
    assert names[-2:] == [("Chance level", "chance_level"), ("Loss sign", "loss_sign")]
    assert "1 of 5" in page  # counted by check, not by row


def test_text_between_backticks_is_code_on_the_page() -> None:
    page = page_of(FINDINGS)
    assert "<code>metrics</code> fails" in page
    assert "Run <code>train</code>." in page
    assert "`" not in page


def test_the_page_of_a_watched_script_names_it_as_it_was_given() -> None:
    alarm = Finding(
        check="missing_zero_grad", outcome=Outcome.FAILED, evidence="`step` adds up", fix="Call it."
    )
    page = render_watch(WatchReport(script="/home/me/train.py", args=("--lr", "1"), num_steps=9))
    assert "<title>train.py --lr 1 ·" in page
    assert "/home/me" not in page
    page = render_watch(WatchReport(script="src/train.py", num_steps=9, findings=(alarm,)))
    assert "<title>src/train.py ·" in page
    assert "<code>step</code> adds up" in page


def test_the_caption_says_how_many_checks_no_time_was_left_for() -> None:
    report = CheckReport(tier="full", key="k", findings=FINDINGS, took_s=1.0)
    assert "skipped" not in view_of(report).caption
    late = replace(report, left_out=("distribution", "duplicates"))
    assert view_of(late).caption.endswith("2 skipped (time limit)")


def test_what_passed_is_not_all_where_no_time_was_left_for_others() -> None:
    passed = (Finding(check="labels", outcome=Outcome.PASSED, evidence="from 0 to 1"),)
    page = page_of(passed)
    assert "1 of 1 checks passed; there is nothing to do." in page
    assert "1 passed or not applicable (" in page
    page = page_of(passed, left_out=("duplicates", "shift"))
    assert "there is nothing to do" not in page
    assert "1 of 1 checks passed; 2 were skipped because of the time limit" in page


def test_pairs_of_pictures_are_on_the_page_and_their_names_below() -> None:
    jpeg = base64.b64encode(b"\xff\xd8\xff and so on").decode()
    pair = PicturePair(names=("test/a.jpg", "train/<b>.jpg"), jpegs=(jpeg, "not base64!"))
    alarm = Finding(
        check="duplicates",
        outcome=Outcome.WARNED,
        evidence="2 are near-duplicates",
        examples=("test/a.jpg = train/<b>.jpg",),
        pictures=(pair,),
    )
    page = page_of([alarm])
    assert f'src="data:image/jpeg;base64,{jpeg}"' in page
    assert "no picture" in page
    assert "train/&lt;b&gt;.jpg" in page
    view = view_of(CheckReport(tier="full", key="k", findings=(alarm,), took_s=1.0))
    assert view.has_pairs
    plain = template("checks_page.html").render(checks=view.without_pairs(), name="run")
    assert "data:image" not in plain
    assert "test/a.jpg = train/&lt;b&gt;.jpg" in plain

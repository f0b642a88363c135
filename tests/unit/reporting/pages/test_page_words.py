"""Words of all pages: headings are no identifiers, and the lines under the hero are sentences."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import stepladder
from stepladder.records.findings import CheckReport, Finding, Outcome
from stepladder.records.watch import WatchReport
from stepladder.reporting.html import template
from stepladder.reporting.pages.checks_page import view_of
from stepladder.reporting.pages.report_page import write_report
from stepladder.reporting.pages.watch_page import render_watch
from stepladder.reporting.titles import in_words, titled

SIX_STEPS = Path(__file__).parents[4] / "examples" / "audit" / "six_steps.csv"
FINDINGS = (
    Finding(check="loss_sign", outcome=Outcome.FAILED, evidence="it rises", fix="Fix it."),
    Finding(check="chance_level", outcome=Outcome.COULD_NOT_RUN, evidence="it raises", fix="Fix."),
    Finding(check="batch_norm", outcome=Outcome.COULD_NOT_RUN, evidence="it raises", fix="Fix."),
    Finding(check="missing_classes", outcome=Outcome.PASSED, evidence="none"),
)
IDENTIFIER = re.compile(r"\b[a-z]+_[a-z_]+\b")


@pytest.fixture(scope="module")
def pages(
    build_run: Callable[..., Path],
    build_climb: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    run, climb = build_run(folder / "run"), build_climb(build_run(folder / "climb"))
    logs = []
    for name in ("first", "second"):
        logs.append(folder / f"{name}.csv")
        rows = [f"{epoch},{2 / epoch},{1 / epoch},{1 - 1 / epoch}" for epoch in range(1, 9)]
        logs[-1].write_text("\n".join(["epoch,loss,val_loss,val_accuracy", *rows]))
    stepladder.audit(SIX_STEPS, page=folder / "audits.html")
    stepladder.audit(logs[0], num_val=100, page=folder / "audit.html")
    stepladder.compare(*logs, num_val=100, out=folder / "compare.html")
    report = CheckReport(
        tier="full", key="k", findings=FINDINGS, took_s=1.0, left_out=("beats_baseline",)
    )
    written = [write_report(run), write_report(climb), *sorted(folder.glob("*.html"))]
    found = {f"{path.parent.name}/{path.name}": path.read_text() for path in written}
    found["checks"] = template("checks_page.html").render(checks=view_of(report), name="run")
    watched = WatchReport(script="train.py", num_steps=9, findings=FINDINGS)
    return found | {"watch": render_watch(watched)}


def test_headings_and_first_cells_are_words(pages: dict[str, str]) -> None:
    assert len(pages) == 7
    for name, page in pages.items():
        for tag in ("h1", "h2", "h3", "th", "summary", "text"):
            for words in re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page, re.DOTALL):
                assert not IDENTIFIER.search(_without_code(words)), (name, tag, words)
        for words in re.findall(r"<tr[^>]*><td[^>]*>(.*?)</td>", page, re.DOTALL):
            assert not IDENTIFIER.search(_without_code(words)), (name, words)


def test_an_identifier_stands_beside_its_title(pages: dict[str, str]) -> None:
    checks = pages["checks"]
    for finding in FINDINGS:
        shown = rf'{titled(finding.check)}(</b>)? <code class="id">{finding.check}</code>'
        assert re.search(shown, checks), finding.check
    assert 'Better than baselines <code class="id">beats_baseline</code>' in checks
    assert 'Cached features <code class="id">cached_features</code>' in pages["climb/report.html"]


def test_each_line_under_the_hero_is_one_sentence(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        header = page.partition("<header>")[2].partition("</header>")[0]
        captions = re.findall(r'<p class="caption[^"]*">(.*?)</p>', header, re.DOTALL)
        assert 1 <= len(captions) <= 2, name
        for caption in captions:
            assert not re.search(r"\.\s+[A-Z±]", caption), (name, caption)


def test_every_table_scrolls_on_a_narrow_screen(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        tables = re.findall(r'(<div class="(?:scroll|wide)">)?\s*<table', page)
        assert all(tables), name
        if 'class="confusion' in page:
            assert '<div class="scroll"><svg class="confusion"' in page


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("cached_features", "Cached features"),
        ("cpu_threads", "CPU threads"),
        ("learning_rate_lower", "Lower learning rate"),
        ("batch.lr", "Batch: learning rate"),
        ("lightning_csv", "Lightning CSV"),
    ],
)
def test_a_title_is_words(name: str, title: str) -> None:
    assert titled(name) == title


def test_a_metric_in_a_sentence_is_words() -> None:
    assert in_words("val_accuracy") == "validation accuracy"


def _without_code(html: str) -> str:
    return re.sub(r"<[^>]*>", " ", re.sub(r"<code.*?</code>", "", html, flags=re.DOTALL))

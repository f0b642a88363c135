"""The audit page: curves with their best marked, verifiable intervals, findings."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.audit.size import Sizes
from stepladder.errors import ResourceError
from stepladder.records.audit import Audit
from stepladder.reporting.html import script
from stepladder.reporting.pages.audit_page import (
    audit_figures,
    audit_page,
    bounds_of,
    write_audit_page,
)
from stepladder.reporting.titles import titled
from stepladder.stats.shares import wilson_interval

SIX_STEPS = Path(__file__).parents[4] / "examples" / "audit" / "six_steps.csv"
RIGHT = (50, 61, 70, 68, 66, 65, 64, 63)
LOSSES = (1.9, 1.4, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)


def write_log(path: Path, *, head: str = "epoch,loss,val_loss,val_accuracy") -> str:
    rows = [
        f"{epoch},{2 / epoch:.3f},{loss},{right / 100}"
        for epoch, (right, loss) in enumerate(zip(RIGHT, LOSSES, strict=True), start=1)
    ]
    path.write_text("\n".join([head, *rows]) + "\n")
    return str(path)


@pytest.fixture
def found(tmp_path: Path) -> Audit:
    return audit([write_log(tmp_path / "log.csv")], sizes=Sizes(num_val=100))


def test_curves_are_drawn_and_the_best_is_marked_at_its_epoch(found: Audit) -> None:
    loss, accuracy = audit_figures(found.runs[0])
    assert (loss.title, accuracy.title) == ("Loss", "Accuracy")
    assert [name for _, name in loss.keys] == ["training, as logged", "validation"]
    for figure in (loss, accuracy):
        assert figure.svg is not None
        root = ElementTree.fromstring(str(figure.svg))
        (mark,) = [item for item in root.iter() if item.get("class") == "mark"]
        at = float(re.match(r"M([\d.]+) ", mark.get("d") or "")[1])  # type: ignore[index]
        assert at == pytest.approx(46 + (460 - 14 - 46) * 3 / 8, abs=0.1)  # epoch 3 of 8
    bands = [re.findall(r'class="band', str(figure.svg)) for figure in (loss, accuracy)]
    assert [len(band) for band in bands] == [0, 1]  # the log has no noise of a loss


def test_the_interval_is_that_of_the_held_out_examples(found: Audit) -> None:
    assert bounds_of(found.runs[0]) == wilson_interval(70, 100)
    page = audit_page(found)
    assert "<h1>70.0 % ± 4.6</h1>" in page
    assert "60.4 to 78.1" in page  # Wilson at 70 of 100
    assert "over 100 held-out examples" in page


def test_each_finding_has_its_evidence_and_its_fix(found: Audit) -> None:
    page = audit_page(found)
    alarms = [f for f in found.runs[0].findings if f.is_alarm]
    assert len(alarms) >= 2
    for finding in alarms:
        assert f'{titled(finding.check)}</b> <code class="id">{finding.check}</code>' in page
        assert finding.evidence[:30] in page
        assert finding.fix[:30] in page
    assert page.index("length") < page.index("evaluation_size")  # what passed is collapsed below


def test_trainings_are_compared_with_intervals_and_what_was_not_read_is_reported(
    tmp_path: Path,
) -> None:
    page = audit_page(audit([str(SIX_STEPS), str(tmp_path / "gone.csv")]))
    assert "<h1>6 training runs</h1>" in page
    assert page.count('<svg class="interval"') == 6
    assert "-0.4 points (95 %: -7.4 to +6.6)" in page  # 1.96 standard errors of 3.54 points
    assert "Not read" in page
    assert "gone.csv" in page
    assert "The log has too few evaluations to draw a curve." in page


def test_a_log_without_held_out_numbers_and_hostile_names_give_a_page(tmp_path: Path) -> None:
    log = tmp_path / "<b>&.csv"
    log.write_text("epoch,loss\n1,2.0\n2,nan\n3,1.0\n")
    page = audit_page(audit([str(log)]))
    assert "<h1>No result</h1>" in page
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page


def test_the_page_loads_nothing_and_runs_its_own_script_only(found: Audit, tmp_path: Path) -> None:
    page = write_audit_page(found, tmp_path / "out" / "audit.html").read_text(encoding="utf-8")
    assert page.count("<script") == page.count(f"<script>{script().text}</script>") == 1
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_a_page_that_cannot_be_written_is_reported_with_what_to_type(
    found: Audit, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be written") as caught:
        write_audit_page(found, tmp_path / "file" / "audit.html")
    assert "--page" in str(caught.value.fix)

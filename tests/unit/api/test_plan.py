"""`stepladder plan`: from a profile, a watched script and YAML, and three mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import stepladder
from stepladder.cli.main import main
from stepladder.errors import DataError, UsageError
from stepladder.planning.reference import page
from stepladder.records import to_json
from stepladder.records.collectives import COLLECTIVES_FILE, Collectives, Fit, Link
from stepladder.records.files import write_json
from stepladder.records.from_json import read_record
from stepladder.records.plan import PLAN_FILE, Plan
from stepladder.records.profile import Gradient, Profile, TrainingTime
from stepladder.records.watch import WATCH_FILE, WatchReport

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "plan" / "resnet50.yaml"


def test_the_page_in_docs_is_what_the_code_says() -> None:
    again = "python -m stepladder.planning.reference > docs/planner.md"
    assert (ROOT / "docs" / "planner.md").read_text(encoding="utf-8") == page(), again


def test_a_described_job_is_planned_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--machines", "p3.2xlarge", "p3.16xlarge", "--hosts", "1", "2", "--deadline", "20h"]
    assert main(["plan", str(EXAMPLE), *words, "--run.dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    found = read_record(Plan, tmp_path / PLAN_FILE)
    assert f"answer: {found.answer}" in out
    assert found.answer.startswith("the cheapest within 20 h is ")
    html = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert found.job in html
    assert html.count("data-point=") == len(found.points)
    assert "Numbers that were used" in html
    assert main(["plan", str(EXAMPLE), "--json", "--run.dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["answer"]


def test_a_profile_is_planned_with_its_measured_order_of_gradients(
    tmp_path: Path, profile_of: Callable[..., Profile]
) -> None:
    gradients = (Gradient(num_bytes=1_000_000, ready_frac=0.2), Gradient(num_bytes=9, ready_frac=1))
    time = TrainingTime(epochs=3, steps_per_epoch=10, step_s=0.05)
    profile = profile_of(time, step_fixed_s=0.01, step_per_example_s=0.001, gradients=gradients)
    line = json.dumps({"kind": "profile", "profile": to_json(profile), "is_first": True})
    (tmp_path / "trials.jsonl").write_text(line + "\n", encoding="utf-8")
    found = stepladder.plan(tmp_path, hosts=(1, 2), dir=None)
    assert found.now is not None
    order = next(one for one in found.inputs if one.name == "order of the gradients")
    assert (order.bounds.likely, str(order.provenance)) == (2, "measured")
    assert not (tmp_path / PLAN_FILE).exists()


def test_a_watched_script_is_planned(tmp_path: Path) -> None:
    facts = {"batch_size": 32, "num_params": 1_000_000, "device": "Tesla T4"}
    report = WatchReport(script="train.py", num_steps=100, step_s=0.2, facts=facts)
    write_json(tmp_path / WATCH_FILE, to_json(report))
    found = stepladder.plan(tmp_path, machines=("4xV100",), examples=5000, epochs=2, dir=None)
    assert "train.py: 5,000 examples, 2 epochs" in found.job
    assert main(["plan", "--from", str(tmp_path), "--run.dir", str(tmp_path / "plan")]) == 0


def test_workers_that_do_not_wait_are_planned_beside_those_that_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ["native", "asynchronous", "backup_workers"]
    options = ["--hosts", "4", "--slow-device", "2", "--slow-network", "1Gbit"]
    folder = ["--run.dir", str(tmp_path)]
    assert main(["plan", str(EXAMPLE), "--all-reduce", *ways, *options, *folder]) == 0
    out = capsys.readouterr().out
    assert "gradients are 3 updates old" in out
    assert "note: one of several devices is taken to be 2 times as slow" in out
    assert "note: one of several machines is taken to have a network of 1Gbit" in out
    assert (tmp_path / "plan.html").exists()


def test_a_measured_network_replaces_that_of_the_data_sheet(tmp_path: Path) -> None:
    link = Link.plain(alpha_s=1e-3, beta_s=1e-7)
    fit = Fit(num_ranks=2, num_local=1, link=link, native_sizes=(1,), native_s=(1.0,))
    measured = Collectives(
        backend="gloo", hosts=("a", "b"), fit=fit, times=(), choice=(), machine="two"
    )
    write_json(tmp_path / COLLECTIVES_FILE, to_json(measured))
    fast, slow = (
        stepladder.plan(EXAMPLE, hosts=(2,), link=one, dir=None).points[0].step_s
        for one in (None, tmp_path)
    )
    assert slow.likely > fast.likely
    assert fast.worst > fast.best


def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="there is no profile in this folder"):
        stepladder.plan(tmp_path, dir=None)
    with pytest.raises(UsageError, match="no all-reduce named 'rings'"):
        stepladder.plan(EXAMPLE, all_reduce=("rings",), dir=None)
    with pytest.raises(UsageError, match="a budget needs prices"):
        stepladder.plan(EXAMPLE, budget=5, dir=None)
    with pytest.raises(UsageError, match="0 is not a number above 0"):
        stepladder.plan(EXAMPLE, batches=(0,), dir=None)
    with pytest.raises(UsageError, match="'fp12' is not a precision"):
        stepladder.plan(EXAMPLE, precisions=("fp12",), dir=None)
    with pytest.raises(UsageError, match="'zero' is not a kind of parallelism"):
        stepladder.plan(EXAMPLE, parallelism=("zero",), dir=None)
    with pytest.raises(UsageError, match=r"0\.5 times as long is not slower"):
        stepladder.plan(EXAMPLE, slow_device=0.5, dir=None)
    with pytest.raises(UsageError, match="may mean bits or bytes"):
        stepladder.plan(EXAMPLE, slow_network="1GB", dir=None)
    with pytest.raises(UsageError, match="100Gbit is not slower than the network of the other"):
        stepladder.plan(EXAMPLE, slow_network="100Gbit", dir=None)
    with pytest.raises(UsageError, match="which no driver feeds"):
        stepladder.plan(EXAMPLE, all_reduce=("asynchronous",), driver_ms=1, dir=None)
    with pytest.raises(UsageError, match="no all-reduce named 'async'") as wrong:
        stepladder.plan(EXAMPLE, all_reduce=("async",), dir=None)
    assert "Did you mean asynchronous?" in str(wrong.value)
    for option in ("noise_scale", "driver_ms", "epochs", "budget"):
        for value in (float("nan"), float("inf"), -3):
            with pytest.raises(UsageError, match="is not a number above 0"):
                stepladder.plan(EXAMPLE, dir=None, **{option: value})
    with pytest.raises(UsageError, match="for a watched script"):
        stepladder.plan(EXAMPLE, epochs=3, dir=None)
    with pytest.raises(DataError, match="there is no such file"):
        stepladder.plan(tmp_path / "job.yaml", dir=None)
    assert main(["plan", str(EXAMPLE), "--from", "runs/demo"]) == 2
    assert "two jobs were named" in capsys.readouterr().err
    assert main(["plan", str(EXAMPLE), "--points", "points.csv"]) == 2
    assert "published points are for validate" in capsys.readouterr().err
    assert main(["plan"]) == 2
    assert "nothing to plan was named" in capsys.readouterr().err
    assert main(["plan", str(EXAMPLE), "--network", "25GB", "--run.dir", str(tmp_path)]) == 2
    assert "may mean bits or bytes" in capsys.readouterr().err


def test_other_published_points_are_validated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (ROOT / "src/stepladder/planning/published/points.csv").read_text("utf-8").splitlines()
    kept = [row for row in rows if row.startswith(("id,", "DL-R-PyT", "TT-"))]
    path = tmp_path / "points.csv"
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert main(["plan", "validate", "--points", str(path)]) == 0
    out = capsys.readouterr().out
    assert "6 published points: 2 are the smallest of their case, 1 are fitted, 3 predicted" in out
    path.write_text("\n".join([rows[0], *(r for r in rows if r.startswith("DB1"))]), "utf-8")
    assert main(["plan", "validate", "--points", str(path)]) == 3
    assert "does not say how long a step takes" in capsys.readouterr().err

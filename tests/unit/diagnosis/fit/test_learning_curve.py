"""Predicted effect of more data: from errors of a known law, and from real trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import stepladder
from stepladder.diagnosis.fit.learning_curve import curve_through
from stepladder.training.output.results import Judged

NUM_VAL = 4000
SIZES = [100, 100, 200, 200, 400, 400]


def judged(shares: list[float], *, num_val: int = NUM_VAL, seed: int = 0) -> list[Judged]:
    """Return validation results with these error rates; the hard examples are the same for all."""
    ranks = np.random.default_rng(seed).permutation(num_val)
    hits = [(ranks >= share * num_val).astype(np.float64) for share in shares]
    return [Judged(losses=1 - hit, hits=hit) for hit in hits]


def test_a_power_law_gives_its_double() -> None:
    shares = [2 * size**-0.5 + 0.05 for size in SIZES]
    found = curve_through(SIZES, judged(shares), num_seeds=2, took_s=1.0)
    wanted = 2 * 800**-0.5 + 0.05
    assert abs(found.error_at_double - wanted) < 0.01
    assert found.low_at_double <= wanted <= found.high_at_double
    assert 0 < found.low_gain <= found.gain <= found.high_gain
    assert found.is_share


def test_errors_that_do_not_fall_promise_nothing() -> None:
    found = curve_through(SIZES, judged([0.2] * 6), num_seeds=2, took_s=1.0)
    assert found.gain == 0
    assert found.low_gain == 0


def test_few_validation_examples_widen_the_interval() -> None:
    shares = [2 * size**-0.5 + 0.05 for size in SIZES]
    many = curve_through(SIZES, judged(shares), num_seeds=2, took_s=1.0)
    few = curve_through(SIZES, judged(shares, num_val=80), num_seeds=2, took_s=1.0)
    assert few.high_at_double - few.low_at_double > 3 * (many.high_at_double - many.low_at_double)


def test_seeds_that_differ_widen_the_interval() -> None:
    shares = [2 * size**-0.5 + 0.05 for size in SIZES]
    jumping = [share + (0.03 if idx % 2 else -0.03) for idx, share in enumerate(shares)]
    alike = curve_through(SIZES, judged(shares), num_seeds=2, took_s=1.0)
    other = curve_through(SIZES, judged(jumping), num_seeds=2, took_s=1.0)
    assert other.high_at_double - other.low_at_double > alike.high_at_double - alike.low_at_double


def test_real_trainings_on_parts_of_the_data(
    underfit_run: Path, task_file: Path, mirror: Path
) -> None:
    said: list[str] = []
    config = (mirror / "config.yaml").read_bytes()
    before = {path.name for path in underfit_run.iterdir()}
    found = stepladder.diagnose(
        underfit_run, task=f"{task_file}:Straight", learning_curve=True, on_message=said.append
    )
    curve = found.learning_curve
    assert curve is not None, found.could_not
    assert curve.sizes == (40, 40, 80, 80, 160, 160)
    assert all(0 < error < 1 for error in curve.errors)
    assert any("6 times" in sentence for sentence in said)
    after = {path.name for path in underfit_run.iterdir()}
    assert after - before <= {"diagnosis.json", "diagnosis.html"}
    assert "Learning curve" in (underfit_run / "diagnosis.html").read_text()
    assert (mirror / "config.yaml").read_bytes() == config, "only the run has a mirror"

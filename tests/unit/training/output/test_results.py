"""Results of a task without classes, and of validations that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stepladder.config.recipe import ScheduleConfig
from stepladder.data.batch import Batch
from stepladder.records import read_json, read_jsonl
from stepladder.reporting.pages.report_page import write_report
from stepladder.task import Metrics
from stepladder.training.evaluate import Evaluation
from stepladder.training.output.results import read_predictions, write_predictions


class Source:
    def describe(self, row: int) -> str:
        return f"row {row}"


def evaluation(rows: list[int], losses: list[float], **classes: Any) -> Evaluation:
    none = {"predicted": None, "probability": None, "targets": None}
    return Evaluation(
        rows=np.array(rows), losses=np.array(losses, np.float32), values={}, **(none | classes)
    )


def test_losses_are_read_back_to_the_bit_in_the_order_of_the_split(tmp_path: Path) -> None:
    losses = np.random.default_rng(0).lognormal(-12, 4, 50).astype(np.float32)
    rows = np.random.default_rng(1).permutation(50)
    result = evaluation(rows.tolist(), losses[rows].tolist())
    write_predictions(tmp_path, {"val": (result, Source()), "test": (result, Source())}, ())
    found = read_predictions(tmp_path, "test")
    assert found is not None
    assert np.array_equal(found.losses.astype(np.float32), losses)
    assert found.hits is None
    assert read_predictions(tmp_path, "train") is None


def test_hits_are_read_back_where_there_are_classes(tmp_path: Path) -> None:
    result = evaluation(
        [1, 0], [0.5, math.nan], targets=np.array([0, 1]), predicted=np.array([0, 0]),
        probability=np.array([0.9, 0.8], np.float32),
    )  # fmt: skip
    write_predictions(tmp_path, {"test": (result, Source())}, ("=a", ""))
    found = read_predictions(tmp_path, "test")
    assert found is not None
    assert found.hits is not None
    assert found.hits.tolist() == [0.0, 1.0]
    assert math.isnan(found.losses[0])


def nan_from(first: int, last: int, points: Any) -> Any:
    """Return a task whose validations in a range have a loss of NaN."""

    class SomeNan(points):  # type: ignore[misc]
        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            found: Metrics = super().metrics(model, batch)
            self.calls = getattr(self, "calls", 0) + 1
            if not first <= self.calls <= last:
                return found
            losses: Tensor = torch.full_like(found.losses, math.nan)
            return Metrics(
                losses=losses, sums=found.sums, counts=found.counts, outputs=found.outputs
            )

    return SomeNan()


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (2, "was NaN or infinite in 2 of 4 validations; these count as worse than all others"),
        (99, "was NaN or infinite in 4 of 4 validations, so it is unknown which weights are best"),
    ],
)
def test_validations_that_are_not_finite_are_warned_of_everywhere(
    last: int, words: str, tmp_path: Path, job: Any, points: Any, run: Any
) -> None:
    folder = tmp_path / "run"
    four = job(folder, schedule=ScheduleConfig(max_epochs=4))
    run(four, nan_from(1, last, points))
    summary = read_json(folder / "summary.json")
    (told,) = [text for text in summary["warnings"] if "validations" in text]
    assert words in told
    events = [e["message"] for e in read_jsonl(folder / "events.jsonl") if e["event"] == "warning"]
    assert told in events
    page = write_report(folder).read_text()
    assert told in page
    assert (summary["best_epoch"] is None) == (last == 99)
    assert ("best epoch" in page) == (last != 99)


def test_finite_validations_are_not_warned_of(
    tmp_path: Path, job: Any, points: Any, run: Any
) -> None:
    summary = run(job(tmp_path / "run"), points())
    assert not [text for text in summary["warnings"] if "validations" in text]

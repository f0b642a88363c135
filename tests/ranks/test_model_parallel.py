"""Models whose layers several ranks compute together, or one after the other."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tests.ranks.test_faults import fault, has_no_process
from tests.ranks.test_sharded import COMMON, assert_alike, trained, weights
from tests.ranks.together import Start

TENSOR, PIPELINE = "--device.tensor-parallel", "--device.pipeline-stages"
SGD = ("--optimizer.name", "sgd", "--epochs", "4")
ADAMW = ("--optimizer.name", "adamw", "--optimizer.weight-decay", "0.01", "--epochs", "4")


@pytest.mark.parametrize(
    "kind",
    [pytest.param(TENSOR, marks=pytest.mark.distributed), PIPELINE],
    ids=["tensor", "pipeline"],
)
def test_two_ranks_train_and_save_as_one_process(start: Start, tmp_path: Path, kind: str) -> None:
    """Batches of 8 and 5 examples, and a held-out split of which a batch has none for a rank."""
    trained(start, "one", *SGD, task="Blocks")
    printed = trained(start, "two", *SGD, kind, "2", "--devices", "2", task="Blocks")
    assert "best epoch" in printed
    assert_alike(tmp_path / "two", tmp_path / "one")
    assert_same_predictions(tmp_path / "two", tmp_path / "one")
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((PIPELINE, "4"), "--devices 4 divides it"),
        (("--device.sharded",), "--devices 2 divides it"),
    ],
    ids=["pipeline", "sharded"],
)
def test_on_one_device_it_says_that_nothing_is_divided(
    start: Start, words: tuple[str, ...], said: str
) -> None:
    printed = trained(start, "run", "--epochs", "1", *words, task="Blocks")
    assert said in printed


def assert_same_predictions(one: Path, other: Path) -> None:
    """Check what the best weights predict at the end."""
    rows, others = (read_predictions(run) for run in (one, other))
    assert rows.keys() == others.keys()
    for key, (predicted, probability) in rows.items():
        assert predicted == others[key][0]
        assert probability == pytest.approx(others[key][1], rel=1e-3)


def read_predictions(run: Path) -> dict[tuple[str, str], tuple[str, float]]:
    """Return class and probability by split and id."""
    with (run / "predictions.csv").open() as file:
        return {
            (row["split"], row["id"]): (row["predicted"], float(row["probability"]))
            for row in csv.DictReader(file)
        }


@pytest.mark.distributed
def test_running_statistics_are_those_of_the_parts_and_of_nothing_else(
    start: Start, tmp_path: Path
) -> None:
    """Batches of 8 in two parts of 4: as one process that takes them one after the other."""
    words = (*SGD, "--batch.micro-batch-size")
    trained(start, "one", *words, "4", task="BlocksWithNorm")
    more = (PIPELINE, "2", "--devices", "2", "--device.micro-batches", "2")
    trained(start, "two", *words, "8", *more, task="BlocksWithNorm")
    own, others = weights(tmp_path / "two"), weights(tmp_path / "one")
    names = [name for name in own if "running" in name]
    assert len(names) == 6
    for name in names:
        np.testing.assert_allclose(own[name], others[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("BlocksWithoutBias", (TENSOR, "2", "--devices", "2", *ADAMW)),
        ("BlocksWithoutBias", (TENSOR, "2", "--devices", "4", *ADAMW)),
        ("BlocksWithoutBias", (PIPELINE, "3", "--devices", "3", *ADAMW)),
        ("BlocksWithoutBias", (PIPELINE, "2", "--devices", "4", *ADAMW)),
        (
            "Blocks",
            (PIPELINE, "2", "--devices", "2", "--device.pipeline-schedule", "gpipe", *SGD),
        ),
        ("Skips", (TENSOR, "2", "--devices", "2", *SGD)),
    ],
    ids=["tensor", "tensor x rows", "three stages", "pipeline x rows", "gpipe", "mlp"],
)
def test_ranks_give_what_one_gives(
    start: Start, tmp_path: Path, task: str, words: tuple[str, ...]
) -> None:
    end = words.index("--devices") + 2
    trained(start, "one", *[w for w in words[end:] if w not in _OWN], task=task)
    trained(start, "several", *words, task=task)
    assert_alike(tmp_path / "several", tmp_path / "one")


_OWN = ("--device.pipeline-schedule", "gpipe")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
def test_clipped_gradients_of_parts_of_a_batch(start: Start, tmp_path: Path, kind: str) -> None:
    words = (*SGD, "--optimizer.clip-norm", "0.1", "--batch.micro-batch-size", "1")
    trained(start, "one", *words, task="Blocks")
    trained(start, "two", *words, kind, "2", "--devices", "2", task="Blocks")
    assert_alike(tmp_path / "two", tmp_path / "one")


@pytest.mark.distributed
@pytest.mark.timeout(900)  # seven trainings, of which some have four processes
def test_a_run_resumes_with_another_division(start: Start, tmp_path: Path) -> None:
    words = ("--optimizer.name", "adamw", "--batch.lr", "0.002")  # larger steps enlarge rounding
    trained(start, "one", *words, "--epochs", "6", task="BlocksWithoutBias")
    for more in (
        (TENSOR, "2", "--devices", "2", "--epochs", "2"),
        (PIPELINE, "2", "--devices", "4", "--epochs", "3"),
        ("--epochs", "4"),
        (TENSOR, "2", "--devices", "4", "--epochs", "5"),
        ("--device.sharded", "--devices", "3", "--epochs", "6"),
    ):
        trained(start, "changing", *words, *more, task="BlocksWithoutBias")
    assert_alike(tmp_path / "changing", tmp_path / "one")


@pytest.mark.distributed
@pytest.mark.parametrize("kind", [TENSOR, PIPELINE], ids=["tensor", "pipeline"])
@pytest.mark.parametrize("point", ["validation", "before_rename"])
def test_a_rank_that_is_killed_changes_nothing(
    start: Start, tmp_path: Path, kind: str, point: str
) -> None:
    words = (kind, "2", "--devices", "2", "--epochs", "5", "--run.checkpoint-every-s", "0")
    words += ("--optimizer.name", "sgd")
    trained(start, "quiet", *words, task="Blocks")
    command = start("Blocks", *COMMON, *words, env=fault(point, 1, tmp_path))
    printed = command.ended()
    assert command.process.returncode == 0, printed
    assert (tmp_path / "happened").exists()
    assert_alike(tmp_path / "run", tmp_path / "quiet")
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    "words",
    [
        ("--device.sharded", "--devices", "2"),
        (TENSOR, "2", "--devices", "2"),
        (PIPELINE, "2", "--devices", "2"),
    ],
    ids=["sharded", "tensor", "pipeline"],
)
def test_weights_that_are_not_trained_are_saved(
    start: Start, tmp_path: Path, words: tuple[str, ...]
) -> None:
    trained(start, "one", *SGD, task="SomeFrozen")
    trained(start, "two", *SGD, *words, task="SomeFrozen")
    assert_alike(tmp_path / "two", tmp_path / "one")


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("task", "words", "said"),
    [
        ("Blocks", (TENSOR, "2", PIPELINE, "2"), "Leave out device.tensor_parallel"),
        ("Blocks", (TENSOR, "2", "--devices", "3"), "Type --devices 4"),
        ("Plain", (TENSOR, "2", "--devices", "2"), "Use --device.sharded or"),
        ("WithDropout", (TENSOR, "2", "--devices", "2"), "Set the rate of this dropout to 0"),
        ("Skips", (PIPELINE, "3", "--devices", "3"), "Use --device.sharded"),
        ("CalledTwice", (PIPELINE, "2", "--devices", "2"), "Call the model once"),
        ("RandomInLoss", (PIPELINE, "2", "--devices", "2"), "Draw them in augment()"),
    ],
    ids=["both", "no divisor", "nothing to divide", "dropout", "no cut", "twice", "random"],
)
def test_what_does_not_go_together_is_refused(
    start: Start, task: str, words: tuple[str, ...], said: str
) -> None:
    command = start(task, *COMMON, *words)
    printed = command.ended()
    assert command.process.returncode == 2, printed
    assert said in printed

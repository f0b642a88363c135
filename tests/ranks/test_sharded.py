"""A model that is divided among ranks is trained as by one process, and saved whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.ranks.test_faults import fault, has_no_process
from tests.ranks.together import Start, checkpoints

COMMON = ("--batch-size", "8", "--stopping.no-early", "--run.log-every", "1", "--no-auto")
COMMON += ("--batch.lr", "0.02", "--device.threads", "1")
SHARDED = ("--device.sharded", "--devices")


def losses(run: Path) -> list[float]:
    """Return the losses of all steps."""
    rows = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [row["train_loss"] for row in rows if row["event"] == "train"]


def weights(run: Path) -> dict[str, np.ndarray]:
    """Return the weights and the optimizer's state of the last checkpoint."""
    last = max(checkpoints(run))
    found = {}
    for name in ("model", "optimizer"):
        file = load_file(last / f"{name}.safetensors")
        found |= {f"{name}/{key}": array for key, array in file.items()}
    return found


def trained(start: Start, run: str, *words: str, task: str = "Plain") -> str:
    command = start(task, *COMMON, *words, run=run)
    printed = command.ended()
    assert command.process.returncode == 0, printed
    return printed


def assert_alike(one: Path, other: Path) -> None:
    """Check losses of at least 20 steps, weights and the optimizer's state."""
    found, expected = losses(one), losses(other)
    assert len(found) == len(expected) >= 20
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    own, others = weights(one), weights(other)
    assert own.keys() == others.keys()
    for name, array in own.items():
        assert array.shape == others[name].shape
        np.testing.assert_allclose(array, others[name], rtol=1e-3, atol=1e-5, err_msg=name)


def test_two_ranks_train_and_save_as_one_process(start: Start, tmp_path: Path) -> None:
    """Batches of 8 and 5 examples, and a held-out split of which a batch has none for a rank."""
    trained(start, "one", "--epochs", "4")
    printed = trained(start, "two", *SHARDED, "2", "--epochs", "4")
    assert "best epoch" in printed
    assert_alike(tmp_path / "two", tmp_path / "one")
    assert (tmp_path / "two" / "predictions.csv").read_text().splitlines()[0].startswith("split")
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("Plain", ("--optimizer.name", "sgd")),
        ("Plain", ("--optimizer.name", "adamw", "--optimizer.weight-decay", "0.01")),
        ("Plain", ("--optimizer.name", "lars", "--batch.lr", "2")),
        ("Plain", ("--optimizer.name", "lamb", "--optimizer.weight-decay", "0.01")),
        ("Plain", ("--optimizer.clip-norm", "0.1", "--batch.micro-batch-size", "1")),
        ("WithIdle", ()),
        ("OneHeldOut", ()),
    ],
    ids=["sgd", "adamw", "lars", "lamb", "clipped parts", "unused weights", "one held-out example"],
)
def test_three_ranks_give_what_one_gives(
    start: Start, tmp_path: Path, task: str, words: tuple[str, ...]
) -> None:
    trained(start, "one", "--epochs", "4", *words, task=task)
    trained(start, "three", *SHARDED, "3", "--epochs", "4", *words, task=task)
    assert_alike(tmp_path / "three", tmp_path / "one")


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["muon", "soap", "kfac"])
def test_an_optimizer_of_whole_matrices_refuses_parts_of_them(start: Start, name: str) -> None:
    command = start("Plain", *COMMON, *SHARDED, "2", "--optimizer.name", name)
    printed = command.ended()
    assert command.process.returncode != 0
    assert "needs whole matrices, but the model is divided among devices" in printed
    assert "--optimizer.name adamw" in printed


@pytest.mark.distributed
def test_a_run_resumes_on_other_numbers_of_ranks_and_whole(start: Start, tmp_path: Path) -> None:
    trained(start, "one", "--epochs", "5")
    for words in (
        (*SHARDED, "2", "--epochs", "2"),
        ("--epochs", "3"),
        (*SHARDED, "4", "--epochs", "4"),
        ("--devices", "2", "--epochs", "5"),
    ):
        trained(start, "changing", *words)
    assert_alike(tmp_path / "changing", tmp_path / "one")


@pytest.mark.distributed
@pytest.mark.parametrize("point", ["collective", "validation", "before_rename"])
def test_a_rank_that_is_killed_changes_nothing(start: Start, tmp_path: Path, point: str) -> None:
    trained(start, "quiet", *SHARDED, "2", "--epochs", "5", "--run.checkpoint-every-s", "0")
    words = (*SHARDED, "2", "--epochs", "5", "--run.checkpoint-every-s", "0")
    command = start("Plain", *COMMON, *words, env=fault(point, 1, tmp_path))
    printed = command.ended()
    assert command.process.returncode == 0, printed
    assert (tmp_path / "happened").exists()
    assert_alike(tmp_path / "run", tmp_path / "quiet")
    assert has_no_process(tmp_path)


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--train", "head"), "Type --train all"),
        (("--all-reduce", "ring"), "Leave out device.all_reduce"),
        (("--device.compile",), "Leave out device.compile"),
        (("--device.precision", "fp16"), "--device.precision bf16"),
    ],
    ids=["head", "ring", "compile", "fp16"],
)
def test_what_does_not_go_together_is_refused(
    start: Start, words: tuple[str, ...], said: str
) -> None:
    command = start("Plain", *COMMON, *SHARDED, "2", *words)
    printed = command.ended()
    assert command.process.returncode == 2, printed
    assert said in printed

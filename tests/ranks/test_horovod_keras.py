"""Horovod's interface for Keras: two ranks train as one process does."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks.test_horovod import start
from tests.ranks.together import ROOT, environment

Results = list[dict[str, Any]]

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module", autouse=True)
def torch_backend() -> Any:
    kept = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = "torch"
    yield
    os.environ.pop("KERAS_BACKEND") if kept is None else os.environ.update(KERAS_BACKEND=kept)


def run(num: int, folder: Path) -> Results:
    start("tests.ranks.horovod_keras_rank", num, folder / "log", str(folder))
    return [pickle.loads((folder / f"{num}-{rank}").read_bytes()) for rank in range(num)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(1, tmp_path_factory.mktemp("one"))


@pytest.mark.distributed
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_eight_steps_are_those_of_one_process(two: Results, one: Results, name: str) -> None:
    for result in two:
        for found, expected in zip(result[name]["weights"], one[0][name]["weights"], strict=True):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.distributed
def test_metrics_are_averaged(two: Results, one: Results) -> None:
    assert two[0]["SGD"]["history"] == two[1]["SGD"]["history"]
    for metric in ("loss", "mae"):
        expected = one[0]["SGD"]["history"][metric]
        assert two[0]["SGD"]["history"][metric] == pytest.approx(expected, abs=1e-5)


def test_warmup_goes_from_lr_to_lr_times_size_and_a_schedule_continues(two: Results) -> None:
    """Four batches an epoch: the i-th of the eight of the warmup has 0.01 + i / 8 × 0.01."""
    for result in two:
        rates = result["warmup"]["rates"]
        assert rates[:8] == pytest.approx([0.01 + 0.01 * i / 8 for i in range(1, 9)])
        assert rates[8:] == pytest.approx([0.02] * 4 + [0.02 * 0.1**3] * 4)
        assert result["warmup"]["lr"] == pytest.approx([0.015, 0.02, 0.02, 0.02 * 0.1**3])
        assert result["warmup"]["momentum"] == 0.9


def test_a_saved_model_has_keras_own_optimizer(two: Results) -> None:
    for name in ("SGD", "Adam"):
        found = two[0][name]
        assert (found["saved"], found["is_plain"], found["iterations"]) == (name, True, 8)
        assert found["is_distributed"]


def test_a_missing_gradient_counts_as_zero_unless_no_rank_has_it(two: Results) -> None:
    assert [result["unused"] for result in two] == [[[2.0], [2.0], None]] * 2


def test_values_keep_their_kind(two: Results) -> None:
    assert [result["values"] for result in two] == [([1.5], 3, [0, 1])] * 2


EITHER = """
import keras, torch
import stepladder.compat.horovod.{module} as hvd
hvd.init()
net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.5)
wrapped = hvd.DistributedOptimizer(sgd, named_parameters=net.named_parameters())
assert isinstance(wrapped, torch.optim.SGD) and wrapped.param_groups[0]["lr"] == 0.5
assert hasattr(wrapped, "synchronize")
adam = keras.optimizers.Adam(0.25)
assert hvd.DistributedOptimizer(adam, compression=hvd.Compression.fp16) is adam
assert adam.hvd_compression is hvd.Compression.fp16 and float(adam.learning_rate) == 0.25
"""


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["torch", "keras"])
def test_either_module_takes_the_optimizers_of_both(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EITHER.format(module=module)],
        cwd=ROOT,
        env=environment(KERAS_BACKEND="torch"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


WITHOUT_KERAS = """
import sys
sys.modules["keras"] = None
import torch
import stepladder.compat.horovod.torch as hvd
from stepladder.errors import UsageError
hvd.init()
net = torch.nn.Linear(2, 1)
wrapped = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.5))
assert isinstance(wrapped, torch.optim.SGD)
try:
    hvd.DistributedOptimizer("adam")
except UsageError as error:
    print(error)
"""


def test_the_torch_module_needs_no_keras() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KERAS],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "str is not an optimizer" in done.stdout


REFUSED = """
import sys, traceback
for module in ({"keras": None}, {}):
    sys.modules.update(module)
    try:
        import stepladder.compat.horovod.keras
    except Exception:
        traceback.print_exc()
    sys.modules.pop("keras", None)
    print("then", file=sys.stderr)
"""


def test_a_missing_keras_and_another_backend_are_refused_in_words() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        cwd=ROOT,
        env=environment(KERAS_BACKEND="jax"),
        capture_output=True,
        text=True,
        check=False,
    )
    missing, other, _ = done.stderr.split("then\n")
    assert "pip install 'stepladder[keras]'" in missing
    assert "needs Keras's torch backend, but the backend is jax" in other
    assert "Set KERAS_BACKEND=torch before Keras is imported." in other


@pytest.mark.distributed
def test_the_published_listing_learns_the_digits_on_two_processes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/horovod_keras.py", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout.split("accuracy ")[-1].split()[0]) > 0.9, done.stdout[-3000:]
    assert (tmp_path / "checkpoint-4.keras").exists()

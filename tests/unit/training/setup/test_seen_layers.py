"""Training with an optimizer that sees the layers: K-FAC."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import stepladder
from stepladder import Batch, Recipe, Task
from stepladder.config.choices import Split
from stepladder.errors import UsageError
from stepladder.training.setup.announcement import _of_layers


class Small(Task):
    """Three classes of points, in a layer and a head."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def data(self, split: Split) -> TensorDataset:
        generator = torch.Generator().manual_seed(list(Split).index(split))
        x = torch.randn(48, 4, generator=generator)
        return TensorDataset(x, x[:, :3].argmax(dim=1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


OPTIONS: dict[str, Any] = {
    "optimizer.name": "kfac",
    "optimizer.inverse_every": 2,
    "batch.global_batch_size": 16,
    "batch.lr": 0.02,
    "schedule.max_epochs": 4,
    "stopping.early": False,
    "run.checks": "off",
    "train": "all",
}


def test_a_run_keeps_the_factors_of_its_layers_and_resumes(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = stepladder.train(task=Small(), dir=tmp_path / "whole", **OPTIONS)
    stepladder.train(task=Small(), dir=tmp_path / "two", **(OPTIONS | {"schedule.max_epochs": 2}))
    parts = stepladder.train(task=Small(), dir=tmp_path / "two", **OPTIONS)
    assert whole is not None
    assert parts is not None
    found = []
    for name in ("whole", "two"):
        last = max((tmp_path / name / "checkpoints").iterdir())
        found.append(load_file(last / "optimizer.safetensors"))
    assert {"0.weight/factor_in", "2.weight/inverse_out"} <= found[0].keys()
    assert found[0]["0.weight/factor_in"].shape == (5, 5)
    for key, value in found[0].items():
        assert torch.equal(value, found[1][key])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device.compile": True}, "compiled code does not call hooks"),
        ({"device.precision": "fp16"}, "fp16 scales the gradients"),
        ({"asynchronous.method": "parameter_server"}, "workers send gradients only"),
    ],
    ids=["compile", "fp16", "asynchronous"],
)
def test_what_hides_the_layers_is_refused(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        stepladder.train(task=Small(), dir=tmp_path, **(OPTIONS | options))
    assert "or another --optimizer.name" in str(caught.value)


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.BatchNorm2d(4), nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (grouped, ["K-FAC takes plain steps of SGD for 1 of the matrices: 0.weight"]),
        (lambda: nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), []),
        (lambda: nn.Embedding(3, 2), ["no layer that learns is one that K-FAC can take"]),
    ],
    ids=["groups", "norms", "none"],
)
def test_matrices_that_it_cannot_take_are_named(
    make: Callable[[], nn.Module], said: list[str]
) -> None:
    found = _of_layers("K-FAC", make())
    assert [one.partition(": it is")[0] for one in found] == said

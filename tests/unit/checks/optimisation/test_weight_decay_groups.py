"""Weight decay groups are inspected after a forward pass if layers are lazy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.optimisation.weight_decay_groups import CHECK
from stepladder.checks.run import run_check
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task

DECAY = sound_recipe(optimizer=OptimizerConfig(name=OptimizerName.ADAMW, weight_decay=0.01))


class Lazy(SoundPictures):
    """Layers that take their sizes from the first batch."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4))


class LazyScale(Lazy):
    """A decayed multi-dimensional scale next to lazy layers."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        model.register_parameter("scale", nn.Parameter(torch.ones(1, 8, 1, 1)))
        return model


class LazyPenalised(Lazy):
    """A penalty on all weights, including biases."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return losses + 1e-3 * sum(weight.square().sum() for weight in model.parameters())


class NeverReached(Lazy):
    """A lazy layer that no forward pass reaches."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        model.register_module("unused", nn.LazyLinear(2))
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, nn.Sequential)
        outputs = model[:4](batch.inputs)
        return F.cross_entropy(outputs, batch.targets, reduction="none")


def finding(task: Task, folder: Path) -> Finding:
    job = open_job(Example(task=task, recipe=DECAY).config(folder), task, task_name="example")
    return run_check(CHECK, job)


def test_lazy_layers_get_their_shapes_first(tmp_path: Path) -> None:
    found = finding(Lazy(), tmp_path)
    assert found.outcome is Outcome.PASSED, found


@pytest.mark.parametrize(("task", "said"), [(LazyScale(), "scale"), (LazyPenalised(), "2 biases")])
def test_faults_next_to_lazy_layers_are_found(task: Task, said: str, tmp_path: Path) -> None:
    found = finding(task, tmp_path)
    assert found.outcome is Outcome.WARNED, found
    assert found.fault == "decay_on_norms_and_biases"
    assert said in found.evidence


def test_weights_that_never_get_a_shape_are_reported(tmp_path: Path) -> None:
    found = finding(NeverReached(), tmp_path)
    assert found.outcome is Outcome.NOT_APPLICABLE, found
    assert "no shape" in found.evidence


class OneRow(SoundPictures):
    """Matrices with one row, in a layer and by hand, and a prepended token."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        class Attends(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.token = nn.Parameter(torch.zeros(1, 1, 12))
                self.gate = nn.Linear(12, 1)
                self.score = nn.Parameter(0.1 * torch.randn(1, 12))
                self.head = nn.Linear(12, 4)

            def forward(self, pictures: Tensor) -> Tensor:
                rows = pictures.mean(dim=1)  # (n, 12, 12)
                rows = torch.cat([self.token.expand(len(rows), -1, -1), rows], dim=1)
                weights = (self.gate(rows) + rows @ self.score.T).softmax(dim=1)
                scores: Tensor = self.head((weights * rows).sum(dim=1))
                return scores

        return Attends()


class ScaleInUse(SoundPictures):
    """A scale per channel, shaped to broadcast over pictures."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        class Scales(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner
                self.gain = nn.Parameter(torch.ones(1, 3, 1, 1))

            def forward(self, pictures: Tensor) -> Tensor:
                scores: Tensor = self.inner(pictures * self.gain)
                return scores

        return Scales(super().build_model(recipe))


def test_matrices_of_one_row_and_tokens_are_no_scales(tmp_path: Path) -> None:
    found = finding(OneRow(), tmp_path)
    assert found.outcome is Outcome.PASSED, found


def test_a_scale_of_several_dimensions_is_reported_where_it_is_used(tmp_path: Path) -> None:
    found = finding(ScaleInUse(), tmp_path)
    assert found.outcome is Outcome.WARNED, found
    assert "gain" in found.evidence

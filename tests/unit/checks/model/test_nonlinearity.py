"""A model that is linear as a whole is reported, however its layers are combined."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import open_job
from stepladder.checks.model.nonlinearity import CHECK
from stepladder.checks.run import run_check
from stepladder.config.recipe import Recipe
from stepladder.records.findings import Finding, Outcome


class Skips(nn.Module):
    """A hidden layer whose outputs are concatenated with the inputs for the head."""

    def __init__(self, between: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Linear(432, width)
        self.between = between
        self.head = nn.Linear(432 + width, 4)

    def forward(self, pictures: Tensor) -> Tensor:
        x = pictures.flatten(1)
        scores: Tensor = self.head(torch.cat([x, self.between(self.body(x))], dim=1))
        return scores


class Sides(nn.Module):
    """Two parallel layers whose outputs are added."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(216, 4), nn.Linear(216, 4)

    def forward(self, pictures: Tensor) -> Tensor:
        x = pictures.flatten(1)
        scores: Tensor = self.left(x[:, :216]) + self.right(x[:, 216:])
        return scores


def pooled(between: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), between, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(288, 4)
    )


def projected() -> nn.Module:
    """Fixed random directions."""
    directions = nn.Linear(432, 64)
    directions.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), directions, nn.Unflatten(1, (64,)), nn.Linear(64, 4))


def look(model: nn.Module, folder: Path) -> Finding:
    class Given(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return model

    task = Given()
    return run_check(CHECK, open_job(Example(task=task).config(folder), task, task_name="example"))


@pytest.mark.parametrize(
    "model", [Skips(nn.Identity()), pooled(nn.Identity())], ids=["beside", "convolution"]
)
def test_layers_that_read_each_other_through_something_linear_are_found(
    model: nn.Module, tmp_path: Path
) -> None:
    finding = look(model, tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "no_nonlinearity"), finding


@pytest.mark.parametrize(
    "model",
    [
        Skips(nn.ReLU()),
        Skips(nn.Hardtanh(-40.0, 40.0)),  # linear for inputs of usual size
        Skips(nn.Identity(), width=2),  # narrower than both ends, like a factorization
        pooled(nn.ReLU()),
        Sides(),
        projected(),
    ],
    ids=["relu", "bends far out", "narrow", "convolution", "side by side", "fixed directions"],
)
def test_a_bend_or_a_reason_to_be_linear_passes(model: nn.Module, tmp_path: Path) -> None:
    finding = look(model, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding

"""All weights of the demo's network on photographs, by several optimizers.

    python -m bench.optim.fine_tune [STORE] [--quick] [--stages curves times]

EfficientNet-Lite0 with its pretrained weights and a new head, on pictures of 64 x 64; the loss is
that of 200 photographs of the validation and test splits. Convolutions in groups take plain steps
under K-FAC. How the optimizers are tuned and compared: `race`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.optim.race import INVERSE_EVERY, Problem, Trials, arguments, grid, race
from stepladder.config.choices import TrainMode
from stepladder.config.recipe import DataConfig, Recipe
from stepladder.models.features import evaluating
from stepladder.task.image_classification import ImageClassification
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.setup.build import make_model, open_sources

SIDE: Final = 64
HELD_OUT: Final = 200
TRIALS: Final[Trials] = {
    "sgd": grid(lr=(0.003, 0.01, 0.03, 0.1), momentum=0.9),
    "adam": grid(lr=(1e-4, 3e-4, 1e-3, 3e-3)),
    "soap": grid(lr=(1e-4, 3e-4, 1e-3, 3e-3), inverse_every=INVERSE_EVERY),
    "kfac": grid(
        lr=(0.001, 0.01),
        damping=0.01,
        kl_clip=(0.001, 0.01),
        factor_every=2,
        inverse_every=INVERSE_EVERY,
    ),
}
"""Four trials each."""


def problem(store: Path) -> Problem:
    """Return the problem."""
    recipe = Recipe(train=TrainMode.ALL, data=DataConfig(store=store))
    task = ImageClassification(store, recipe)
    sources = open_sources(task)
    pretrained = make_model(recipe, task, torch.device("cpu"))
    splits = {
        name: _small(read_batch(source, np.arange(len(source))))
        for name, source in vars(sources).items()
        if source is not None
    }
    images, labels = splits.pop("train")
    held_x = torch.cat([x for x, _ in splits.values()])[:HELD_OUT]
    held_y = torch.cat([y for _, y in splits.values()])[:HELD_OUT]

    def network(seed: int) -> nn.Module:
        model = copy.deepcopy(pretrained)
        parts = task.split(model)
        assert parts is not None
        torch.manual_seed(seed)
        for layer in parts[1].modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        return model.train()

    def scored(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(x)
        return logits, F.cross_entropy(logits, y)

    def measured(model: nn.Module) -> float:
        with torch.no_grad(), evaluating(model):
            return scored(model, held_x, held_y)[1].item()

    return Problem(
        name="fine_tune",
        about=f"EfficientNet-Lite0, all weights, on {len(images)} photographs of {SIDE} x {SIDE}; "
        f"the loss is that of {len(held_y)} others",
        network=network,
        num=len(images),
        batch=32,
        every=5,
        loss=lambda model, rows: scored(model, images[rows], labels[rows]),
        measured=measured,
        kind="cross_entropy",
        trials=TRIALS,
    )


def _small(batch: object) -> tuple[Tensor, Tensor]:
    """Return pictures, smaller and as the network takes them, and their classes."""
    inputs, targets = batch.inputs, batch.targets  # type: ignore[attr-defined]
    return F.interpolate(inputs.float(), size=SIDE, mode="bilinear", antialias=True), targets


def main() -> None:
    """Race on the photographs."""
    parser = arguments(__doc__, steps=40)
    parser.add_argument("store", type=Path, nargs="?", default=Path("demo_data/store"))
    args = parser.parse_args()
    race(problem(args.store), args)


if __name__ == "__main__":
    main()

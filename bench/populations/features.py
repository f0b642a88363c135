"""The demo's photographs as features, and heads on them, for benchmarks of populations."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from stepladder.config.recipe import DataConfig, DeviceConfig, Recipe
from stepladder.data.order.order_choice import order_of
from stepladder.populations.genes import Gene, applied, genes_of
from stepladder.populations.heads import HeadMembers, HeldOut, Level
from stepladder.task.image_classification import ImageClassification, balanced_weights
from stepladder.training.features.feature_pass import read_batch
from stepladder.training.features.feature_task import open_features
from stepladder.training.setup.build import Sources, keep_memory, make_model, open_sources

GENES = (
    "batch.lr 1e-4..1e-1 log, optimizer.weight_decay 1e-6..1e-1 log, head.dropout 0..0.6, "
    "loss.label_smoothing 0..0.3"
)


@dataclass(frozen=True, kw_only=True)
class Features:
    """Features of a store's splits, and what heads are made of."""

    recipe: Recipe
    task: ImageClassification
    sources: Sources
    splits: dict[str, tuple[Tensor, Tensor]]

    def with_batch(self, batch: int) -> Features:
        """Return the same with another batch size."""
        batches = replace(self.recipe.batch, global_batch_size=batch)
        return replace(self, recipe=replace(self.recipe, batch=batches))

    @property
    def num_train(self) -> int:
        """Number of training examples."""
        return len(self.splits["train"][1])

    def members(self, num: int, *, genes: Sequence[Gene], seed: int) -> HeadMembers:
        """Return a population of heads."""
        inputs, targets = self.splits["train"]
        recipe = replace(self.recipe, seed=seed)
        counts = torch.bincount(targets, minlength=len(self.task.classes))
        return HeadMembers(
            recipe,
            lambda values: applied(recipe, genes, values),
            seeds=range(seed, seed + num),
            levels=[Level(strength=0.0, features=inputs.unsqueeze(1))],
            targets=targets,
            order=order_of(recipe.data, self.sources.train, seed=seed),
            val=HeldOut(features=self.splits["val"][0], targets=self.splits["val"][1]),
            test=HeldOut(features=self.splits["test"][0], targets=self.splits["test"][1]),
            class_weights=balanced_weights(counts),
        )


def features_of(store: Path) -> Features:
    """Compute the features of a store; this process keeps freed memory, as in training."""
    recipe = Recipe(data=DataConfig(store=store), device=DeviceConfig(keep_freed_memory=True))
    keep_memory(recipe)
    task = ImageClassification(store, recipe)
    sources = open_sources(task)
    device = torch.device("cpu")
    model = make_model(recipe, task, device)
    with tempfile.TemporaryDirectory() as folder:
        known = store.with_name(f"{store.name}.features")
        found = open_features(
            recipe,
            task,
            model,
            sources,
            folder=Path(folder),
            device=device,
            is_test_wanted=True,
            known=known if known.is_dir() else None,
        )
        splits = {}
        for name, source in vars(found).items():
            rows = read_batch(source, np.arange(len(source)))
            splits[name] = rows.inputs.float().clone(), rows.targets.clone()
    return Features(recipe=recipe, task=task, sources=sources, splits=splits)


def genes_for(recipe: Recipe) -> tuple[Gene, ...]:
    """Return the genes of the benchmarks."""
    return genes_of(GENES, recipe)


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the store as its argument."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, nargs="?", default=Path("demo_data/store"))
    return parser

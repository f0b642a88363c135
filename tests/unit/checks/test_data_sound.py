"""Sound jobs of every kind: no data check raises an alarm or fails to run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stepladder.checks.data import (
    batch_mixing,
    channels,
    dataset_random,
    distribution,
    duplicates,
    input_scale,
    input_size,
    label_alignment,
    labels,
    missing_classes,
    not_finite,
    not_finite_all,
    tokens,
    worker_draws,
)
from stepladder.checks.examples import Example, SoundPictures, draw, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.checks.validation import (
    baselines,
    stopping_rule,
    validation_repeats,
    validation_size,
)
from stepladder.config.choices import Split, TrainMode
from stepladder.config.recipe import AugmentConfig, FeaturesConfig, Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Outcome
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

CHECKS = [
    module.CHECK
    for module in (
        labels,
        missing_classes,
        validation_size,
        batch_mixing,
        stopping_rule,
        not_finite,
        tokens,
        channels,
        input_scale,
        input_size,
        validation_repeats,
        not_finite_all,
        worker_draws,
        dataset_random,
        duplicates,
        label_alignment,
        baselines,
        distribution,
    )
]


def generator(split: Split) -> torch.Generator:
    return torch.Generator().manual_seed(list(Split).index(split))


class Regression(Task):
    """Seven numbers, and one to predict."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(7, 16), nn.Tanh(), nn.Linear(16, 1))

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(200, 7, generator=generator(split))
        return TensorDataset(x, x.sum(1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).squeeze(1) - batch.targets).square()


class MissingTargets(Regression):
    """Some targets are missing, and the loss excludes them."""

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(200, 7, generator=generator(split))
        y = x.sum(1)
        y[::5] = torch.nan
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        is_known = ~batch.targets.isnan()
        error = model(batch.inputs).squeeze(1) - batch.targets.nan_to_num()
        return torch.where(is_known, error.square(), 0)


class SameGrid(Regression):
    """A noisy curve, measured at the same few points in every split."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.linspace(-1, 1, 50).repeat(4).unsqueeze(1)
        noise = 0.1 * torch.randn(200, generator=generator(split))
        return TensorDataset(x, x.squeeze(1).sin() + noise)


class Autoencoder(Task):
    """Inputs without targets."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 32))

    def data(self, split: Split) -> Any:
        return list(torch.randn(100, 32, generator=generator(split)))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs) - batch.inputs).square().mean(1)


class MultiLabel(Task):
    """Five yes/no questions per example."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(12, 5)

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(200, 12, generator=generator(split))
        return TensorDataset(x, (x[:, :5] > 0.5).float())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none").mean(1)


class Segmentation(Task):
    """A class for each pixel, 255 for none."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Conv2d(3, 3, 3, padding=1)

    def data(self, split: Split) -> Dataset[Any]:
        x = torch.randn(120, 3, 12, 12, generator=generator(split))
        y = x.argmax(1)
        y[:, 0] = 255
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs)
        losses = F.cross_entropy(scores, batch.targets, ignore_index=255, reduction="none")
        return losses.mean((1, 2))


class Sentences(Task):
    """Sentences of various lengths; next-word prediction without padding."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Embedding(30, 16, padding_idx=0), nn.Linear(16, 30))

    def data(self, split: Split) -> Dataset[Any]:
        draws = generator(split)
        ids = torch.randint(1, 30, (150, 13), generator=draws)
        lengths = torch.randint(4, 13, (150, 1), generator=draws)
        ids[torch.arange(13) >= lengths] = 0
        return TensorDataset(ids[:, :-1], ids[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).transpose(1, 2)
        losses = F.cross_entropy(scores, batch.targets, ignore_index=0, reduction="none")
        return losses.sum(1) / (batch.targets != 0).sum(1)


class MaskedSentences(Sentences):
    """As above, with a mask instead of ignore_index."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).transpose(1, 2)
        is_word = batch.targets != 0
        losses = F.cross_entropy(scores, batch.targets, reduction="none")
        return (losses * is_word).sum(1) / is_word.sum(1)


class Dicts(Task):
    """A dict of numbers and ids as input."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(9, 4), nn.Linear(8, 2)

        def forward(self, inputs: dict[str, Tensor]) -> Tensor:
            both = torch.cat([inputs["numbers"], self.table(inputs["kind"])], dim=1)
            return self.out(both)

    def build_model(self, recipe: Recipe) -> nn.Module:
        return self.Net()

    def data(self, split: Split) -> Any:
        numbers = torch.randn(150, 4, generator=generator(split))
        kinds = torch.randint(9, (150,), generator=generator(split))
        return [
            ({"numbers": row, "kind": kind}, int(row[0] > 0))
            for row, kind in zip(numbers, kinds, strict=True)
        ]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Stream(IterableDataset[Any]):
    """Pictures in an order that is random in each pass, or fixed."""

    def __init__(self, split: Split) -> None:
        self.pictures, self.labels = draw(split)
        self.is_shuffled = split is Split.TRAIN

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[Any]:
        num = len(self.labels)
        order = torch.randperm(num) if self.is_shuffled else torch.arange(num)
        return ((self.pictures[row], self.labels[row]) for row in order)


class Streamed(SoundPictures):
    """All splits are streams."""

    def data(self, split: Split) -> Dataset[Any]:
        return Stream(split)


class Flipping(Dataset[Any]):
    """Pictures flipped at random with torch's global state."""

    def __init__(self) -> None:
        self.pictures, self.labels = draw(Split.TRAIN)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Any:
        picture = self.pictures[row]
        return (picture.flip(-1) if torch.rand(()) < 0.5 else picture), self.labels[row]


class Augmented(SoundPictures):
    """Train is augmented when read, validation is not."""

    def data(self, split: Split) -> Dataset[Any]:
        return Flipping() if split is Split.TRAIN else super().data(split)


class Bytes(SoundPictures):
    """Bytes, which the model normalizes itself."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        class Own(nn.Module):
            def __init__(self, body: nn.Module) -> None:
                super().__init__()
                self.body = body

            def forward(self, x: Tensor) -> Tensor:
                return self.body((x.float() - 128) / 40)

        return Own(super().build_model(recipe))

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        return TensorDataset((40 * pictures + 128).clamp(0, 255).byte(), numbers)


class NormFirst(SoundPictures):
    """0 to 255 before a BatchNorm."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(3), super().build_model(recipe))

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        return TensorDataset(40 * pictures + 128, numbers)


class OneHot(Task):
    """One-hot codes of many classes, whose standard deviation is small by nature."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(3000, 2)

    def data(self, split: Split) -> Dataset[Any]:
        ids = torch.randint(3000, (120,), generator=generator(split))
        return TensorDataset(F.one_hot(ids, 3000).float(), ids % 2)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


class Noise(SoundPictures):
    """Labels that cannot be learned: hard data are not a fault."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures = torch.randn(200, 3, 12, 12, generator=generator(split))
        return TensorDataset(pictures, torch.randint(4, (200,), generator=generator(split)))


class MixedUp(SoundPictures):
    """MixUp: targets become class probabilities."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        draws = torch.Generator().manual_seed(seed * 1000 + epoch)
        share = torch.rand(len(batch.ids), generator=draws)
        other = torch.randperm(len(batch.ids), generator=draws)
        shares = F.one_hot(batch.targets, 4).float()
        wide = share.view(-1, 1, 1, 1)
        return Batch(
            wide * batch.inputs + (1 - wide) * batch.inputs[other],
            share[:, None] * shares + (1 - share[:, None]) * shares[other],
            batch.ids,
        )


TASKS = [
    Regression,
    MissingTargets,
    SameGrid,
    Autoencoder,
    MultiLabel,
    Segmentation,
    Sentences,
    MaskedSentences,
    Dicts,
    Streamed,
    Augmented,
    Bytes,
    NormFirst,
    OneHot,
    Noise,
    MixedUp,
]


@pytest.mark.parametrize("kind", TASKS, ids=lambda kind: kind.__name__)
def test_no_alarm_on_a_sound_task(kind: type[Task], tmp_path: Path) -> None:
    task = kind()
    job = open_job(Example(task=task).config(tmp_path), task, task_name="sound")
    for check in CHECKS:
        finding = run_check(check, job)
        assert finding.outcome in (Outcome.PASSED, Outcome.NOT_APPLICABLE), finding
        assert finding.evidence


@pytest.mark.parametrize("is_cached", [False, True])
def test_no_alarm_on_the_built_in_task(build_store: Any, is_cached: bool, tmp_path: Path) -> None:
    build_store(tmp_path / "store", num_rows={"train": 60, "val": 24, "test": 24}, size=32)
    recipe = replace(
        sound_recipe(train=TrainMode.HEAD),
        features=FeaturesConfig(cached=is_cached),
        augment=AugmentConfig(flip=not is_cached, crop=1.0 if is_cached else 0.8),
    )
    task = ImageClassification(tmp_path / "store", recipe)
    config = Example(task=task, recipe=recipe).config(tmp_path)  # type: ignore[arg-type]
    job = open_job(config, task, task_name="image_classification")
    alarms = {}
    for check in CHECKS:
        finding = run_check(check, job)
        assert finding.outcome is not Outcome.COULD_NOT_RUN, finding
        if finding.is_alarm:
            alarms[check.name] = finding.fault
    assert alarms == {"validation_size": "validation_too_small"}

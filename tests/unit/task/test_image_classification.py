from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.config.choices import ClassWeights, Encoding, Fit, Split, WeightsSource
from stepladder.config.options import PrepareConfig
from stepladder.config.recipe import (
    AugmentConfig,
    DataConfig,
    LoaderConfig,
    LossConfig,
    ModelConfig,
    Recipe,
)
from stepladder.data.batch import Batch
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.writer import ShardWriter
from stepladder.data.store.manifest import publish
from stepladder.data.store.store import Store
from stepladder.records import Manifest, ShardInfo
from stepladder.task.contract import Metrics, Task
from stepladder.task.image_classification import ImageClassification, balanced_weights

SIZE = 16
RECIPE = Recipe(model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE))


def make_store(folder: Path, counts: tuple[int, ...] = (4, 2, 2), *, has_val: bool = True) -> Path:
    work = folder / "work"
    work.mkdir(parents=True)
    splits = {"train": counts, **({"val": tuple(1 for _ in counts)} if has_val else {})}
    shards: list[ShardInfo] = []
    rng = np.random.default_rng(0)
    for split, numbers in splits.items():
        labels = [label for label, number in enumerate(numbers) for _ in range(number)]
        writer = ShardWriter(work / f"{split}-0.parquet", encoding=Encoding.PIXELS, size=SIZE)
        for idx, label in enumerate(labels):
            picture = rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8)
            sha256 = hashlib.sha256(f"{split}{idx}".encode()).digest()
            writer.add(sha256=sha256, path=f"{label}/{idx}.png", label=label, picture=picture)
        shards.append(writer.close())
    manifest = Manifest(
        encoding=Encoding.PIXELS,
        size=SIZE,
        fit=Fit.CROP,
        classes=tuple(f"class {label}" for label in range(len(counts))),
        class_counts=splits,
        channel_sum=(0, 0, 0),
        channel_sq_sum=(0, 0, 0),
        num_pixels=1,
        shards=tuple(shards),
    )
    publish(work, folder / "store", manifest)
    return folder / "store"


class Fixed(nn.Module):
    """Returns the logits that it was created with."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits


LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.5, 0.0], [0.0, 0.0, 4.0]])
TARGETS = torch.tensor([0, 1, 2, 2])
BATCH = Batch(torch.zeros(4, 3, SIZE, SIZE, dtype=torch.uint8), TARGETS, torch.arange(4))


def task_of(folder: Path, loss: LossConfig | None = None) -> ImageClassification:
    return ImageClassification(make_store(folder), replace(RECIPE, loss=loss or LossConfig()))


def test_splits_come_from_the_store(tmp_path: Path) -> None:
    task = ImageClassification(make_store(tmp_path))
    train, val = task.data(Split.TRAIN), task.data(Split.VAL)
    assert (len(train or ()), len(val or ())) == (8, 3)
    assert task.data(Split.TEST) is None


def test_the_recipe_decides_how_jpegs_are_decoded(photos: Path, tmp_path: Path) -> None:
    config = PrepareConfig(source=photos, out=tmp_path / "s", size=8, encoding=Encoding.JPEG)
    folder = prepare(config).folder

    def pixels(*, once: bool, scaled: bool, opened: Store | None = None) -> Tensor:
        recipe = replace(
            RECIPE,
            data=DataConfig(decode_once=once),
            loader=LoaderConfig(scaled_decode=scaled),
        )
        task = ImageClassification(opened or folder, recipe, copies=tmp_path / "copies")
        train = task.data(Split.TRAIN)
        assert train is not None
        assert train.fingerprint == task.store.fingerprint
        return torch.from_numpy(train.read(np.arange(len(train))).inputs)

    scaled, full = pixels(once=False, scaled=True), pixels(once=False, scaled=False)
    assert not torch.equal(scaled, full)
    assert torch.equal(pixels(once=True, scaled=True), scaled)
    assert torch.equal(pixels(once=True, scaled=False), full)
    assert torch.equal(pixels(once=False, scaled=False, opened=Store.open(folder)), full)
    assert len(list((tmp_path / "copies").iterdir())) == 2


def test_a_store_may_be_open_already(tmp_path: Path) -> None:
    store = Store.open(make_store(tmp_path))
    assert ImageClassification(store).store is store


def test_read_by_another_recipe_a_subclass_stays_what_it_is(photos: Path, tmp_path: Path) -> None:
    class Mine(ImageClassification):
        mark = 0

    config = PrepareConfig(source=photos, out=tmp_path / "s", size=8, encoding=Encoding.JPEG)
    once = replace(RECIPE, data=DataConfig(decode_once=True))
    task = Mine(prepare(config).folder, RECIPE, copies=tmp_path / "copies")
    task.mark = 7
    found = task.as_read_by(once)
    assert type(found) is Mine
    assert found.mark == 7
    task.data(Split.TRAIN)
    assert not (tmp_path / "copies").exists(), "the task itself reads as before"
    found.data(Split.TRAIN)
    assert len(list((tmp_path / "copies").iterdir())) == 1, "copies are where the task has them"
    found.as_read_by(once, copies=tmp_path / "others").data(Split.TRAIN)
    assert len(list((tmp_path / "others").iterdir())) == 1
    assert len(list((tmp_path / "copies").iterdir())) == 1


def test_facts_name_classes_size_fit_and_store(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    assert task.describe() == {
        "classes": ["class 0", "class 1", "class 2"],
        "size": SIZE,
        "fit": "crop",
        "fingerprint": task.store.fingerprint,
    }


def test_model_is_the_recipes_and_splits_into_trunk_and_head(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.build_model(RECIPE).eval()
    trunk, head = task.split(model)
    x = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(model(x), head(trunk(x)))
    assert model(x).shape == (2, 3)


def test_the_recipe_of_the_model_decides_loss_and_augmentation(tmp_path: Path) -> None:
    task = ImageClassification(make_store(tmp_path))
    assert not task.is_random_before_head
    plain, _ = task.loss(Fixed(LOGITS), BATCH)
    recipe = replace(
        RECIPE, loss=LossConfig(label_smoothing=0.2), augment=AugmentConfig(mixup_alpha=0.5)
    )
    task.build_model(recipe)
    smooth, _ = task.loss(Fixed(LOGITS), BATCH)
    assert task.is_random_before_head
    assert not torch.allclose(plain, smooth)
    assert task.augment(BATCH, seed=0, epoch=0).targets.shape == (4, 3)


def test_loss_is_the_cross_entropy_of_each_picture(tmp_path: Path) -> None:
    losses, logged = task_of(tmp_path).loss(Fixed(LOGITS), BATCH)
    wanted = [-LOGITS.log_softmax(1)[row, label].item() for row, label in enumerate(TARGETS)]
    torch.testing.assert_close(losses, torch.tensor(wanted))
    assert losses.requires_grad
    assert logged["accuracy"].tolist() == [1, 1, 0, 1]
    assert not logged["accuracy"].requires_grad


def test_label_smoothing_is_torchs(tmp_path: Path) -> None:
    losses, _ = task_of(tmp_path, LossConfig(label_smoothing=0.1)).loss(Fixed(LOGITS), BATCH)
    soft = F.one_hot(TARGETS, 3) * 0.9 + 0.1 / 3
    torch.testing.assert_close(losses, -(soft * LOGITS.log_softmax(1)).sum(1))


def test_balanced_weights_have_mean_one_over_train(tmp_path: Path) -> None:
    counts = torch.tensor([4, 2, 2])
    weights = balanced_weights(counts)
    assert math.isclose((counts * weights).sum().item() / 8, 1.0, rel_tol=1e-6)
    assert torch.allclose(counts * weights, torch.full((3,), 8 / 3))
    losses, _ = task_of(tmp_path, LossConfig(class_weights=ClassWeights.BALANCED)).loss(
        Fixed(LOGITS), BATCH
    )
    plain = F.cross_entropy(LOGITS, TARGETS, reduction="none")
    torch.testing.assert_close(losses, plain * weights[TARGETS])


def test_a_class_without_pictures_weighs_nothing() -> None:
    assert balanced_weights(torch.tensor([3, 0, 1])).tolist() == pytest.approx([2 / 3, 0, 2])


def test_mixed_targets_give_mixed_losses_and_shares_as_hits(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    hard = F.cross_entropy(LOGITS, TARGETS, reduction="none")
    other = F.cross_entropy(LOGITS, TARGETS.roll(1), reduction="none")
    soft = 0.75 * F.one_hot(TARGETS, 3) + 0.25 * F.one_hot(TARGETS.roll(1), 3)
    losses, logged = task.loss(Fixed(LOGITS), BATCH._replace(targets=soft))
    torch.testing.assert_close(losses, 0.75 * hard + 0.25 * other)
    assert logged["accuracy"].tolist() == [0.75, 0.75, 0.25, 1.0]


def total(metrics: list[Metrics], name: str) -> float:
    """Sum over batches and take the mean, as the contract says."""
    sums = sum(item.sums[name] for item in metrics)
    counts = sum(item.counts[name] for item in metrics)
    has_any = counts > 0
    return (sums[has_any] / counts[has_any]).mean().item()


def test_metrics_are_plain_whatever_the_training_loss(tmp_path: Path) -> None:
    loss = LossConfig(label_smoothing=0.3, class_weights=ClassWeights.BALANCED)
    metrics = task_of(tmp_path, loss).metrics(Fixed(LOGITS), BATCH)
    torch.testing.assert_close(metrics.losses, F.cross_entropy(LOGITS, TARGETS, reduction="none"))
    assert metrics.outputs is not None
    assert torch.equal(metrics.outputs, LOGITS)
    assert metrics.outputs.dtype == torch.float32
    assert "top5_accuracy" not in metrics.sums
    assert total([metrics], "accuracy") == 0.75
    assert total([metrics], "macro_accuracy") == pytest.approx((1 + 1 + 0.5) / 3)


def test_macro_accuracy_passes_over_classes_without_pictures(tmp_path: Path) -> None:
    part = Batch(BATCH.inputs[:2], TARGETS[:2], BATCH.ids[:2])
    metrics = task_of(tmp_path).metrics(Fixed(LOGITS[:2]), part)
    assert total([metrics], "macro_accuracy") == 1.0


def test_metrics_add_up_over_batches(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    parts = [
        task.metrics(Fixed(LOGITS[r]), Batch(BATCH.inputs[r], TARGETS[r], BATCH.ids[r]))
        for r in (slice(0, 1), slice(1, 4))
    ]
    whole = task.metrics(Fixed(LOGITS), BATCH)
    for name in ("accuracy", "macro_accuracy"):
        assert total(parts, name) == pytest.approx(total([whole], name))


def test_top5_counts_the_five_best_where_there_are_more_classes(tmp_path: Path) -> None:
    task = ImageClassification(make_store(tmp_path, (2,) * 7), RECIPE)
    logits = torch.arange(7.0).repeat(2, 1)
    batch = Batch(BATCH.inputs[:2], torch.tensor([2, 1]), torch.arange(2))
    metrics = task.metrics(Fixed(logits), batch)
    assert total([metrics], "top5_accuracy") == 0.5
    assert total([metrics], "accuracy") == 0.0


class Smallest(Task):
    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Linear(1, 1)

    def data(self, split: Split) -> None:
        return None

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        losses = model(batch.inputs).square().squeeze(1)
        return losses, {"size": losses.detach()}


def test_defaults_of_a_users_task() -> None:
    task = Smallest()
    model, batch = nn.Linear(1, 1), Batch(torch.ones(3, 1), None, torch.arange(3))
    metrics = task.metrics(model, batch)
    assert torch.equal(metrics.losses, task.loss(model, batch)[0])
    assert task.augment(batch, seed=0, epoch=0) is batch
    assert task.split(model) is None
    assert task.is_random_before_head
    assert task.describe() == {}

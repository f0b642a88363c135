"""Faults of inputs and labels beyond each check's example, and sound look-alikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.contract import Check
from stepladder.checks.data import (
    batch_mixing,
    channels,
    input_scale,
    input_size,
    labels,
    missing_classes,
    not_finite,
    tokens,
)
from stepladder.checks.examples import Example, SoundPictures, draw, labelled, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.checks.validation import stopping_rule, validation_size
from stepladder.config.choices import Monitor, OrderMode, Split
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import DataConfig, Recipe, StoppingConfig
from stepladder.data.batch import Batch
from stepladder.models.normalize import Normalize
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Metrics, Task


def look(check: Check, task: Task, folder: Path, recipe: Recipe | None = None) -> Finding:
    recipe = recipe or sound_recipe()
    config = Example(task=task, recipe=recipe).config(folder)  # type: ignore[arg-type]
    return run_check(check, open_job(config, task, task_name="example"))


def with_data(change: Callable[[Tensor, Tensor], Any], **methods: Any) -> SoundPictures:
    """Return the sound task with changed pictures and labels, and other methods."""

    def data(self: SoundPictures, split: Split) -> Dataset[Any]:
        return TensorDataset(*change(*draw(split)))

    kind = type("Changed", (SoundPictures,), {"data": data, **methods})
    task = kind()
    assert isinstance(task, SoundPictures)
    return task


# --- labels


def binary(self: SoundPictures, model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch.inputs)[:, 0]
    return F.binary_cross_entropy_with_logits(scores, batch.targets, reduction="none")


def ignoring(self: SoundPictures, model: nn.Module, batch: Batch) -> Tensor:
    scores = model(batch.inputs)
    return F.cross_entropy(scores, batch.targets, ignore_index=-1, reduction="none")


def less_one(self: SoundPictures, model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.targets - 1, reduction="none")


def minus_some(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x, torch.where(torch.arange(len(y)) % 10 == 0, -1, y)


def test_minus_one_is_out_of_range_unless_it_is_ignored(tmp_path: Path) -> None:
    finding = look(labels.CHECK, with_data(minus_some), tmp_path)
    assert finding.outcome is Outcome.FAILED
    assert "ignore_index=-1" in finding.fix
    assert look(labels.CHECK, with_data(minus_some, loss=ignoring), tmp_path).outcome is (
        Outcome.PASSED
    )


def test_labels_from_one_that_the_loss_shifts_are_fine(tmp_path: Path) -> None:
    finding = look(labels.CHECK, with_data(lambda x, y: (x, y + 1), loss=less_one), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE


def test_names_that_differ_from_what_is_read_are_not_believed(tmp_path: Path) -> None:
    class Renamed(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            data = labelled(pictures, numbers)
            data.targets = numbers.numpy() + 1  # type: ignore[attr-defined]
            return data

    assert look(labels.CHECK, Renamed(), tmp_path).outcome is Outcome.PASSED


def test_labels_in_32_bits_are_reported_before_the_loss_refuses_them(tmp_path: Path) -> None:
    finding = look(labels.CHECK, with_data(lambda x, y: (x, y.int())), tmp_path)
    assert finding.fault == "label_range"
    assert "int32" in finding.evidence


def test_one_class_only_is_reported(tmp_path: Path) -> None:
    finding = look(labels.CHECK, with_data(lambda x, y: (x, torch.full_like(y, 2))), tmp_path)
    assert finding.fault == "label_range"
    assert "all 128 training labels are 2" in finding.evidence


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, Outcome.PASSED), (255.0, Outcome.FAILED)])
def test_a_binary_loss_takes_shares(scale: float, wanted: Outcome, tmp_path: Path) -> None:
    task = with_data(lambda x, y: (x, (y > 1) * scale), loss=binary)
    assert look(labels.CHECK, task, tmp_path).outcome is wanted


# --- numbers


def test_nan_in_targets_is_reported_where_the_loss_takes_it(tmp_path: Path) -> None:
    def holes(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x, torch.where(torch.arange(len(y)) % 9 == 0, torch.nan, (y > 1).float())

    finding = look(not_finite.CHECK, with_data(holes, loss=binary), tmp_path)
    assert finding.outcome is Outcome.FAILED
    assert "the targets of" in finding.evidence


# --- scale


def normalised(times: int) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Values of 0 to 1, normalized with ImageNet's statistics this many times."""

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        shares = (x * 0.25 + 0.45).clamp(0, 1)
        for _ in range(times):
            shares = (shares - 0.45) / 0.225
        return shares, y

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (normalised(0), None),
        (normalised(1), None),
        (normalised(2), "double_normalisation"),
        (lambda x, y: ((x * 40 + 128).clamp(0, 255) / 255 / 255, y), "double_normalisation"),
        (lambda x, y: (x * 40 + 128, y), "unnormalised_input"),
    ],
)
def test_scale_of_pictures(change: Any, fault: str | None, tmp_path: Path) -> None:
    finding = look(input_scale.CHECK, with_data(change), tmp_path)
    assert finding.fault == fault
    assert finding.outcome is (Outcome.WARNED if fault else Outcome.PASSED)


def pretrained_net(self: SoundPictures, recipe: Recipe) -> nn.Module:
    """A net whose first BatchNorm has seen pictures of mean 0 and standard deviation 1."""
    net = nn.Sequential(
        Normalize([128.0] * 3, [40.0] * 3),
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(800, 4),
    )
    net.train()
    for _ in range(30):
        net(40 * torch.randn(32, 3, 12, 12) + 128)
    return net


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda x, y: (x * 40 + 128, y), None),
        (lambda x, y: (x * 20 + 148, y), None),  # darker and duller: another camera
        (lambda x, y: (((x * 40 + 128) / 255).clamp(0, 1), y), "double_normalisation"),
    ],
)
def test_pretrained_weights_know_their_scale(
    change: Any, fault: str | None, tmp_path: Path
) -> None:
    task = with_data(change, build_model=pretrained_net)
    finding = look(input_scale.CHECK, task, tmp_path)
    assert finding.fault == fault
    assert finding.outcome is (Outcome.FAILED if fault else Outcome.PASSED)


def test_validation_on_another_scale_is_reported(tmp_path: Path) -> None:
    class Forgotten(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            return TensorDataset(pictures * (9.0 if split is Split.VAL else 1.0), numbers)

    finding = look(input_scale.CHECK, Forgotten(), tmp_path)
    assert finding.fault == "unnormalised_input"
    assert "in validation" in finding.evidence


def test_a_column_far_from_zero_is_named(tmp_path: Path) -> None:
    def build(self: SoundPictures, recipe: Recipe) -> nn.Module:
        return nn.Linear(3, 4)

    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1)[:, :3] * torch.tensor([1.0, 1, 4000]), y

    finding = look(input_scale.CHECK, with_data(change, build_model=build), tmp_path)
    assert finding.fault == "unnormalised_input"
    assert "1 of 3 input channels" in finding.evidence
    assert "channel 2" in finding.evidence


# --- shapes


def test_channels_last_is_reported_even_where_the_convolution_refuses_it(tmp_path: Path) -> None:
    task = with_data(lambda x, y: (x.permute(0, 2, 3, 1).contiguous(), y))
    finding = look(channels.CHECK, task, tmp_path)
    assert finding.fault == "channel_order"
    assert "12x12x3" in finding.evidence


@pytest.mark.parametrize("is_grey", [True, False])
def test_smooth_pictures_have_the_right_layout(is_grey: bool, tmp_path: Path) -> None:
    def change(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        smooth = F.avg_pool2d(x, 3, stride=1, padding=1)
        return (smooth.mean(1, keepdim=True).expand_as(x) if is_grey else smooth), y

    assert look(channels.CHECK, with_data(change), tmp_path).outcome is Outcome.PASSED


def test_large_pictures_are_fine_where_the_output_is_as_large(tmp_path: Path) -> None:
    class Dense(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return nn.Conv2d(3, 4, 3, padding=1)

        def data(self, split: Split) -> Dataset[Any]:
            return TensorDataset(torch.randn(4, 3, 420, 420), torch.randint(4, (4, 420, 420)))

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            return losses.mean((1, 2))

    assert look(input_size.CHECK, Dense(), tmp_path).outcome is Outcome.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("side", "resizes", "is_found"), [(24, False, False), (40, False, True), (40, True, False)]
)
def test_the_size_that_a_model_names_counts(
    side: int, resizes: bool, is_found: bool, tmp_path: Path
) -> None:
    class Named(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            first = nn.AdaptiveAvgPool2d(12) if resizes else nn.Identity()
            body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(3))
            model = nn.Sequential(first, body, nn.Flatten(), nn.Linear(72, 4))
            model.input_size = (3, 12, 12)  # type: ignore[assignment]
            return model

        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            return TensorDataset(F.interpolate(pictures[:40], size=side), numbers[:40])

    assert look(input_size.CHECK, Named(), tmp_path).is_alarm is is_found


# --- tokens


class Padded(Task):
    """Sentences of various lengths whose padding is predicted like words."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30))

    def data(self, split: Split) -> Dataset[Any]:
        draws = torch.Generator().manual_seed(list(Split).index(split))
        ids = torch.randint(1, 30, (100, 13), generator=draws)
        ids[torch.arange(13) >= torch.randint(4, 13, (100, 1), generator=draws)] = 0
        return TensorDataset(ids[:, :-1], ids[:, 1:])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).transpose(1, 2)
        return F.cross_entropy(scores, batch.targets, reduction="none").mean(1)


def test_padding_in_the_loss_is_reported(tmp_path: Path) -> None:
    finding = look(tokens.CHECK, Padded(), tmp_path)
    assert finding.outcome is Outcome.WARNED
    assert finding.fault == "tokens_out_of_vocabulary"
    assert "ignore_index=0" in finding.fix


def test_sequences_without_padding_are_fine(tmp_path: Path) -> None:
    class Full(Padded):
        def data(self, split: Split) -> Dataset[Any]:
            ids = torch.randint(30, (100, 13), generator=torch.Generator().manual_seed(3))
            return TensorDataset(ids[:, :-1], ids[:, 1:])

    assert look(tokens.CHECK, Full(), tmp_path).outcome is Outcome.PASSED


# --- order


def in_turn() -> Recipe:
    return replace(sound_recipe(), data=DataConfig(order=OrderMode.SEQUENTIAL))


def test_the_same_order_each_epoch_is_reported_and_one_epoch_is_not(tmp_path: Path) -> None:
    finding = look(batch_mixing.CHECK, SoundPictures(), tmp_path, in_turn())
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "no_shuffle")
    once = replace(in_turn(), schedule=replace(in_turn().schedule, max_epochs=1))
    assert look(batch_mixing.CHECK, SoundPictures(), tmp_path, once).outcome is Outcome.PASSED


def test_sorted_data_are_reported_where_classes_have_to_be_read(tmp_path: Path) -> None:
    task = with_data(lambda x, y: (x[y.argsort()], y.sort().values))
    finding = look(batch_mixing.CHECK, task, tmp_path, in_turn())
    assert finding.fault == "unmixed_batches"


def test_sorted_data_that_are_shuffled_are_fine(tmp_path: Path) -> None:
    task = with_data(lambda x, y: (x[y.argsort()], y.sort().values))
    assert look(batch_mixing.CHECK, task, tmp_path).outcome is Outcome.PASSED


# --- labels


@pytest.mark.parametrize("is_left_out", [False, True])
def test_labels_below_zero_that_a_users_loss_counts_from_the_end(
    is_left_out: bool, tmp_path: Path
) -> None:
    class Own(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            numbers[::7] = -1
            return labelled(pictures, numbers)

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            logs = model(batch.inputs).log_softmax(1)
            losses = -logs[torch.arange(len(logs)), batch.targets]
            return losses * (batch.targets >= 0) if is_left_out else losses

    finding = look(labels.CHECK, Own(), tmp_path)
    wanted = (Outcome.NOT_APPLICABLE, None) if is_left_out else (Outcome.FAILED, "label_range")
    assert (finding.outcome, finding.fault) == wanted, finding


# --- validation


def test_a_class_too_rare_for_validation_is_not_an_alarm(tmp_path: Path) -> None:
    class Rare(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            is_in = numbers < 3
            if split is Split.TRAIN:
                is_in[(numbers == 3).nonzero()[0]] = True
            return labelled(pictures[is_in], numbers[is_in])

    finding = look(missing_classes.CHECK, Rare(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert "too rare" in finding.evidence


def test_what_validation_has_to_resolve_is_the_users(tmp_path: Path) -> None:
    task = SoundPictures()
    for margin, outcome in ((0.05, Outcome.PASSED), (0.002, Outcome.WARNED)):
        config = Example(task=task).config(tmp_path)
        config = replace(config, ladder=LadderConfig(max_accuracy_loss=margin))
        job = open_job(config, task, task_name="example")
        finding = run_check(validation_size.CHECK, job)
        assert finding.outcome is outcome
    # 1.645 sqrt(0.1 / n) = 0.002
    assert finding.numbers["num_needed"] == pytest.approx(67_600, rel=0.02)


@pytest.mark.parametrize(
    ("num", "width", "outcome"),
    [
        (8, 1, Outcome.WARNED),
        (29, 1, Outcome.WARNED),
        (30, 1, Outcome.PASSED),
        (8, 40, Outcome.NOT_APPLICABLE),
    ],
)
def test_how_many_examples_a_mean_needs(
    num: int, width: int, outcome: Outcome, tmp_path: Path
) -> None:
    class Numbers(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, _ = draw(split)
            some = pictures[:num] if split is Split.VAL else pictures
            return TensorDataset(some, some.flatten(1).float()[:, :width])

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return (model(batch.inputs)[:, :1] - batch.targets.float()).square().mean(1)

        def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
            return Metrics(losses=self.loss(model, batch), sums={}, counts={})

    finding = look(validation_size.CHECK, Numbers(), tmp_path)
    assert finding.outcome is outcome, finding


@pytest.mark.parametrize(
    ("stopping", "is_found"),
    [
        (StoppingConfig(), False),
        (StoppingConfig(patience=1), False),
        (StoppingConfig(patience=1, allow_noise=False), True),
        (StoppingConfig(patience=3, allow_noise=False, min_improvement_frac=0), False),
        (StoppingConfig(validate_every_steps=1, patience=1), True),
        (
            StoppingConfig(
                monitor=Monitor.VAL_ACCURACY, allow_noise=False, min_improvement_frac=0.001
            ),
            True,
        ),
        (StoppingConfig(early=False, patience=1, allow_noise=False), False),
    ],
)
def test_rules_that_noise_ends(stopping: StoppingConfig, is_found: bool, tmp_path: Path) -> None:
    recipe = sound_recipe(stopping=stopping)
    finding = look(stopping_rule.CHECK, SoundPictures(), tmp_path, recipe)
    assert finding.is_alarm is is_found
    if is_found:
        assert (finding.outcome, finding.fault) == (Outcome.WARNED, "stopping_on_noise")

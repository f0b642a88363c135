"""Further learning faults, each found by name in the ways it occurs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from stepladder.checks.examples import Example, SoundPictures, sound_recipe
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.loss import loss_inputs, loss_reduction, loss_sign, loss_targets
from stepladder.checks.model import (
    batch_norm,
    gradients_reach,
    independent_samples,
    initialisation,
    input_independent,
    module_state,
    nonlinearity,
    pretrained,
)
from stepladder.checks.optimisation import (
    gradients_cleared,
    learning_rate,
    overfit_one_batch,
    parameters_move,
    reproducible,
    seeds,
    weight_decay_groups,
)
from stepladder.checks.run import run_check
from stepladder.checks.validation import beats_baseline
from stepladder.config.choices import OptimizerName, Split
from stepladder.config.recipe import BatchConfig, OptimizerConfig, Recipe, ScheduleConfig
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task


def job_of(task: Task, folder: Path, recipe: Recipe | None = None) -> CheckedJob:
    config = Example(recipe=recipe or sound_recipe()).config(folder)
    return open_job(config, task, task_name="example")


def finding_of(
    module: ModuleType, task: Task, folder: Path, recipe: Recipe | None = None
) -> Finding:
    return run_check(module.CHECK, job_of(task, folder, recipe))


def by_loss(loss: Callable[[nn.Module, Batch], Tensor], **more: Any) -> type[Task]:
    """Make a task with another loss, and other methods by name."""
    members = {"loss": lambda _, model, batch: loss(model, batch), **more}
    return type("Changed", (SoundPictures,), members)


def by_model(change: Callable[[nn.Sequential], nn.Module], **more: Any) -> type[Task]:
    """Make a task whose model is derived from the sound one's."""

    def build_model(self: SoundPictures, recipe: Recipe) -> nn.Module:
        model = SoundPictures.build_model(self, recipe)
        assert isinstance(model, nn.Sequential)
        return change(model)

    return type("Changed", (SoundPictures,), {"build_model": build_model, **more})


class Wrapped(nn.Module):
    """Layers with a custom forward."""

    def __init__(self, layers: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = layers
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self.layers, x)


# --- losses


def hand_softmax(model: nn.Module, batch: Batch) -> Tensor:
    shares = model(batch.inputs).softmax(1)
    return -F.log_softmax(shares, 1).gather(1, batch.targets[:, None]).squeeze(1)


def sigmoid_twice(model: nn.Module, batch: Batch) -> Tensor:
    wanted = F.one_hot(batch.targets, 4).float()
    shares = torch.sigmoid(model(batch.inputs))
    return F.binary_cross_entropy_with_logits(shares, wanted, reduction="none").mean(1)


def sigmoid_then_classes(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.inputs).sigmoid(), batch.targets, reduction="none")


def likelihood_of_shares(model: nn.Module, batch: Batch) -> Tensor:
    return F.nll_loss(model(batch.inputs).softmax(1), batch.targets, reduction="none")


def likelihood_of_scores(model: nn.Module, batch: Batch) -> Tensor:
    return F.nll_loss(model(batch.inputs), batch.targets, reduction="none")


def over_the_batch(model: nn.Module, batch: Batch) -> Tensor:
    logs = F.log_softmax(model(batch.inputs), dim=0)
    return F.nll_loss(logs, batch.targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "fault"),
    [
        (hand_softmax, "softmax_before_loss"),
        (sigmoid_twice, "softmax_before_loss"),
        (sigmoid_then_classes, "softmax_before_loss"),
        (likelihood_of_shares, "nll_without_log_softmax"),
        (likelihood_of_scores, "nll_without_log_softmax"),
        (over_the_batch, "softmax_wrong_dim"),
    ],
)
def test_what_goes_into_a_loss_is_judged(loss: Any, fault: str, tmp_path: Path) -> None:
    finding = finding_of(loss_inputs, by_loss(loss)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, fault), finding


def test_the_floor_of_a_second_softmax_is_known_by_its_loss(tmp_path: Path) -> None:
    def bounded(model: nn.Module, batch: Batch) -> Tensor:
        raw = model(batch.inputs)
        shares = raw.exp() / raw.exp().sum(1, keepdim=True)  # no visible softmax
        return F.cross_entropy(shares, batch.targets, reduction="none")

    finding = finding_of(overfit_one_batch, by_loss(bounded)(), tmp_path)
    assert finding.fault == "softmax_before_loss", finding
    assert f"{math.log(1 + 3 / math.e):.4f}" in finding.evidence


def numbers(split: Split) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(list(Split).index(split))
    x = torch.randn(200, 12, generator=generator)
    return x, 5 + 3 * x[:, 0] - 2 * x[:, 1]


class Regression(Task):
    """Twelve columns and a number; the loss is an argument."""

    end: nn.Module = nn.Identity()
    num_outputs = 1

    def build_model(self, recipe: Recipe) -> nn.Module:
        layers = nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, self.num_outputs), self.end
        return nn.Sequential(*layers)

    def data(self, split: Split) -> Dataset[Any]:
        return TensorDataset(*numbers(split))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch.inputs).squeeze(1) - batch.targets).square()


class CutToWhole(Regression):
    num_outputs = 20

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        wanted = batch.targets.abs().long()
        return F.cross_entropy(model(batch.inputs), wanted, reduction="none")

    def data(self, split: Split) -> Dataset[Any]:
        x, y = numbers(split)
        return TensorDataset(x, y.abs())


class EndsInSigmoid(Regression):
    end = nn.Sigmoid()


class EndsInRelu(Regression):
    end = nn.ReLU()

    def data(self, split: Split) -> Dataset[Any]:
        x, y = numbers(split)
        return TensorDataset(x, y - 5)


class YesOrNoOfMany(Regression):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs).squeeze(1)
        wanted = batch.targets.abs().floor()
        return F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")


class OneColumn(Regression):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        wanted = torch.zeros(len(batch.targets), dtype=torch.long)
        return F.cross_entropy(model(batch.inputs), wanted, reduction="none")


class ClassNumbers(Regression):
    def data(self, split: Split) -> Dataset[Any]:
        x, _ = numbers(split)
        return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (CutToWhole, Outcome.FAILED),
        (YesOrNoOfMany, Outcome.FAILED),
        (OneColumn, Outcome.FAILED),
        (EndsInSigmoid, Outcome.WARNED),
        (EndsInRelu, Outcome.WARNED),
        (ClassNumbers, Outcome.WARNED),
    ],
)
def test_targets_of_another_kind(kind: type[Task], outcome: Outcome, tmp_path: Path) -> None:
    finding = finding_of(loss_targets, kind(), tmp_path)
    assert (finding.outcome, finding.fault) == (outcome, "loss_kind_mismatch"), finding


def test_several_labels_in_one_softmax(tmp_path: Path) -> None:
    class Several(Regression):
        num_outputs = 5

        def data(self, split: Split) -> Dataset[Any]:
            x, _ = numbers(split)
            return TensorDataset(x, (x[:, :5] > 0).float())

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    assert finding_of(loss_targets, Several(), tmp_path).fault == "loss_kind_mismatch"

    class Own(Several):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return -(batch.targets * F.log_softmax(model(batch.inputs), -1)).sum(-1)

    assert finding_of(loss_targets, Own(), tmp_path).fault == "loss_kind_mismatch"

    class Shares(Own):
        def data(self, split: Split) -> Dataset[Any]:
            x, _ = numbers(split)
            return TensorDataset(x, x[:, :5].softmax(1))

    assert finding_of(loss_targets, Shares(), tmp_path).outcome is Outcome.PASSED


def per_example(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "outcome"),
    [
        (lambda m, b: per_example(m, b).mean().expand(len(b.targets)), Outcome.WARNED),
        (lambda m, b: per_example(m, b) * len(b.targets), Outcome.FAILED),
        (lambda m, b: per_example(m, b) / len(b.targets), Outcome.FAILED),
        (lambda m, b: per_example(m, b).mean(), Outcome.FAILED),
    ],
    ids=["mean", "times n", "over n", "scalar"],
)
def test_a_loss_that_knows_the_size_of_its_batch(
    loss: Any, outcome: Outcome, tmp_path: Path
) -> None:
    finding = finding_of(loss_reduction, by_loss(loss)(), tmp_path)
    assert (finding.outcome, finding.fault) == (outcome, "loss_reduction_mismatch"), finding


class Turned(torch.autograd.Function):
    """Identity with a negated gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


def test_a_turned_sign_is_found_in_regression_and_in_a_backward(tmp_path: Path) -> None:
    class Farther(Regression):
        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            return -super().loss(model, batch)

    assert finding_of(loss_sign, Farther(), tmp_path).fault == "loss_maximised"
    turned = by_model(lambda layers: Wrapped(layers, lambda m, x: Turned.apply(m(x))))
    finding = finding_of(loss_sign, turned(), tmp_path)
    assert finding.fault == "loss_maximised", finding
    assert "raise the loss" in finding.evidence


# --- gradients and weights


def test_layers_in_a_plain_list_are_unknown(tmp_path: Path) -> None:
    class Listed(nn.Module):
        def __init__(self, layers: nn.Sequential) -> None:
            super().__init__()
            self.first, self.rest = layers[0], list(layers)[1:]

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            for layer in self.rest:
                x = layer(x)
            return x

    finding = finding_of(gradients_reach, by_model(Listed)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "unregistered_modules"), finding


def test_a_tensor_that_learns_and_is_not_a_parameter_is_unknown(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self, layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers
            self.scales = [nn.Parameter(torch.ones(4))]

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.layers(x) * self.scales[0]
            return scores

    assert finding_of(gradients_reach, by_model(Scaled)(), tmp_path).fault == "unregistered_modules"


def test_weights_of_the_task_are_not_in_the_optimizer(tmp_path: Path) -> None:
    class Margin(SoundPictures):
        def __init__(self) -> None:
            self.head = nn.Linear(4, 4)

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            scores = self.head(model(batch.inputs))
            return F.cross_entropy(scores, batch.targets, reduction="none")

    finding = finding_of(gradients_reach, Margin(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "parameters_not_in_optimizer")


def test_no_grad_around_a_part_is_a_warning_and_around_all_an_error(tmp_path: Path) -> None:
    def blind_trunk(layers: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(layers, nn.Sequential)
        with torch.no_grad():
            features = layers[:-1](x)
        scores: Tensor = layers[-1](features)
        return scores

    part = by_model(lambda layers: Wrapped(layers, blind_trunk))
    finding = finding_of(gradients_reach, part(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "frozen_by_accident"), finding

    def all_blind(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).detach(), batch.targets, reduction="none")

    finding = finding_of(gradients_reach, by_loss(all_blind)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "frozen_by_accident"), finding


def test_layers_frozen_as_they_were_drawn_are_reported(tmp_path: Path) -> None:
    def freeze_first(layers: nn.Sequential) -> nn.Module:
        layers[0].requires_grad_(False)
        return layers

    finding = finding_of(gradients_reach, by_model(freeze_first)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "frozen_by_accident"), finding
    assert "0.weight" in finding.evidence


def test_weights_without_effect_are_reported_and_a_loss_without_is_an_error(tmp_path: Path) -> None:
    def closed(layers: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(layers, nn.Sequential)
        scores: Tensor = layers[1:](layers[0](x) * 0)
        return scores

    kind = by_model(lambda layers: Wrapped(layers, closed))
    finding = finding_of(parameters_move, kind(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.numbers["idle"] == ["layers.0.weight", "layers.0.bias", "layers.3.weight"]
    nothing = by_loss(lambda model, batch: 0 * per_example(model, batch))
    finding = finding_of(parameters_move, nothing(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "frozen_by_accident"), finding


def test_a_branch_that_gets_no_gradient_at_all_is_reported(tmp_path: Path) -> None:
    def closed(layers: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(layers, nn.Sequential)
        scores: Tensor = layers(x)
        return scores.detach() * 0 + layers[-1](layers[:-1](x).detach())

    kind = by_model(lambda layers: Wrapped(layers, closed))
    finding = finding_of(parameters_move, kind(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.numbers["unused"] == [
        "layers.0.weight", "layers.0.bias", "layers.3.weight", "layers.3.bias",
    ]  # fmt: skip


def test_kept_losses_of_earlier_batches_add_up(tmp_path: Path) -> None:
    example = gradients_cleared.broken()
    finding = finding_of(gradients_cleared, example.task, tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "missing_zero_grad"), finding
    norms = finding.numbers["norms"]
    assert isinstance(norms, list)
    assert norms[4] / norms[0] == pytest.approx(5, rel=1e-3)  # type: ignore[operator]


# --- the model


def with_weights(fill: Callable[[Tensor], Any]) -> type[Task]:
    def change(layers: nn.Sequential) -> nn.Module:
        for weight in layers.parameters():
            fill(weight)
        return layers

    return by_model(change)


def with_biases(value: float) -> type[Task]:
    def change(layers: nn.Sequential) -> nn.Module:
        for name, weight in layers.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(weight, value)
        return layers

    return by_model(change)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (with_weights(nn.init.zeros_), Outcome.FAILED),
        (with_weights(lambda w: nn.init.normal_(w, std=3.0)), Outcome.WARNED),
        (with_weights(lambda w: nn.init.normal_(w, std=1e-5)), Outcome.WARNED),
        (with_biases(-20.0), Outcome.WARNED),
    ],
    ids=["zeros", "large", "small", "dead"],
)
def test_first_weights_that_cannot_learn(
    kind: type[Task], outcome: Outcome, tmp_path: Path
) -> None:
    finding = finding_of(initialisation, kind(), tmp_path)
    assert (finding.outcome, finding.fault) == (outcome, "bad_initialisation"), finding


def test_two_linear_layers_behind_each_other_are_a_warning(tmp_path: Path) -> None:
    def change(layers: nn.Sequential) -> nn.Module:
        head = layers[-1]
        assert isinstance(head, nn.Linear)
        return nn.Sequential(
            *list(layers)[:-1], nn.Linear(head.in_features, 64), nn.Linear(64, 32), nn.ReLU(),
            nn.Linear(32, 4),
        )  # fmt: skip

    finding = finding_of(nonlinearity, by_model(change)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "no_nonlinearity"), finding


def mixed_up(layers: nn.Module, x: Tensor) -> Tensor:
    """A view where a transpose was intended, which mixes rows."""
    scores = layers(x)  # (n, 4)
    return scores.t().reshape(scores.shape)


def normed_by_batch(layers: nn.Module, x: Tensor) -> Tensor:
    return F.batch_norm(layers(x), None, None, training=True)


@pytest.mark.parametrize("forward", [mixed_up, normed_by_batch])
def test_examples_that_leak_into_each_other(forward: Any, tmp_path: Path) -> None:
    kind = by_model(lambda layers: Wrapped(layers, forward))
    finding = finding_of(independent_samples, kind(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "samples_not_independent"), finding


def test_batch_norm_of_one_value_fails_and_of_micro_batches_warns(tmp_path: Path) -> None:
    def pooled(layers: nn.Sequential) -> nn.Module:
        return nn.Sequential(*list(layers)[:-1], nn.BatchNorm1d(288), layers[-1])

    tail = sound_recipe(batch=BatchConfig(global_batch_size=15, lr=0.003))  # 256 = 17 x 15 + 1
    finding = finding_of(batch_norm, by_model(pooled)(), tmp_path, tail)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "batch_norm_tiny_batch"), finding
    micro = sound_recipe(batch=BatchConfig(global_batch_size=16, micro_batch_size=2, lr=0.003))
    finding = finding_of(batch_norm, by_model(pooled)(), tmp_path, micro)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "batch_norm_tiny_batch"), finding


def test_adam_with_a_large_l2_warns_and_with_a_small_one_informs(tmp_path: Path) -> None:
    def decayed(decay: float) -> Finding:
        optimizer = OptimizerConfig(name=OptimizerName.ADAM, weight_decay=decay)
        recipe = sound_recipe(optimizer=optimizer)
        return finding_of(weight_decay_groups, SoundPictures(), tmp_path, recipe)

    assert decayed(0.01).outcome is Outcome.WARNED
    assert decayed(1e-4).outcome is Outcome.PASSED
    assert decayed(1e-4).fault == "decay_on_norms_and_biases"


# --- state and weights that were read


def test_lazy_layers_and_nan_are_found_before_the_first_step(tmp_path: Path) -> None:
    lazy = by_model(lambda layers: nn.Sequential(*list(layers)[:-1], nn.LazyLinear(4)))
    assert finding_of(module_state, lazy(), tmp_path).fault == "uninitialised_module_state"
    spoilt = with_weights(lambda w: nn.init.constant_(w, math.nan))
    assert finding_of(module_state, spoilt(), tmp_path).fault == "uninitialised_module_state"


def test_statistics_that_only_training_sets_are_reported(tmp_path: Path) -> None:
    class Whitened(nn.Module):
        def __init__(self, layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers
            self.register_buffer("spread", torch.zeros(1))
            self.spread: Tensor

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.spread.copy_(x.std())
            scores: Tensor = self.layers(x / self.spread)
            return scores

    finding = finding_of(module_state, by_model(Whitened)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "uninitialised_module_state")


def learnt_state() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return SoundPictures().build_model(sound_recipe()).state_dict()


def filtered(layers: nn.Sequential) -> nn.Module:
    """Only matching names are loaded, and none match."""
    own = layers.state_dict()
    found = {f"net.{name}": value for name, value in learnt_state().items()}
    layers.load_state_dict({name: found[name] for name in found if name in own}, strict=False)
    own.update({name.removeprefix("net."): value for name, value in found.items()})
    return layers  # its own weights were a copy


def initialised_late(layers: nn.Sequential) -> nn.Module:
    layers.load_state_dict(learnt_state())
    for module in layers:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.reset_parameters()
    return layers


def loaded(layers: nn.Sequential) -> nn.Module:
    layers.load_state_dict(learnt_state())
    return layers.to(torch.bfloat16).float()  # rounded on the way


@pytest.mark.parametrize("change", [filtered, initialised_late])
def test_weights_that_were_read_and_lost(change: Any, tmp_path: Path) -> None:
    finding = finding_of(pretrained, by_model(change)(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "pretrained_not_loaded"), finding


def test_weights_that_were_read_and_are_there(tmp_path: Path) -> None:
    finding = finding_of(pretrained, by_model(loaded)(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.numbers["num_found"] == finding.numbers["num_read"] == 3


# --- trainings


def test_a_learning_rate_far_too_low_is_found_by_both(tmp_path: Path) -> None:
    recipe = sound_recipe(batch=BatchConfig(global_batch_size=16, lr=1e-8))
    for module in (overfit_one_batch, learning_rate):
        finding = finding_of(module, SoundPictures(), tmp_path, recipe)
        assert (finding.outcome, finding.fault) == (Outcome.WARNED, "learning_rate_too_low")


def test_a_low_rate_for_a_long_run_is_not_a_fault(tmp_path: Path) -> None:
    """A hundredth of a good rate, with enough epochs to compensate."""
    sgd = OptimizerConfig(name=OptimizerName.SGD)
    recipe = sound_recipe(
        batch=BatchConfig(global_batch_size=16, lr=3e-4),
        schedule=ScheduleConfig(max_epochs=2000),
        optimizer=sgd,
    )
    for module in (overfit_one_batch, learning_rate):
        finding = finding_of(module, SoundPictures(), tmp_path, recipe)
        assert not finding.is_alarm, finding


def test_a_model_worse_than_the_mean_cannot_overfit(tmp_path: Path) -> None:
    finding = finding_of(overfit_one_batch, EndsInSigmoid(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.FAILED, "cannot_overfit"), finding
    assert "mean of the targets" in finding.evidence


def test_inputs_that_come_to_nothing_on_the_way(tmp_path: Path) -> None:
    flat = by_model(lambda layers: Wrapped(layers, lambda m, x: m(x * 1e-9)))
    finding = finding_of(input_independent, flat(), tmp_path)
    assert finding.fault == "no_better_than_baseline", finding


def test_without_time_a_training_accuses_nobody(tmp_path: Path) -> None:
    job = job_of(overfit_one_batch.broken().task, tmp_path)
    job.deadline = time.perf_counter() + 0.01
    assert run_check(overfit_one_batch.CHECK, job).outcome is Outcome.NOT_APPLICABLE


def test_few_validation_examples_say_nothing_of_a_baseline(tmp_path: Path) -> None:
    class Few(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            whole: Any = super().data(split)
            return whole if split is Split.TRAIN else TensorDataset(*whole[:20])

    finding = finding_of(beats_baseline, Few(), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE
    assert "20 validation examples" in finding.evidence


# --- seeds


class FixedSeed(SoundPictures):
    def build_model(self, recipe: Recipe) -> nn.Module:
        torch.manual_seed(42)
        return super().build_model(recipe)


class SeedInEachStep(SoundPictures):
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        torch.manual_seed(0)
        return super().loss(model, batch)


class GlobalNoise(SoundPictures):
    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        return batch._replace(inputs=batch.inputs + 0.1 * torch.randn_like(batch.inputs))


class SameNoise(SoundPictures):
    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        noise = torch.randn(batch.inputs.shape, generator=torch.Generator().manual_seed(0))
        return batch._replace(inputs=batch.inputs + 0.1 * noise)


class OtherData(SoundPictures):
    def data(self, split: Split) -> Dataset[Any]:
        whole: Any = super().data(split)
        order = torch.randperm(len(whole))
        return TensorDataset(*whole[order])


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (FixedSeed, Outcome.WARNED),
        (SeedInEachStep, Outcome.WARNED),
        (GlobalNoise, Outcome.WARNED),
        (SameNoise, Outcome.WARNED),
        (OtherData, Outcome.FAILED),
    ],
)
def test_seeds_that_do_not_do_what_they_are_for(
    kind: type[Task], outcome: Outcome, tmp_path: Path
) -> None:
    finding = finding_of(seeds, kind(), tmp_path)
    assert (finding.outcome, finding.fault) == (outcome, "seeds_wrong"), finding


class ByTheClock(SoundPictures):
    """Draws initial weights from an unseeded generator."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        model = super().build_model(recipe)
        drawn = torch.Generator().manual_seed(time.perf_counter_ns())
        for weight in model.parameters():
            nn.init.normal_(weight, std=0.1, generator=drawn)
        return model


def test_first_weights_that_no_seed_reaches_make_two_runs_differ(tmp_path: Path) -> None:
    finding = finding_of(reproducible, ByTheClock(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "not_reproducible"), finding


def test_a_check_of_bf16_and_micro_batches_answers(tmp_path: Path) -> None:
    from stepladder.config.choices import Precision

    recipe = sound_recipe(batch=BatchConfig(global_batch_size=16, micro_batch_size=8, lr=0.003))
    recipe = replace(recipe, device=replace(recipe.device, precision=Precision.BF16))
    job = job_of(SoundPictures(), tmp_path, recipe)
    for module in (gradients_reach, loss_inputs, loss_sign, overfit_one_batch, parameters_move):
        assert run_check(module.CHECK, job).outcome is Outcome.PASSED, module.__name__

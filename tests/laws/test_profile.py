"""A probe and a complete profile change nothing: later training is bit-identical."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from stepladder.config.choices import OptimizerName, Precision, Split, TrainMode, Where
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    FeaturesConfig,
    OptimizerConfig,
    Recipe,
)
from stepladder.data.batch import Batch
from stepladder.measuring.model.operations import (
    estimate_noise_scale,
    measure_flops,
    measure_replays,
)
from stepladder.measuring.probe import untouched
from stepladder.measuring.profile import take_profile
from stepladder.measuring.saving import measure_saves
from stepladder.measuring.subject import Subject, open_subject
from stepladder.optim.state import flatten_state
from stepladder.records.profile import Profile, Provenance
from stepladder.task import Task
from stepladder.training.setup.build import open_sources

CPU = torch.device("cpu")


class First(nn.Linear):
    """Takes numbers of any format, as half-precision weights require."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


class Net(nn.Module):
    """BatchNorm with running statistics, and dropout that draws."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(First(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


class Plane(Task):
    is_random_before_head = False

    def build_model(self, recipe: Recipe) -> nn.Module:
        return Net()

    def data(self, split: Split) -> TensorDataset:
        x = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, (x.sum(1) > 0).long())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        assert isinstance(model, Net)
        return model.trunk, model.head


def recipe_of(train: TrainMode, name: OptimizerName, precision: Precision, **more: Any) -> Recipe:
    return Recipe(
        train=train,
        data=DataConfig(where=Where.STREAM),
        batch=BatchConfig(global_batch_size=4, lr=0.05),
        optimizer=OptimizerConfig(name=name),
        device=DeviceConfig(precision=precision),
        **more,
    )


RECIPES = {
    f"{train} {name} {precision}": recipe_of(train, name, precision)
    for train, name, precision in (
        (TrainMode.HEAD, OptimizerName.NADAM, Precision.FP32),
        (TrainMode.ALL, OptimizerName.NADAM, Precision.FP32),
        (TrainMode.ALL, OptimizerName.SGD, Precision.FP32),
        (TrainMode.ALL, OptimizerName.ADAMW, Precision.BF16),
        (TrainMode.ALL, OptimizerName.SGD, Precision.FP16),
        (TrainMode.HEAD_THEN_ALL, OptimizerName.ADAM, Precision.FP16_MASTER),
    )
}


def state_of(subject: Subject) -> dict[str, Any]:
    """Everything in an ongoing training that a probe could disturb."""
    model, update = subject.model, subject.parts.update
    tensors, facts = flatten_state(update.optimizer, model)
    return {
        **{f"model {name}": tensor.clone() for name, tensor in model.state_dict().items()},
        **{f"optimizer {name}": tensor.clone() for name, tensor in tensors.items()},
        "optimizer": repr(facts),
        "scaler": repr(update.state()),
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "learns": [p.requires_grad for p in model.parameters()],
        "training": [module.training for module in model.modules()],
        **random_states(),
    }


def random_states() -> dict[str, Any]:
    return {
        "python": random.getstate(),
        "numpy": [np.asarray(part).tolist() for part in np.random.get_state()],
        "torch": torch.get_rng_state(),
    }


def assert_equal(a: Any, b: Any, name: str = "") -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key], key)
    elif isinstance(a, Tensor):
        assert torch.equal(a, b), name
    elif isinstance(a, list) and any(isinstance(item, Tensor) for item in a):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other, name)
    else:
        assert a == b, name


def steps(subject: Subject, num: int) -> None:
    batches = subject.reader().endless()
    for _ in range(num):
        subject.step_on(batches)
    batches.close()


def disturb(subject: Subject) -> None:
    """Do the worst that a probe may do."""
    steps(subject, 3)
    random.random()
    np.random.random()
    with torch.no_grad():
        for weight in subject.model.parameters():
            weight.mul_(-3)
            weight.grad = torch.ones_like(weight)
    subject.model.requires_grad_(True)
    subject.model.eval()
    subject.parts.update.optimizer.param_groups[0]["lr"] = 77.0


def run_out_of_memory(subject: Subject) -> None:
    disturb(subject)
    torch.empty(1 << 60)


def sound(subject: Subject, probe: Callable[[Subject], object]) -> None:
    update = subject.parts.update
    with untouched(subject.model, update.optimizer, update.scaler):
        probe(subject)


def in_a_folder(probe: Callable[[Path], object]) -> None:
    with TemporaryDirectory() as name:
        assert probe(Path(name)) is not None
        assert list(Path(name).iterdir()) == []


PROBES: dict[str, Callable[[Subject], object]] = {
    "the worst": lambda subject: sound(subject, disturb),
    "out of memory": lambda subject: sound(subject, run_out_of_memory),
    "flops": measure_flops,
    "replays": lambda s: measure_replays(s, is_cached=False, example_s=1e-4, budget_s=0.0),
    "noise scale": lambda s: estimate_noise_scale(s, None, example_s=1e-4, budget_s=0.0),
    "a save": lambda s: in_a_folder(lambda folder: measure_saves(s, folder)),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("probe", PROBES.values(), ids=PROBES)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_probe_changes_nothing_and_training_continues_as_without_it(
    recipe: Recipe, probe: Callable[[Subject], object]
) -> None:
    def trained(probe: Callable[[Subject], object] | None) -> dict[str, Any]:
        task = Plane()
        with open_subject(recipe, task, open_sources(task), device=CPU) as subject:
            steps(subject, 2)
            if probe is not None:
                before = state_of(subject)
                taken = subject.num_steps
                try:
                    probe(subject)
                except (RuntimeError, MemoryError) as error:
                    assert "alloc" in str(error) or "memory" in str(error)  # noqa: PT017
                assert_equal(before, state_of(subject))
                subject.num_steps = taken  # has its own counter, which seeds dropout
            steps(subject, 3)
            return state_of(subject)

    assert_equal(trained(None), trained(probe))


PROFILED = {
    **RECIPES,
    "cached features": recipe_of(
        TrainMode.HEAD,
        OptimizerName.NADAM,
        Precision.FP32,
        features=FeaturesConfig(cached=True),
    ),
}


def profile_of(recipe: Recipe, task: Task, cache: Path) -> Profile:
    return take_profile(
        recipe,
        task,
        open_sources(task),
        device=CPU,
        cache=cache,
        saves=cache,
        epochs=2.0,
        num_validations=2.0,
        curve=None,
        budget_s=0.01,
    )


@pytest.mark.parametrize("recipe", PROFILED.values(), ids=PROFILED)
def test_a_profile_changes_nothing_and_says_where_each_number_comes_from(
    recipe: Recipe, tmp_path: Path
) -> None:
    task, torch_threads = Plane(), torch.get_num_threads()
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    before = random_states()
    facts = dict(vars(task))
    profile = profile_of(recipe, task, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert profile.save_s is not None, "a checkpoint was saved there"
    assert_equal(before, random_states())
    assert torch.get_num_threads() == torch_threads
    assert vars(task) == facts
    for item in dataclasses.fields(profile):
        value = getattr(profile, item.name)
        words = {"no_advice_because", "noise_scale_unknown_because"}
        is_told = item.name in {"provenance", "curve"} | words
        if is_told or value is None or value in ({}, ()):
            continue
        assert isinstance(profile.provenance[item.name], Provenance), item.name
    assert profile.provenance["is_pretrained"] is Provenance.ASSUMED  # a user's own model

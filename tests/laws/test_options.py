"""Options that change how a recipe is computed do not change what is learned or kept.

Each is trained for real on a small store, next to the same recipe without it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.config.choices import (
    Encoding,
    OptimizerName,
    Split,
    TrainMode,
    WeightsSource,
    Where,
)
from stepladder.config.options import JobConfig, RunConfig
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)
from stepladder.data.batch import Batch
from stepladder.errors import ResourceError, UsageError
from stepladder.exporting import load_trained
from stepladder.models.forwards import FrozenForward
from stepladder.task import Metrics, Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.checkpoint.checkpoint import load_best
from stepladder.training.output.display import Display
from stepladder.training.run import train
from stepladder.training.setup.build import make_clock, make_model, make_stage_parts, open_sources
from stepladder.training.stage import stages_of

CPU = torch.device("cpu")
MODEL = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
RECIPE = Recipe(
    auto=False,
    model=MODEL,
    data=DataConfig(where=Where.STREAM),
    batch=BatchConfig(global_batch_size=8, lr=0.01),
    optimizer=OptimizerConfig(name=OptimizerName.ADAM),
    schedule=ScheduleConfig(max_epochs=2),
    stopping=StoppingConfig(early=False),
)
ALL = replace(RECIPE, train=TrainMode.ALL)
FOLDED = replace(RECIPE, model=replace(MODEL, fold_batchnorm=True))
CHECKPOINTED = replace(ALL, device=DeviceConfig(gradient_checkpointing=True))
FUSED = replace(RECIPE, optimizer=replace(RECIPE.optimizer, fused=True))
NADAM = replace(RECIPE, optimizer=OptimizerConfig(name=OptimizerName.NADAM))
FUSED_NADAM = replace(NADAM, optimizer=replace(NADAM.optimizer, fused=True))
ONCE = replace(RECIPE, data=replace(RECIPE.data, decode_once=True))
COMPILED = replace(ALL, device=DeviceConfig(compile=True))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Path:
    """A store of JPEGs: two full steps and a short one per epoch."""
    folder = tmp_path_factory.mktemp("options") / "store"
    rows = {"train": 19, "val": 5}
    build_store(folder, num_rows=rows, size=32, encoding=Encoding.JPEG)
    return folder


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def run(recipe: Recipe, store: Path, folder: Path, task: Task | None = None) -> dict[str, Any]:
    recipe = replace(recipe, data=replace(recipe.data, store=store))
    job = JobConfig(recipe=recipe, run=RunConfig(dir=folder, log_every=1, system_every_s=60))
    used = task or ImageClassification(store, recipe)
    return train(job, used, task_name="image_classification", display=Display(io.StringIO()))


def best(folder: Path) -> dict[str, Tensor]:
    return load_best(folder).weights


@pytest.mark.parametrize(
    ("plain", "recipe", "tolerance"),
    [
        (RECIPE, FOLDED, 1e-4),
        (ALL, CHECKPOINTED, 0.0),
        (RECIPE, FUSED, 1e-5),
        (NADAM, FUSED_NADAM, 1e-5),
        (RECIPE, ONCE, 0.0),
    ],
    ids=[
        "fold_batchnorm",
        "gradient_checkpointing",
        "fused",
        "fused nadam",
        "decode_once",
    ],
)
def test_training_ends_as_it_does_without(
    store: Path, tmp_path: Path, plain: Recipe, recipe: Recipe, tolerance: float
) -> None:
    without, with_it = run(plain, store, tmp_path / "a"), run(recipe, store, tmp_path / "b")
    assert math.isclose(without["val_loss"], with_it["val_loss"], rel_tol=tolerance)
    ours, theirs = best(tmp_path / "b"), best(tmp_path / "a")
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        if name.startswith("trunk.") and plain.train is TrainMode.HEAD:
            assert torch.equal(ours[name], tensor), name  # frozen: not a bit has changed
        else:
            torch.testing.assert_close(ours[name], tensor, rtol=tolerance, atol=tolerance)
    x = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    opened = load_trained(tmp_path / "b").model
    assert not [m for m in opened.modules() if "forward" in vars(m)]
    with torch.no_grad():
        wanted = load_trained(tmp_path / "a").model(x)
        torch.testing.assert_close(opened(x), wanted, rtol=1e-3, atol=1e-3)


def test_a_folded_run_resumes_bit_for_bit(store: Path, tmp_path: Path) -> None:
    whole = run(FOLDED, store, tmp_path / "whole")
    short = replace(FOLDED, schedule=replace(FOLDED.schedule, max_epochs=1))
    run(short, store, tmp_path / "cut")
    resumed = run(FOLDED, store, tmp_path / "cut")
    assert resumed["attempts"] == 2
    assert resumed["val_loss"] == whole["val_loss"]


def test_the_second_stage_learns_with_the_batchnorm_that_the_first_had_folded(
    store: Path, tmp_path: Path
) -> None:
    recipe = replace(FOLDED, train=TrainMode.HEAD_THEN_ALL)
    run(recipe, store, tmp_path / "run")
    first = make_model(recipe, ImageClassification(store, recipe), CPU).state_dict()
    name = next(key for key in first if key.endswith("running_mean"))
    assert not torch.equal(best(tmp_path / "run")[name], first[name])


def test_a_folded_trunk_computes_the_same_logits_in_training_and_in_validation(
    store: Path,
) -> None:
    x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    logits = []
    for recipe in (RECIPE, FOLDED):
        task = ImageClassification(store, recipe)
        model = make_model(recipe, task, CPU)
        clock = make_clock(CPU)
        make_stage_parts(
            recipe, stages_of(recipe.train, recipe.batch)[0], task, model, device=CPU, clock=clock
        )
        logits.append(model(x).detach())
        model.eval()
        with torch.inference_mode():
            logits.append(model(x).clone())
        assert isinstance(vars(model.trunk).get("forward"), FrozenForward) == (recipe is FOLDED)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=1e-4, atol=1e-5)


def test_decoding_once_gives_the_same_batches_bit_for_bit(store: Path, tmp_path: Path) -> None:
    def read(recipe: Recipe) -> Iterator[tuple[bytes, list[int]]]:
        sources = open_sources(ImageClassification(store, recipe, copies=tmp_path / "copies"))
        assert sources.val is not None
        for source in (sources.train, sources.val):
            inputs, targets = source.read(np.arange(len(source)))
            yield inputs.tobytes(), targets.tolist()
            yield source.fingerprint.encode(), []

    for scaled in (True, False):
        plain = replace(RECIPE, loader=LoaderConfig(scaled_decode=scaled))
        once = replace(plain, data=replace(plain.data, decode_once=True))
        assert list(read(plain)) == list(read(once))


class Own(Task):
    """A user's model: unknown trunk, no method for checkpointing."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(2, 2))

    def data(self, split: Split) -> Any:
        examples = [(torch.ones(2) * i, i % 2) for i in range(6)]
        return examples if split is Split.TRAIN else None

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")

    def metrics(self, model: nn.Module, batch: Batch) -> Metrics:
        return Metrics(losses=self.loss(model, batch))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_compiled_model_learns_as_it_does_uncompiled(store: Path, tmp_path: Path) -> None:
    """Of few layers, as each takes seconds to compile; that of pictures is in test_exactness."""
    run(ALL, store, tmp_path / "plain", Own())
    run(COMPILED, store, tmp_path / "compiled", Own())
    ours, theirs = best(tmp_path / "compiled"), best(tmp_path / "plain")
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5)


class Split2(Own):
    """A user's model whose trunk has no BatchNorm2d."""

    def split(self, model: nn.Module) -> tuple[nn.Module, nn.Module]:
        return model[0], model[1]


@pytest.mark.parametrize(
    ("recipe", "task", "words"),
    [
        (replace(FOLDED, train=TrainMode.ALL), None, "the trunk is trained"),
        (FOLDED, Own(), "does not say which part that is"),
        (FOLDED, Split2(), "no BatchNorm2d"),
        (replace(CHECKPOINTED, train=TrainMode.HEAD), None, "the trunk is frozen"),
        (CHECKPOINTED, Own(), "does not support device.gradient_checkpointing"),
    ],
    ids=[
        "fold all",
        "fold own",
        "fold nothing",
        "checkpoint head",
        "checkpoint own",
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    store: Path, tmp_path: Path, recipe: Recipe, task: Task | None, words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        run(recipe, store, tmp_path / "run", task)
    assert caught.value.fix
    assert not (tmp_path / "run").exists()


def test_without_a_compiler_the_way_out_is_named(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ResourceError, match="no-such-compiler") as caught:
        run(COMPILED, store, tmp_path / "run")
    assert "device.compile" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_options_that_are_off_leave_the_model_alone(store: Path) -> None:
    model = make_model(RECIPE, ImageClassification(store, RECIPE), CPU)
    assert not [module for module in model.modules() if "forward" in vars(module)]

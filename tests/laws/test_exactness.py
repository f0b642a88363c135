"""A rung that declares to change nothing, or only rounding, does so on a real job.

Losses, scores, gradients and weights of three real steps are compared before and after the rung.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
import torch

from stepladder.config.choices import (
    Encoding,
    MemoryFormat,
    OptimizerName,
    TrainMode,
    WeightsSource,
    Where,
)
from stepladder.config.recipe import (
    BatchConfig,
    DataConfig,
    DeviceConfig,
    LoaderConfig,
    ModelConfig,
    OptimizerConfig,
    Recipe,
)
from stepladder.ladder.accuracy.exactness import Computed, Material, compute, describe_difference
from stepladder.ladder.accuracy.on_devices import check_on_devices
from stepladder.records.collectives import Fit, Link
from stepladder.records.ladder import Exactness
from stepladder.records.model_size import ModelSize
from stepladder.records.profile import Devices, Profile, TrainingTime
from stepladder.rungs import RUNGS, Rung
from stepladder.task.image_classification import ImageClassification
from stepladder.training.setup.build import open_sources

CPU = torch.device("cpu")
SIZE = 32
ROWS = {"train": 40, "val": 5}
EXACT = [
    rung
    for rung in RUNGS
    if rung.exactness is not Exactness.STATISTICAL and not rung.is_prediction_only
]
TIME = TrainingTime(epochs=60, steps_per_epoch=5, step_s=0.1)
PHASES_S = {
    "data_wait": 0.02,
    "to_device": 0.002,
    "augment": 0.003,
    "forward": 0.025,
    "backward": 0.045,
    "optimizer": 0.005,
}


SLOW_NATIVE = Fit(
    num_ranks=2,
    num_local=2,
    link=Link.plain(alpha_s=1e-4, beta_s=1e-9),
    native_sizes=(1000, 10**6),
    native_s=(1.0, 2.0),
)


@pytest.fixture(name="profile")
def _profile(profile_of: Callable[..., Profile]) -> Profile:
    """A profile with which each exact rung applies."""
    return profile_of(
        TIME,
        num_train=40,
        num_val=5,
        is_built_in=True,
        num_conv2d=20,
        num_batchnorm=20,
        weight_bytes=10**6,
        trainable_bytes=10**4,
        example_bytes=3 * SIZE * SIZE,
        feature_bytes=4 * 256,
        store_encoding="jpeg",
        num_cores=2,
        has_compiler=True,
        free_memory_bytes=10**4,  # little memory, so that memory-saving rungs apply
        free_disk_bytes=10**12,
        bandwidth_bytes_per_s=1e10,
        phases_s=PHASES_S,
        replay_host_s=TIME.step_s - PHASES_S["data_wait"],
        loader_cpu_s=1e-3,
        step_fixed_s=0.1,
        step_per_example_s=1e-4,
        memory_by_batch={1: 10**4, 2: 2 * 10**4},
        trunk_s=1e-3,
        head_step_s=1e-3,
        devices=Devices(
            num=2,
            start_s=1.0,
            share_step_s=0.05,
            exchange_fixed_s=1e-4,
            exchange_byte_s=1e-9,
            fit=SLOW_NATIVE,
        ),
    )


class StoreBuilder(Protocol):
    def __call__(
        self, folder: Path, *, num_rows: dict[str, int], size: int, encoding: Encoding
    ) -> object: ...


def jobs(store: Path, profile: Profile) -> dict[str, tuple[Profile, Recipe]]:
    """Return jobs to which each rung applies, by what is trained and what is already changed.

    In fp32, as in 16 bits layouts and folding differ by more rounding than an exact trial allows.
    """
    head = Recipe(
        auto=False,
        data=DataConfig(store=store, where=Where.STREAM),
        loader=LoaderConfig(threads=1),
        model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
        batch=BatchConfig(global_batch_size=4, lr=0.01),
        optimizer=OptimizerConfig(name=OptimizerName.SGD),
        device=DeviceConfig(threads=1),
    )
    held = replace(head, data=replace(head.data, where=Where.MEMORY))
    laid_out = replace(
        head,
        device=replace(head.device, memory_format=MemoryFormat.CHANNELS_LAST),
        model=replace(head.model, fold_batchnorm=True),
    )
    # With few examples, BatchNorm outputs are extreme, and rounding changes the gradient.
    batch = replace(head.batch, global_batch_size=8)
    learns = replace(head, train=TrainMode.ALL, batch=batch)
    all_learn = replace(profile, is_trunk_frozen=False, num_train=400)
    size = ModelSize(weights=10**6, trained=10**6, states=2 * 10**6, kept=10, unit=10**5)
    too_large = replace(all_learn, size=size, free_memory_bytes=6 * 10**6)  # for both devices
    on_two = replace(learns.device, count=2, sync_batchnorm=True)
    return {
        "head": (profile, head),
        "held": (profile, held),
        "laid_out": (profile, laid_out),
        "all": (all_learn, learns),
        "all_reduce": (all_learn, replace(learns, device=on_two)),
        "sharded_model": (too_large, replace(learns, device=on_two)),
    }


def run(recipe: Recipe, folder: Path) -> Computed:
    task = ImageClassification(recipe.data.store, recipe, copies=folder / "copies")
    material = Material(task=task, sources=open_sources(task))
    if recipe.device.compile:
        torch._dynamo.reset()  # otherwise code compiled by other tests counts towards its limits
    return compute(recipe, material, device=CPU, steps=True)


def on_devices(recipe: Recipe, folder: Path) -> str:
    """Compare the first step of real processes with that of one."""
    task = ImageClassification(recipe.data.store, recipe, copies=folder / "copies")
    return check_on_devices(
        recipe,
        task,
        open_sources(task),
        device=CPU,
        folder=folder / "ranks",
        copies=folder / "copies",
    )


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # from torch
@pytest.mark.parametrize("rung", EXACT, ids=lambda rung: rung.name)
def test_a_rung_keeps_to_its_exactness(
    rung: Rung, tmp_path: Path, build_store: StoreBuilder, profile: Profile
) -> None:
    build_store(tmp_path / "store", num_rows=ROWS, size=SIZE, encoding=Encoding.JPEG)
    found = jobs(tmp_path / "store", profile)
    let_through = {name: job for name, job in found.items() if rung.why_not(*job) is None}
    assert let_through, (
        f"why_not of {rung.name} refuses all jobs of this law: add one to `jobs` of this file, or "
        "the number that it asks for to `_profile`"
    )
    for name, (measured, recipe) in let_through.items():
        changed = rung.apply(measured, recipe)
        if changed.device.count > 1:
            # each starts processes; that of a head is the next test
            if name in ("all", rung.name):
                assert on_devices(changed, tmp_path / name)  # raises if they differ more
            continue
        if not changed.device.compile:  # compiling takes half a minute, and has its own test
            require_exact(rung, recipe, changed, tmp_path / name)


def require_exact(rung: Rung, recipe: Recipe, changed: Recipe, folder: Path) -> None:
    """Compute with and without the rung, and check that both differ no more than it declares."""
    before, after = run(recipe, folder / "before"), run(changed, folder / "after")
    assert describe_difference(before, after, rung.exactness)  # raises if they differ more
    assert {"losses", "gradients", "scores", "weights after a step"} <= after.numbers.keys()


@pytest.mark.thorough
def test_a_head_on_several_devices_keeps_to_its_exactness(
    tmp_path: Path, build_store: StoreBuilder, profile: Profile
) -> None:
    build_store(tmp_path / "store", num_rows=ROWS, size=SIZE, encoding=Encoding.JPEG)
    job = jobs(tmp_path / "store", profile)["head"]
    changed = [rung.apply(*job) for rung in EXACT if rung.why_not(*job) is None]
    on_several = [recipe for recipe in changed if recipe.device.count > 1]
    assert on_several
    for idx, recipe in enumerate(on_several):
        assert on_devices(recipe, tmp_path / str(idx))  # raises if they differ more


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # from torch
def test_a_compiled_trunk_keeps_to_its_exactness(
    tmp_path: Path, build_store: StoreBuilder, profile: Profile
) -> None:
    """What is compiled for `make test`, in tests/unit/models/test_forwards.py, has fewer layers."""
    build_store(tmp_path / "store", num_rows=ROWS, size=SIZE, encoding=Encoding.JPEG)
    measured, recipe = jobs(tmp_path / "store", profile)["head"]
    changed = {
        rung: rung.apply(measured, recipe)
        for rung in EXACT
        if rung.why_not(measured, recipe) is None
    }
    compiled = {rung: after for rung, after in changed.items() if after.device.compile}
    assert compiled
    for rung, after in compiled.items():
        require_exact(rung, recipe, after, tmp_path / rung.name)


def test_another_learning_rate_would_be_found(
    tmp_path: Path, build_store: StoreBuilder, profile: Profile
) -> None:
    build_store(tmp_path / "store", num_rows=ROWS, size=SIZE, encoding=Encoding.JPEG)
    _, recipe = jobs(tmp_path / "store", profile)["head"]
    other = replace(recipe, batch=replace(recipe.batch, lr=0.02))
    before, after = run(recipe, tmp_path / "before"), run(other, tmp_path / "after")
    with pytest.raises(Exception, match="different results"):
        describe_difference(before, after, Exactness.ROUNDING)

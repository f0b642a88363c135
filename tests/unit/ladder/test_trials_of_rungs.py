"""Real trials of rungs that change how pictures are read or which trunk is trained.

The assertions hold on a machine of any speed: both sides were timed, and the verdict uses that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from safetensors.torch import save_file
from torch import nn

from stepladder.config.choices import Encoding, OptimizerName, TrainMode, WeightsSource, Where
from stepladder.config.options import PrepareConfig
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
from stepladder.data.prepare.prepare import prepare
from stepladder.ladder.lab import Lab
from stepladder.ladder.limits.feasibility import why_not_here
from stepladder.ladder.paired_rungs import with_enabled
from stepladder.ladder.trainings import training_cache
from stepladder.ladder.trial import run_trial
from stepladder.measuring.model.larger_trunks import larger_trunks
from stepladder.models.torchvision_shim import import_timm
from stepladder.records.ladder import Decision, Trial
from stepladder.records.profile import Profile, TrainingTime
from stepladder.rungs import Rung
from stepladder.rungs.speed.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.speed.larger_model import LargerModel
from stepladder.rungs.speed.loader_threads import LoaderThreads
from stepladder.rungs.speed.pixel_store import PixelStore
from stepladder.rungs.speed.pretrained import Pretrained
from stepladder.rungs.speed.scaled_decode import ScaledDecode
from stepladder.rungs.speed.streaming import Streaming
from stepladder.task.image_classification import ImageClassification

SIDE = 32
NUM_TRAIN, NUM_VAL = 64, 8
TRIED = (Decision.KEPT, Decision.UNDECIDED, Decision.DROPPED)


class TryRung(Protocol):
    def __call__(self, rung: Rung, recipe: Recipe, **facts: Any) -> Trial: ...


@pytest.fixture(name="job")
def _job(build_store, tmp_path: Path) -> Recipe:  # type: ignore[no-untyped-def]
    """A job on a store of JPEGs, which one thread reads in each of its two epochs."""
    rows = {"train": NUM_TRAIN, "val": NUM_VAL}
    build_store(tmp_path / "store", num_rows=rows, size=SIDE, encoding=Encoding.JPEG)
    return Recipe(
        data=DataConfig(store=tmp_path / "store", where=Where.STREAM),
        loader=LoaderConfig(threads=1),
        model=ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE),
        batch=BatchConfig(global_batch_size=4, lr=0.01),
        optimizer=OptimizerConfig(name=OptimizerName.SGD),
        schedule=ScheduleConfig(max_epochs=2),
        stopping=StoppingConfig(early=False, restore_best=False),
        device=DeviceConfig(threads=1),
    )


@pytest.fixture(name="few")
def _few(job: Recipe, build_store, tmp_path: Path) -> Recipe:  # type: ignore[no-untyped-def]
    """The same with fewer pictures, for slow trunks."""
    rows = {"train": 16, "val": NUM_VAL}
    build_store(tmp_path / "few", num_rows=rows, size=SIDE, encoding=Encoding.JPEG)
    return replace(job, data=replace(job.data, store=tmp_path / "few"))


@pytest.fixture(name="try_rung")
def _try_rung(
    make_lab: Callable[..., Lab],
    profile_of: Callable[..., Profile],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Trial]:
    """Try a rung as a climb does, with a profile to which it applies; return its trial.

    A verdict is more than the reason why a trial ended early. Heads on features get no more seeds
    than other trainings, as each seed builds its own trunk.
    """
    monkeypatch.setattr(training_cache, "STACKED_ROUNDS", 1)

    def try_rung(rung: Rung, recipe: Recipe, **facts: Any) -> Trial:
        lab = make_lab(recipe, ImageClassification(recipe.data.store, recipe), num_seeds=2)
        plain: dict[str, Any] = {
            "num_train": len(lab.sources.train),
            "num_val": NUM_VAL if lab.sources.val is None else len(lab.sources.val),
            "is_built_in": True,
            "num_conv2d": 20,
            "num_batchnorm": 20,
            "example_bytes": 3 * SIDE * SIDE,
            "store_encoding": "jpeg",
            "num_cores": 2,
            "bandwidth_bytes_per_s": 1e10,
            "loader_cpu_s": 1e-3,
        }
        epochs = recipe.schedule.max_epochs
        time = TrainingTime(
            epochs=epochs, steps_per_epoch=16, step_s=0.05, num_validations=epochs, validation_s=0.1
        )
        profile = profile_of(time, **plain | facts)
        assert why_not_here(rung, profile, recipe, lab.job.ladder) is None
        tried = with_enabled(rung, profile, recipe) if rung.is_enabler else rung
        result = run_trial(lab, tried, profile, recipe, tried.predict(profile, recipe))
        trial = result.trial
        assert trial.rung == rung.name
        assert trial.verdict.decision in TRIED
        is_kept = trial.verdict.decision is Decision.KEPT
        assert (result.recipe != recipe) == is_kept
        assert not list(lab.cache.glob("trial-*"))
        return trial

    return try_rung


def assert_both_were_timed(trial: Trial) -> None:
    """Check that both have blocks, and that the verdict has bounds: a failed trial has none."""
    assert len(trial.before_s) == len(trial.after_s) >= 8, trial.verdict
    assert trial.before is not None
    assert trial.after is not None
    speed = trial.verdict.speed
    assert speed is not None, trial.verdict
    assert 0 < speed.low <= speed.estimate <= speed.high


def assert_both_were_trained(trial: Trial) -> None:
    assert trial.verdict.num_trainings >= 2
    assert len(trial.before_accuracy) == len(trial.after_accuracy) >= 2
    assert trial.verdict.accuracy is not None


def test_pictures_decoded_once_are_the_same_and_their_decoding_is_charged(
    try_rung: TryRung, job: Recipe
) -> None:
    trial = try_rung(PixelStore(), job)
    assert trial.change == {"data.decode_once": (False, True)}
    assert_both_were_timed(trial)
    assert trial.verdict.exactness == "equal"
    assert trial.before is not None
    assert trial.after is not None
    assert "store" not in trial.before.one_time_s
    assert trial.after.one_time_s["store"] > 0


def test_more_reading_threads_read_the_same(try_rung: TryRung, job: Recipe) -> None:
    trial = try_rung(LoaderThreads(), job)
    assert trial.change == {"loader.threads": (1, 2)}
    assert_both_were_timed(trial)
    assert trial.verdict.exactness == "equal"


@pytest.mark.thorough
def test_large_pictures_decoded_at_a_fraction_are_timed(
    try_rung: TryRung, job: Recipe, photos: Path, tmp_path: Path
) -> None:
    config = PrepareConfig(source=photos, out=tmp_path / "large", size=8, encoding=Encoding.JPEG)
    full = replace(
        job,
        data=replace(job.data, store=prepare(config).folder),
        loader=replace(job.loader, scaled_decode=False),
    )
    trial = try_rung(ScaledDecode(), full, example_bytes=3 * 8 * 8, source_pixels=48 * 40)
    assert trial.change == {"loader.scaled_decode": (False, True)}
    assert_both_were_timed(trial)


def test_pictures_that_are_read_again_take_less_memory_and_are_the_same(
    try_rung: TryRung, job: Recipe
) -> None:
    held = replace(job, data=replace(job.data, where=Where.MEMORY))
    trial = try_rung(Streaming(), held, free_memory_bytes=10**4)
    assert trial.change == {"data.where": ("memory", "stream")}
    assert trial.verdict.exactness == "equal"
    assert trial.verdict.decision is Decision.KEPT, "memory is counted: no machine changes it"


@pytest.mark.thorough
def test_recomputed_activations_are_tried_with_the_batch_that_they_make_possible(
    try_rung: TryRung, job: Recipe
) -> None:
    learns = replace(job, train=TrainMode.ALL, schedule=ScheduleConfig(max_epochs=1))
    trial = try_rung(
        GradientCheckpointing(),
        learns,
        is_trunk_frozen=False,
        step_fixed_s=0.05,
        step_per_example_s=1e-4,
        memory_by_batch={4: 10**8, 8: 2 * 10**8},
        free_memory_bytes=2 * 10**8,
    )
    assert trial.change["device.gradient_checkpointing"] == (False, True)
    assert trial.change["batch.global_batch_size"] == (4, 8)
    assert_both_were_timed(trial)


@pytest.mark.thorough
def test_a_trunk_with_packaged_weights_is_trained_and_timed_next_to_one_without(
    try_rung: TryRung, few: Recipe
) -> None:
    model = ModelConfig(weights=WeightsSource.NONE)  # the one with packaged weights
    trial = try_rung(Pretrained(), replace(few, model=model))
    assert trial.change == {"model.weights": ("none", "packaged")}
    assert_both_were_timed(trial)
    assert_both_were_trained(trial)


@pytest.mark.thorough
def test_a_larger_trunk_of_the_hub_is_trained_and_timed_next_to_the_smaller_one(
    try_rung: TryRung, few: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pretrained weights are packaged for one trunk only: these are random
    small, large = "mobilenetv3_small_050", "mobilenetv3_small_075"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in (small, large):
        put_into_hub(tmp_path / "hub", name)
    model = ModelConfig(name=small, weights=WeightsSource.HUB)
    at_hand = larger_trunks(model)
    assert at_hand == (large,)
    trial = try_rung(LargerModel(), replace(few, model=model), larger_trunks=at_hand)
    assert trial.change == {"model.name": (small, large)}
    assert_both_were_timed(trial)
    assert_both_were_trained(trial)


def put_into_hub(cache: Path, name: str) -> None:
    """Put a timm model's weights where the hub's cache keeps downloads."""
    timm = import_timm()
    folder = cache / f"models--timm--{timm.get_pretrained_cfg(name).hf_hub_id.partition('/')[2]}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    model = cast("nn.Module", timm.create_model(name, pretrained=False))
    save_file(model.state_dict(), snapshot / "model.safetensors")

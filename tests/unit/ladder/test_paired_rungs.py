"""An enabling rung is judged together with what it enables."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest

from stepladder.config.choices import Encoding, WeightsSource, Where
from stepladder.config.options import LadderConfig
from stepladder.config.recipe import ModelConfig, Recipe
from stepladder.ladder.limits.feasibility import why_not_here
from stepladder.ladder.paired_rungs import Together, why_nothing_enabled, with_enabled
from stepladder.ladder.trial import run_trial
from stepladder.records.ladder import Aim, Prediction
from stepladder.records.profile import Profile, Provenance
from stepladder.rungs import Rung
from stepladder.rungs.speed.all_data import AllData
from stepladder.rungs.speed.channels_last import ChannelsLast
from stepladder.rungs.speed.gradient_checkpointing import GradientCheckpointing
from stepladder.rungs.speed.larger_batch import LargerBatch
from stepladder.rungs.speed.streaming import Streaming
from stepladder.task.image_classification import ImageClassification


class Room(Rung):
    """Halve the memory, with steps 1.5 times as long."""

    name: ClassVar[str] = "room"
    level: ClassVar[int] = 7
    aim: ClassVar[Aim] = Aim.MEMORY
    is_enabler: ClassVar[bool] = True

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        time = replace(profile.time, step_s=1.5 * profile.time.step_s)
        return Prediction(
            rung="room", gain=0.7, time=time, memory_frac=0.5, provenance=Provenance.MODELLED
        )

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        device = replace(recipe.device, gradient_checkpointing=True)
        return replace(recipe, device=device)


class Doubled(Rung):
    """Double the batch at a third less time per picture, if memory allows."""

    name: ClassVar[str] = "doubled"
    level: ClassVar[int] = 7

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return "too large" if profile.memory_by_batch[16] > profile.free_memory_bytes else None

    def predict(self, profile: Profile, recipe: Recipe) -> Prediction:
        time = replace(profile.time, step_s=profile.time.step_s / 3)
        return Prediction(rung="doubled", gain=3.0, time=time, provenance=Provenance.MODELLED)

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        return replace(recipe, batch=replace(recipe.batch, global_batch_size=16))


def test_the_first_rung_that_gets_room_is_tried_with_it(profile, recipe) -> None:
    full = replace(profile, memory_by_batch={8: 8 * 10**8, 16: 16 * 10**8})
    assert Doubled().why_not(full, recipe) == "too large"
    rung = with_enabled(Room(), full, recipe, rungs=(ChannelsLast(), Doubled()))
    assert isinstance(rung, Together)
    assert (rung.name, rung.level, rung.aim) == ("room", 7, Aim.TIME)
    assert rung.why_not(full, recipe) is None
    both = rung.apply(full, recipe)
    assert both.device.gradient_checkpointing
    assert both.batch.global_batch_size == 16
    assert rung.variants(full, recipe) == (both,)
    assert rung.predict(full, recipe).gain == 2, "against the time now, not after the first"


class Grown(Doubled):
    """The largest batch that fits in memory."""

    name: ClassVar[str] = "grown"

    def why_not(self, profile: Profile, recipe: Recipe) -> str | None:
        return None

    def apply(self, profile: Profile, recipe: Recipe) -> Recipe:
        memory = profile.memory_by_batch
        fits = [size for size, need in memory.items() if need <= profile.free_memory_bytes]
        return replace(recipe, batch=replace(recipe.batch, global_batch_size=max(fits)))


def test_a_rung_that_does_more_with_room_is_tried_with_it(profile, recipe) -> None:
    full = replace(profile, memory_by_batch={8: 8 * 10**8, 16: 16 * 10**8})
    assert Grown().why_not(full, recipe) is None, "possible without it, but with a smaller batch"
    assert Grown().apply(full, recipe).batch.global_batch_size == 8
    rung = with_enabled(Room(), full, recipe, rungs=(ChannelsLast(), Grown()))
    assert isinstance(rung, Together)
    assert rung.apply(full, recipe).batch.global_batch_size == 16
    assert why_nothing_enabled(Room(), full, recipe, rungs=(Grown(),)) is None
    prediction = rung.predict(full, recipe)
    assert prediction.rung == "room"
    assert prediction.note == "with grown"
    assert prediction.inputs["now_s"] == full.time.total_s


def test_room_that_nothing_needs_is_not_bought(profile, recipe) -> None:
    roomy = replace(profile, memory_by_batch={8: 8, 16: 16})
    refusal = "no other rung needs the freed memory"
    for others in ((), (ChannelsLast(),), (Doubled(), Grown())):
        assert why_nothing_enabled(Room(), roomy, recipe, rungs=others) == refusal
    with_conv = replace(roomy, num_conv2d=1)
    assert why_not_here(ChannelsLast(), with_conv, recipe, LadderConfig()) is None, "not an enabler"


def test_a_second_doubling_is_what_checkpointing_is_for(profile, recipe) -> None:
    sweep = {"step_fixed_s": 0.01, "step_per_example_s": 1e-3, "phases_s": {"forward": 2e-4}}
    memory = {"memory_by_batch": {8: 2 * 10**8, 16: 4 * 10**8}, "free_memory_bytes": 10**9}
    facts = {"is_trunk_frozen": False, "num_conv2d": 64, "num_train": 1000}
    tight = replace(profile, **sweep, **memory, **facts)
    rung, larger = GradientCheckpointing(), LargerBatch()
    assert rung.why_not(tight, recipe) is None
    assert larger.apply(tight, recipe).batch.global_batch_size == 32, "fits as it is"
    both = with_enabled(rung, tight, recipe)
    assert isinstance(both, Together)
    assert both.apply(tight, recipe).batch.global_batch_size == 64
    unknown = replace(tight, num_conv2d=0)
    refusal = why_nothing_enabled(rung, unknown, recipe)
    assert refusal == "the freed memory is not known"


def test_where_nothing_needs_room_a_rung_stays_alone(profile, recipe) -> None:
    roomy = replace(profile, memory_by_batch={8: 8, 16: 16})
    room = Room()
    assert with_enabled(room, roomy, recipe, rungs=(Doubled(),)) is room


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # from torch
def test_reading_each_epoch_is_tried_with_all_data_and_not_alone(
    make_lab, profile, recipe, build_store, tmp_path
) -> None:
    build_store(
        tmp_path / "store", num_rows={"train": 80, "val": 20}, size=32, encoding=Encoding.JPEG
    )
    data = replace(recipe.data, store=tmp_path / "store", where=Where.MEMORY, fraction=0.5)
    model = ModelConfig(name="test_efficientnet", weights=WeightsSource.NONE)
    schedule = replace(recipe.schedule, max_epochs=1)
    recipe = replace(recipe, data=data, model=model, schedule=schedule)
    facts = {"is_built_in": True, "store_encoding": "jpeg", "example_bytes": 3 * 32 * 32}
    memory = {"free_host_bytes": 70 * 3 * 32 * 32}  # for the sample's 40 and 20, not for all
    tight = replace(profile, num_train=40, num_val=20, **facts, **memory)
    assert "all_data" in (why_not_here(Streaming(), tight, recipe, LadderConfig()) or "")
    assert why_not_here(AllData(), tight, recipe, LadderConfig()) is None
    lab = make_lab(recipe, ImageClassification(tmp_path / "store", recipe), num_seeds=2)
    trial = run_trial(lab, AllData(), tight, recipe, AllData().predict(tight, recipe)).trial
    assert trial.change == {"data.fraction": (0.5, 1.0), "data.where": ("memory", "stream")}
    assert trial.verdict.speed is not None, trial.verdict
    assert trial.verdict.accuracy is not None

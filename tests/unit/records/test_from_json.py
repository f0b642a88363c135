from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepladder.errors import DataError
from stepladder.records import to_json
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Interval, Outcome, Prediction, Trial, Verdict
from stepladder.records.profile import Curve, Profile, Provenance, TrainingTime

TIME = TrainingTime(one_time_s={"features": 9.5}, epochs=3, steps_per_epoch=42.2, step_s=0.25)
PREDICTION = Prediction(
    rung="bf16", gain=2.1, time=TIME, provenance=Provenance.REPLAYED, inputs={"ratio": 0.47}
)
TRIAL = Trial(
    rung="bf16",
    level=6,
    change={"device.precision": ("fp32", "bf16"), "batch.global_batch_size": (2, 16)},
    prediction=PREDICTION,
    before=TIME,
    before_s=(1.0, 1.5),
    verdict=Verdict(
        decision=Decision.KEPT,
        reason="kept",
        speed=Interval(estimate=2.2, low=2.1, high=2.4),
    ),
)
OUTCOME = Outcome(
    seed=3,
    fold=None,
    epochs=11.0,
    num_validations=11.0,
    rows=(4, 7),
    losses=(0.5, math.inf),
    hits=(True, False),
    provenance=Provenance.REPLAYED,
)
PROFILE = Profile(
    time=TIME, num_train=675, num_val=57, is_built_in=True, has_head=True, is_trunk_frozen=True,
    is_random_before_head=False, is_pretrained=True, num_conv2d=49, num_batchnorm=49,
    weight_bytes=13_000_000, trainable_bytes=72_000, example_bytes=150_528, device="cpu",
    device_name="Some Processor", num_cores=2, has_cuda=False, has_bf16=True, has_compiler=True,
    free_memory_bytes=2**33, free_disk_bytes=2**35, step_by_batch_s={2: 0.05, 16: 0.25},
    memory_by_batch={2: 1000, 16: 8000}, mfu=None, larger_trunks=("b0",),
    curve=Curve(epochs=2, val_losses=(1.0, 0.9), epochs_to_stop=None,
                provenance=Provenance.REPLAYED),
    provenance={"step_by_batch_s": Provenance.MEASURED},
)  # fmt: skip


@pytest.mark.parametrize(
    "record", [TIME, PREDICTION, TRIAL, OUTCOME, PROFILE], ids=lambda r: type(r).__name__
)
def test_a_record_comes_back_from_disk_as_it_was(record: object) -> None:
    text = json.dumps(to_json(record), allow_nan=False)
    back = from_json(type(record), json.loads(text))
    assert back == record
    assert to_json(back) == to_json(record)


def test_numbers_get_the_type_of_their_field() -> None:
    back = from_json(TrainingTime, {"epochs": 60, "steps_per_epoch": "inf", "step_s": 1})
    assert isinstance(back.epochs, float)
    assert back.steps_per_epoch == math.inf


def test_a_key_of_a_later_version_is_passed_over() -> None:
    value = to_json(TRIAL) | {"colour": "blue"}
    value["verdict"]["mood"] = 3
    assert from_json(Trial, value) == TRIAL


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Interval, {"estimate": 1.0, "low": 0.5}, "Interval.high: the key is missing"),
        (Interval, [1, 2, 3], r"Interval: expected Interval, got \[1, 2, 3\]"),
        (Interval, None, "Interval: expected Interval, got None"),
        (
            Interval,
            {"estimate": "x", "low": 0, "high": 1},
            "Interval.estimate: expected float, got 'x'",
        ),
        (
            Interval,
            {"estimate": True, "low": 0, "high": 1},
            "Interval.estimate: expected float, got True",
        ),
        (
            Verdict,
            {"decision": "perhaps", "reason": ""},
            "Verdict.decision: 'perhaps' is not one of kept, dropped, undecided",
        ),
        (Verdict, {"decision": [], "reason": ""}, "Verdict.decision: .* is not one of"),
        (
            Verdict,
            {"decision": "kept", "reason": "", "speed": {"estimate": 1.0, "low": 1.0}},
            "Verdict.speed.high: the key is missing",
        ),
        (
            Trial,
            to_json(TRIAL) | {"before_s": [1.0, "fast"]},
            r"Trial.before_s\[1\]: expected float, got 'fast'",
        ),
        (
            Trial,
            to_json(TRIAL) | {"change": {"a": [1]}},
            r"Trial.change\['a'\]: expected 2 items, got 1",
        ),
        (
            Profile,
            to_json(PROFILE) | {"memory_by_batch": {"two": 5}},
            "Profile.memory_by_batch: expected int, got 'two'",
        ),
        (
            Profile,
            to_json(PROFILE) | {"num_train": 1.5},
            "Profile.num_train: expected int, got 1.5",
        ),
        (
            Profile,
            to_json(PROFILE) | {"num_val": 10**400},
            "Profile.num_val: expected int, got 1000.*…",
        ),
        (TrainingTime, {"epochs": 10**400, "steps_per_epoch": 1, "step_s": 1}, "expected float"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(kind: type, value: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        from_json(kind, value)


@dataclass(frozen=True, kw_only=True)
class Corner:
    folder: Path
    names: list[str]
    pair: tuple[int, str]
    flag: bool | None = None
    by_level: Mapping[int, tuple[float, ...]] | None = None


def test_paths_lists_pairs_and_nested_mappings_come_back_too() -> None:
    corner = Corner(
        folder=Path("a/b"), names=["x"], pair=(1, "y"), flag=False, by_level={6: (0.5, 1.0)}
    )
    assert from_json(Corner, json.loads(json.dumps(to_json(corner)))) == corner

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepladder.records.faults import FAULTS, Eyes
from stepladder.records.findings import Severity
from stepladder.records.ranks import RankReport
from stepladder.watching.contract import Found, Sound, Unseen
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.ranks import faults, waits
from stepladder.watching.ranks.detectors import RANK_DETECTORS
from stepladder.watching.ranks.seen import (
    HeldBy,
    PaddedSeen,
    RankRecord,
    Ranks,
    RankSeen,
    RateSeen,
    WeightsSeen,
    WrapperSeen,
)

STEPS = (0, 1, 2, 4, 8, 16)


def wrapper(**changes: Any) -> WrapperSeen:
    return WrapperSeen(where="train.py:9", **{"num_ranks": 2, "num_forwards": 20, **changes})


def rank(number: int, drift: float = 0.0, **changes: Any) -> RankSeen:
    """A rank of two that trains two weights, which drift from those of the other by steps."""
    weights = [
        WeightsSeen(step=step, sums=(1.0 + number * drift * step, 2.0), sizes=(10.0, 10.0))
        for step in STEPS
    ]
    given = {
        "has_group": True,
        "names": ("a.weight", "b.weight"),
        "held": (HeldBy.WRAPPER, HeldBy.WRAPPER),
        "shapes": ((4, 4), (4, 4)),
        "num_trained": 32,
        "weights": weights,
        "wrappers": [wrapper()],
        "inputs": {step: step + 0.1 * number for step in range(4)},
        "losses": {step: 1.0 / (step + 1) + 0.1 * number for step in range(1, 9)},
        "batches": [1.0 + number],
        "stepped_at": "train.py:20",
    }
    return RankSeen(rank=number, size=2, run="a", **{**given, **changes})


def ranks(*seen: RankSeen, reports: tuple[RankReport, ...] = ()) -> Ranks:
    own = reports or tuple(RankReport(rank=one.rank, pid=1, num_steps=40) for one in seen)
    records = tuple(RankRecord(report=r, seen=s) for r, s in zip(own, seen, strict=True))
    return Ranks(size=seen[0].size, records=records)


def pair(drift: float = 0.0, **changes: Any) -> Ranks:
    return ranks(rank(0, drift, **changes), rank(1, drift, **changes))


def test_detectors_over_ranks_are_the_other_faults_that_watching_can_find() -> None:
    own = {detector.name for detector in DETECTORS}
    names = [fault.name for fault in FAULTS if Eyes.WATCH in fault.eyes]
    assert [one.name for one in RANK_DETECTORS] == [name for name in names if name not in own]


@pytest.mark.parametrize("detector", RANK_DETECTORS, ids=lambda one: one.name)
def test_a_single_record_is_compared_with_nothing(detector: Any) -> None:
    for seen in (Ranks(size=2, records=()), ranks(rank(0))):
        assert isinstance(detector.look(seen), Unseen)


def test_equal_weights_are_sound() -> None:
    assert isinstance(faults.ranks_differ(pair()), Sound)


def test_rounding_on_another_processor_is_sound() -> None:
    assert isinstance(faults.ranks_differ(pair(drift=1e-6)), Sound)


def test_nan_on_all_ranks_is_not_a_difference() -> None:
    nan = WeightsSeen(step=1, sums=(float("nan"), 2.0), sizes=(float("nan"), 2.0))
    assert isinstance(faults.ranks_differ(pair(weights=[nan])), Sound)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"wrappers": [wrapper(num_forwards=0)]}, "never called"),
        ({"wrappers": [wrapper(num_unsynced=20)]}, "20 of 20 forward passes were inside no_sync()"),
        ({"wrappers": [wrapper(num_unsynced=10)]}, "10 of 20 forward passes were inside no_sync()"),
        ({}, "on one rank only"),
        ({"held": (HeldBy.FROZEN, HeldBy.WRAPPER)}, "required no gradient"),
    ],
)
def test_weights_of_a_wrapper_that_differ_are_an_error(changes: dict[str, Any], words: str) -> None:
    answer = faults.ranks_differ(pair(drift=0.1, **changes))
    assert isinstance(answer, Found)
    assert answer.severity is None  # that of the detector: error
    assert words in answer.evidence
    assert "after 1 step, 1 of 2 weights differ" in answer.evidence


NOT_HELD: dict[str, Any] = {"held": (HeldBy.NOTHING, HeldBy.NOTHING), "wrappers": []}


@pytest.mark.parametrize(("has_sampler", "severity"), [(True, None), (False, Severity.WARNING)])
def test_an_unwrapped_model_is_certain_if_ranks_share_the_data(
    has_sampler: bool, severity: Severity | None
) -> None:
    answer = faults.ranks_differ(pair(drift=0.1, has_sampler=has_sampler, **NOT_HELD))
    assert isinstance(answer, Found)
    assert answer.severity is severity
    assert "not wrapped" in answer.evidence
    assert answer.where == "train.py:20"


@pytest.mark.parametrize(
    "changes",
    [
        {"num_elements": 64},  # weights are averaged now and then
        {"num_elements": 32 * 16},  # gradients are averaged by hand
        {"has_exchange": True},  # model parallelism
        {"has_group": False},  # a model for each rank
        {"library": "horovod"},
        {"num_sharded": 2, "weights": []},
    ],
)
def test_weights_that_may_differ_on_purpose_are_not_compared(changes: dict[str, Any]) -> None:
    answer = faults.ranks_differ(pair(drift=0.1, **{**NOT_HELD, **changes}))
    assert isinstance(answer, Unseen), answer


def test_weights_that_are_averaged_now_and_then_outside_no_sync() -> None:
    seen = pair(drift=0.1, wrappers=[wrapper(num_unsynced=20)], num_elements=64)
    assert isinstance(faults.ranks_differ(seen), Unseen)


def test_different_models_are_not_compared() -> None:
    other = rank(1, 0.1, shapes=((4, 4), (8, 4)))
    assert isinstance(faults.ranks_differ(ranks(rank(0), other)), Unseen)


def test_layers_outside_the_wrapper_are_a_warning() -> None:
    held = (HeldBy.NOTHING, HeldBy.WRAPPER)
    answer = faults.ranks_differ(pair(drift=0.1, held=held))
    assert isinstance(answer, Found)
    assert answer.severity is Severity.WARNING


def test_initial_weights_that_nothing_made_equal() -> None:
    def at(number: int) -> RankSeen:
        weights = [
            WeightsSeen(step=step, sums=(1.0 + number, 2.0), sizes=(10.0, 10.0)) for step in STEPS
        ]
        return rank(number, weights=weights, num_elements=32 * 16, **NOT_HELD)

    answer = faults.ranks_differ(ranks(at(0), at(1)))
    assert isinstance(answer, Found)
    assert "broadcast" in answer.fix
    assert "before the first step" in answer.evidence


SAME: dict[str, Any] = {"inputs": {0: 1.0, 1: 2.0, 2: 3.0}}


def test_ranks_that_read_the_same_data() -> None:
    answer = faults.ranks_read_same_data(pair(**SAME))
    assert isinstance(answer, Found)
    assert "in 3 steps" in answer.evidence


@pytest.mark.parametrize(
    "changes",
    [
        {},  # each reads its own
        {"inputs": {0: 1.0, 1: 1.0, 2: 1.0}},  # a single batch, on purpose
        {**SAME, "wrappers": [wrapper(num_ranks=1)]},  # ranks of one model
        {**SAME, "wrappers": []},
    ],
)
def test_ranks_that_do_not_read_the_same_data(changes: dict[str, Any]) -> None:
    assert isinstance(faults.ranks_read_same_data(pair(**changes)), Sound)


def test_sharded_ranks_that_read_the_same_data() -> None:
    losses = {step: 1.0 / step for step in range(1, 9)}
    changes: dict[str, Any] = {"wrappers": [], "inputs": {}, "whole_mesh": True, "batches": [5.0]}
    assert isinstance(faults.ranks_read_same_data(pair(losses=losses, **changes)), Found)
    assert isinstance(faults.ranks_read_same_data(pair(**changes)), Sound)


def padded(*collectives: str, num: int = 101) -> list[PaddedSeen]:
    return [
        PaddedSeen(
            where="train.py:30",
            num_examples=num,
            num_repeated=1,
            num_ranks=2,
            collectives=collectives,
        )
    ]


@pytest.mark.parametrize(
    ("seen", "severity"),
    [
        (padded("all_reduce"), Severity.WARNING),
        (padded("all_gather", "all_reduce"), Severity.INFO),  # it may cut what it gathers
        (padded(), Severity.INFO),
        (padded("all_reduce", num=50_001), Severity.INFO),  # one of so many
    ],
)
def test_padded_validation_is_a_warning_if_it_is_summed(
    seen: list[PaddedSeen], severity: Severity
) -> None:
    answer = faults.validation_padded(pair(padded=seen))
    assert isinstance(answer, Found)
    assert answer.severity is severity


def test_validation_without_padding_is_sound() -> None:
    assert isinstance(faults.validation_padded(pair()), Sound)


def rate(num_stepped: int, horizon: int) -> list[RateSeen]:
    return [
        RateSeen(
            kind="CosineAnnealingLR", where="train.py:8", num_stepped=num_stepped, horizon=horizon
        )
    ]


@pytest.mark.parametrize(
    ("schedules", "is_found"),
    [
        (rate(80, 40), True),
        (rate(40, 40), False),
        (rate(80, 80), False),  # Accelerate, with the steps of all ranks
        (rate(4, 4), False),  # by epoch
    ],
)
def test_a_schedule_that_steps_once_for_each_rank(
    schedules: list[RateSeen], is_found: bool
) -> None:
    answer = faults.schedule_stepped_per_rank(pair(schedules=schedules))
    assert isinstance(answer, Found) is is_found


def timed(waits_s: tuple[float, float], **phases: tuple[float, float]) -> Ranks:
    """Two ranks with steps of 100 ms."""
    seen = [rank(n, waits=dict.fromkeys(range(10), waits_s[n])) for n in range(2)]
    reports = tuple(
        RankReport(
            rank=n,
            pid=1,
            step_s=0.1,
            exposed_s=waits_s[n],
            exposed_inside_s=waits_s[n],
            phase_s={name: both[n] for name, both in phases.items()},
        )
        for n in range(2)
    )
    return ranks(*seen, reports=reports)


@pytest.mark.parametrize(
    ("phases", "cause"),
    [
        ({"data_wait": (0.01, 0.07), "backward": (0.08, 0.03)}, "input"),
        ({"data_wait": (0.01, 0.01), "backward": (0.08, 0.08)}, "compute"),
        ({"data_wait": (0.01, 0.01), "backward": (0.08, 0.02)}, "other work"),
    ],
)
def test_the_slow_rank_and_its_cause(phases: dict[str, tuple[float, float]], cause: str) -> None:
    answer = waits.slow_rank(timed((0.07, 0.01), **phases))
    assert isinstance(answer, Found)
    assert answer.numbers["rank"] == 1
    assert answer.numbers["cause"] == cause


def test_equal_ranks_are_not_slow() -> None:
    answer = waits.slow_rank(timed((0.05, 0.05), backward=(0.08, 0.08)))
    assert isinstance(answer, Sound)


def test_ranks_that_are_slow_in_turn_are_not_blamed() -> None:
    seen = timed((0.0, 0.0), backward=(0.08, 0.08))
    records = tuple(
        replace(one, seen=replace(one.seen, waits={s: 0.05 * ((s + n) % 2) for s in range(10)}))
        for n, one in enumerate(seen.records)
    )
    assert isinstance(waits.slow_rank(replace(seen, records=records)), Sound)


def test_a_difference_that_no_phase_explains_is_not_reported() -> None:
    answer = waits.slow_rank(timed((0.07, 0.01), data_wait=(0.01, 0.01), backward=(0.09, 0.02)))
    assert isinstance(answer, Found)
    whole = timed((0.07, 0.01), data_wait=(0.02, 0.02), backward=(0.08, 0.03))
    short = tuple(
        replace(one, report=replace(one.report, step_s=0.055 if n else 0.1))
        for n, one in enumerate(whole.records)
    )
    assert isinstance(waits.slow_rank(replace(whole, records=short)), Sound)


@pytest.mark.parametrize(("waits_s", "is_found"), [((0.04, 0.05), True), ((0.01, 0.05), False)])
def test_communication_that_all_ranks_wait_for(
    waits_s: tuple[float, float], is_found: bool
) -> None:
    answer = waits.communication_exposed(timed(waits_s, backward=(0.08, 0.08)))
    assert isinstance(answer, Found) is is_found


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        ({"finds_unused": True, "num_read": 12}, True),
        ({"finds_unused": True, "num_read": 12, "num_with_unused": 1}, False),
        ({"finds_unused": True, "num_read": 5}, False),
        ({"num_read": 12}, False),
    ],
)
def test_a_search_for_unused_weights_in_vain(changes: dict[str, Any], is_found: bool) -> None:
    answer = waits.unused_search(pair(wrappers=[wrapper(**changes)]))
    assert isinstance(answer, Found) is is_found

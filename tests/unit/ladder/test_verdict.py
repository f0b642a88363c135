"""Verdicts from numbers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepladder.config.choices import ClimbAim
from stepladder.config.options import LadderConfig
from stepladder.ladder.verdict import Evidence, judge
from stepladder.records.ladder import Aim, Decision, Exactness, Interval

OPTIONS = LadderConfig()
EXACT = Evidence(aim=Aim.TIME, exactness=Exactness.ROUNDING, found="same to 1e-6")
LEARNT = Evidence(aim=Aim.TIME, exactness=Exactness.STATISTICAL, num_held_out=732)


def interval(low: float, estimate: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high)


@pytest.mark.parametrize(
    ("speed", "decision", "reason"),
    [
        (interval(1.9, 2.0, 2.1), Decision.KEPT, ""),
        (interval(1.001, 1.04, 1.08), Decision.KEPT, ""),
        (
            interval(1.001, 1.02, 1.04),
            Decision.UNDECIDED,
            "faster, but possibly by less than 1.03×",
        ),
        (interval(0.98, 1.04, 1.10), Decision.UNDECIDED, "the noise is larger than the effect"),
        (interval(0.99, 1.0, 1.01), Decision.DROPPED, "speed-up is at most 1.01×"),
        (interval(0.3, 0.4, 0.5), Decision.DROPPED, "slower"),
        (None, Decision.UNDECIDED, "the speed was not measured"),
    ],
)
def test_a_gain_of_time_is_kept_only_beyond_doubt(
    speed: Interval | None, decision: Decision, reason: str
) -> None:
    verdict = judge(replace(EXACT, speed=speed), OPTIONS)
    assert (verdict.decision, verdict.reason) == (decision, reason)
    assert verdict.exactness == "same to 1e-6"


_FASTER = interval(1.24, 1.28, 1.32)
_LIMIT = "worth it up to +28 % per hour"


@pytest.mark.parametrize(
    ("speed", "price", "decision", "reason"),
    [
        (_FASTER, 1.0, Decision.KEPT, ""),
        (_FASTER, None, Decision.KEPT, _LIMIT),
        (
            _FASTER,
            1.06,
            Decision.KEPT,
            f"1.28× as fast at +6 % per hour costs 17 % less; {_LIMIT}",
        ),
        (
            _FASTER,
            2.0,
            Decision.DROPPED,
            f"1.28× as fast at +100 % per hour costs 56 % more; {_LIMIT}",
        ),
        (
            _FASTER,
            1.25,
            Decision.UNDECIDED,
            f"1.28× as fast at +25 % per hour costs 2 % less; {_LIMIT}; the change in cost is "
            "between −5 % and +1 %",
        ),
        (
            interval(1.279, 1.28, 1.281),
            1.26,
            Decision.DROPPED,
            f"1.28× as fast at +26 % per hour costs 2 % less; {_LIMIT}; less than 3 % is not worth "
            "it (ladder.min_gain)",
        ),
        (interval(0.3, 0.4, 0.5), 0.1, Decision.DROPPED, "slower"),
        (
            interval(0.98, 1.04, 1.10),
            None,
            Decision.UNDECIDED,
            "the noise is larger than the effect",
        ),
    ],
)
def test_with_a_price_the_cost_of_the_training_decides(
    speed: Interval, price: float | None, decision: Decision, reason: str
) -> None:
    verdict = judge(replace(EXACT, speed=speed, price=price), OPTIONS)
    assert (verdict.decision, verdict.reason) == (decision, reason)


def test_what_the_budget_left_undecided_says_so() -> None:
    cut = "the budget ran out after 3 timed pairs"
    wide = replace(EXACT, speed=interval(0.5, 1.4, 3.0), cut_short=cut)
    verdict = judge(wide, OPTIONS)
    assert verdict.decision is Decision.UNDECIDED
    assert verdict.reason == f"the noise is larger than the effect; {cut}"
    clear = replace(EXACT, speed=interval(1.9, 2.0, 2.1), cut_short=cut)
    assert judge(clear, OPTIONS).decision is Decision.KEPT


@pytest.mark.parametrize("speed", [interval(1.9, 2.0, 2.1), interval(0.4, 0.5, 0.6)])
def test_fewer_blocks_than_a_verdict_takes_decide_nothing(speed: Interval) -> None:
    cut = "the budget ran out after 2 timed pairs"
    verdict = judge(replace(EXACT, speed=speed, cut_short=cut, is_too_little=True), OPTIONS)
    assert verdict.decision is Decision.UNDECIDED
    assert verdict.reason == f"{cut}; a verdict needs 8"
    assert verdict.speed == speed


@pytest.mark.parametrize(
    ("accuracy", "decision"),
    [
        (interval(-0.009, -0.001, 0.007), Decision.KEPT),
        (interval(-0.03, -0.02, -0.011), Decision.DROPPED),
        (interval(-0.02, 0.0, 0.02), Decision.UNDECIDED),
    ],
)
def test_faster_but_worse_is_not_kept(accuracy: Interval, decision: Decision) -> None:
    fast = replace(LEARNT, speed=interval(4, 5, 6), accuracy=accuracy)
    assert judge(fast, OPTIONS).decision is decision


def test_too_few_examples_are_named() -> None:
    few = replace(
        LEARNT, num_held_out=57, speed=interval(4, 5, 6), accuracy=interval(-0.13, -0.01, 0.11)
    )
    reason = judge(few, OPTIONS).reason
    assert (
        reason
        == "the accuracy may fall by more than 1 point: with 57 held-out examples, the change in "
        "accuracy is known only to ± 12 points"
    )


def test_worse_beyond_doubt_is_dropped_before_its_speed_is_known() -> None:
    verdict = judge(replace(LEARNT, accuracy=interval(-0.3, -0.2, -0.1)), OPTIONS)
    assert verdict.decision is Decision.DROPPED
    assert verdict.reason == "worse: −20.0 points of accuracy"


@pytest.mark.parametrize(
    ("loss", "decision"),
    [
        (interval(-0.1, 0.0, 0.009), Decision.KEPT),
        (interval(0.02, 0.05, 0.09), Decision.DROPPED),
        (interval(-0.1, 0.0, 0.1), Decision.UNDECIDED),
    ],
)
def test_without_classes_the_loss_decides(loss: Interval, decision: Decision) -> None:
    evidence = replace(LEARNT, speed=interval(4, 5, 6), loss=loss, loss_before=1.0)
    assert judge(evidence, OPTIONS).decision is decision


def test_what_was_not_trained_to_its_end_is_undecided() -> None:
    evidence = replace(LEARNT, speed=interval(4, 5, 6), why_no_outcomes="it would take a week")
    verdict = judge(evidence, OPTIONS)
    assert (verdict.decision, verdict.reason) == (Decision.UNDECIDED, "it would take a week")
    assert judge(replace(LEARNT, speed=interval(4, 5, 6)), OPTIONS).decision is Decision.UNDECIDED


def test_slower_is_dropped_even_where_quality_is_unknown() -> None:
    evidence = replace(LEARNT, speed=interval(0.3, 0.4, 0.5), why_no_outcomes="too long")
    assert judge(evidence, OPTIONS).decision is Decision.DROPPED


@pytest.mark.parametrize(
    ("share", "decision"),
    [(0.4, Decision.KEPT), (0.97, Decision.DROPPED), (None, Decision.UNDECIDED)],
)
def test_memory_has_to_fall(share: float | None, decision: Decision) -> None:
    evidence = replace(EXACT, aim=Aim.MEMORY, memory_frac=share)
    assert judge(evidence, OPTIONS).decision is decision


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.64, "peak memory is 64 % of what it was"), (0.003, "uses almost no memory")],
)
def test_what_is_kept_for_memory_says_what_it_takes(share: float, words: str) -> None:
    found = judge(replace(EXACT, aim=Aim.MEMORY, memory_frac=share), OPTIONS)
    assert (found.decision, found.reason) == (Decision.KEPT, words)


def test_a_lower_loss_has_no_price_in_time() -> None:
    found = judge(
        replace(
            LEARNT,
            aim=Aim.ACCURACY,
            accuracy=None,
            loss=interval(-0.3, -0.2, -0.1),
            loss_before=1.0,
            speed=interval(0.5, 0.5, 0.5),
        ),
        OPTIONS,
    )
    assert found.decision is Decision.UNDECIDED
    assert "the time that a lower loss is worth" in found.reason


@pytest.mark.parametrize(
    ("gain", "speed", "decision"),
    [
        (interval(0.005, 0.02, 0.03), 0.6, Decision.KEPT),  # 1.67x the time, 1.5^2 allowed
        (interval(0.005, 0.02, 0.03), 0.4, Decision.DROPPED),  # 2.5x
        (interval(-0.001, 0.02, 0.03), 0.9, Decision.UNDECIDED),
        (interval(-0.05, -0.02, -0.001), 0.9, Decision.DROPPED),
    ],
)
def test_accuracy_is_bought_at_the_users_rate(
    gain: Interval, speed: float, decision: Decision
) -> None:
    evidence = replace(LEARNT, aim=Aim.ACCURACY, accuracy=gain, speed=interval(speed, speed, speed))
    assert judge(evidence, OPTIONS).decision is decision


FOR_ACCURACY = LadderConfig(aim=ClimbAim.ACCURACY)
AS_FAST = interval(0.9, 1.0, 1.1)


def test_where_accuracy_is_the_aim_an_open_verdict_says_how_many_examples_would_close_it() -> None:
    found = interval(-0.01, 0.01, 0.03)
    evidence = replace(LEARNT, aim=Aim.ACCURACY, accuracy=found, speed=AS_FAST)
    reason = judge(evidence, FOR_ACCURACY).reason
    resolved = "with 732 held-out examples, the change in accuracy is known only to ± 2 points"
    assert reason == f"{resolved}; about 2,900 would be needed to show +1.0", "4 x 732"
    assert judge(evidence, OPTIONS).reason == resolved
    no_gain = replace(evidence, accuracy=interval(-0.03, -0.01, 0.01))
    assert "needed to show" not in judge(no_gain, FOR_ACCURACY).reason


@pytest.mark.parametrize(
    ("loss", "decision"),
    [
        (interval(-0.3, -0.2, -0.1), Decision.KEPT),
        (interval(-0.3, -0.1, 0.1), Decision.UNDECIDED),
        (interval(0.0, 0.1, 0.2), Decision.DROPPED),
    ],
)
def test_without_classes_accuracy_is_a_fall_of_the_loss_where_it_is_the_aim(
    loss: Interval, decision: Decision
) -> None:
    evidence = replace(LEARNT, aim=Aim.ACCURACY, loss=loss, loss_before=2.0, speed=AS_FAST)
    assert judge(evidence, FOR_ACCURACY).decision is decision
    assert judge(evidence, OPTIONS).decision is Decision.UNDECIDED


def test_a_fall_of_the_loss_by_a_hundredth_is_worth_a_point() -> None:
    fall = interval(-0.021, -0.02, -0.019)
    evidence = replace(LEARNT, aim=Aim.ACCURACY, loss=fall, loss_before=2.0)
    for slow, decision in ((1 / 1.4, Decision.KEPT), (1 / 1.6, Decision.DROPPED)):
        speed = interval(slow, slow, slow)
        assert judge(replace(evidence, speed=speed), FOR_ACCURACY).decision is decision

"""The probe's promises: at most what a change can give, and nothing if rounds disagree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import stepladder
from stepladder.records.watch import PhaseTime, Replay
from stepladder.watching.advice import AS_IS, next_step
from stepladder.watching.probe import probe
from stepladder.watching.probe.probe import gain_of

EVEN = [1.0] * 9
STEP = (PhaseTime(name="forward", total_s=1.0, share=0.9, device_s=None),)


def replays(*others: Replay) -> tuple[Replay, ...]:
    return (Replay(name=AS_IS, example_s=1.0, num_repeats=9), *others)


def test_twice_the_batch_saves_no_more_than_half() -> None:
    gain, why_not = gain_of("larger_batch", EVEN, [0.48] * 9)
    assert (gain, why_not) == (2.0, None)
    gain, _ = gain_of("larger_batch", EVEN, [0.55, 0.56, 0.57] * 3)
    assert gain == pytest.approx(1 / 0.56)


def test_rounds_beyond_what_a_change_can_give_are_due_to_the_machine() -> None:
    gain, why_not = gain_of("larger_batch", [45.0] * 9, EVEN)
    assert gain is None
    assert why_not is not None
    assert why_not.startswith("inconclusive: in 9 rounds")
    assert why_not.endswith("was between 45.00 and 45.00 times (at most 2 is possible)")


@pytest.mark.parametrize(
    "after_s", [[0.9, 0.5, 1.1] * 3, [0.05, 0.6, 0.9] * 3, [0.8, 0.8, 1.2]], ids=str
)
def test_rounds_that_disagree_give_no_gain(after_s: list[float]) -> None:
    for name in ("mixed_precision", "channels_last", "larger_batch"):
        gain, why_not = gain_of(name, [1.0] * len(after_s), after_s)
        assert gain is None
        assert "inconclusive" in str(why_not)


def test_one_round_that_was_disturbed_decides_nothing() -> None:
    gain, why_not = gain_of("larger_batch", [1.0] * 8 + [45.0], [0.6] * 9)
    assert why_not is None
    assert gain == pytest.approx(1 / 0.6)


def test_what_clearly_gains_nothing_is_known_to() -> None:
    gain, why_not = gain_of("mixed_precision", EVEN, [1.02, 0.99, 1.0] * 3)
    assert why_not is None
    assert gain == pytest.approx(1.0)


def test_advice_goes_by_the_gain_of_the_rounds_and_names_what_is_not_known() -> None:
    known = Replay(name="larger_batch", example_s=0.01, gain=2.0, num_repeats=9)
    advice = next_step(STEP, 100, {}, replays(known))
    step = advice.next
    assert step is not None
    assert not advice.is_bound
    assert step.gain == pytest.approx(1 / (0.1 + 0.9 / 2))
    unknown = Replay(name="larger_batch", why_not="inconclusive: …", num_repeats=9)
    step = next_step(STEP, 100, {}, replays(unknown)).next
    assert step is not None
    assert step.gain is None
    assert step.text.endswith("; larger_batch: inconclusive, as the rounds disagree")


def test_each_round_goes_the_other_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    def run(lane: probe._Lane) -> float:
        order.append(lane.name)
        return 1.0

    monkeypatch.setattr(probe._Lane, "run", run)
    lanes = [probe._Lane(name, torch.nn.Linear(1, 1), None, [], None) for name in "abc"]  # type: ignore[arg-type]
    probe._race(lanes)
    assert "".join(order[:9]) == "abccbaabc"
    assert all(len(lane.example_s) == 9 for lane in lanes)


def test_a_tiny_script_is_promised_no_more_than_a_factor_of_two(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with stepladder.watch(tmp_path / "seen", probe=True, quiet=True) as watching:
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
            optimizer.step()
    assert watching.report is not None
    found = {one.name: one for one in watching.report.replays}
    larger = found["larger_batch"]
    assert larger.num_repeats >= 3
    assert (larger.gain is None) == (larger.why_not is not None)
    assert larger.gain is None or larger.gain <= 2


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({"cores_missing": 0.9, "threads": 2, "waiting": ""}, True),
        ({"cores_missing": 0.02, "threads": 2, "waiting": ""}, False),
        ({"cores_missing": 0.9, "threads": 1, "waiting": ""}, False),
        ({"cores_missing": 0.9, "threads": 2, "waiting": "OMP_WAIT_POLICY=PASSIVE"}, False),
        ({}, False),
    ],
)
def test_threads_that_spin_beside_other_processes_come_first(
    facts: dict[str, object], is_told: bool
) -> None:
    step = next_step(STEP, 100, facts).next
    assert step is not None
    assert (step.rung == "threads_sleep") == is_told
    assert ("GOMP_SPINCOUNT=" in step.text) == is_told

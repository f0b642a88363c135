"""Early stopping: a paired rule that knows the noise of its validation set."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stepladder.config.recipe import StoppingConfig
from stepladder.training.evaluate import Evaluation
from stepladder.training.stopping import EarlyStopping, ValidationRule


def losses(mean: float, n: int = 50, spread: float = 0.0, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=n) * spread
    return (mean + noise - noise.mean()).astype(np.float32)


def test_the_first_validation_is_the_best_and_counts_nothing() -> None:
    judged = EarlyStopping(StoppingConfig()).judge(losses(1.0))
    assert judged.is_best
    assert judged.improvement is None
    assert judged.num_without_improvement == 0


def test_three_equal_validations_exhaust_a_patience_of_three() -> None:
    stopping = EarlyStopping(StoppingConfig(patience=3))
    counts = [stopping.judge(losses(1.0)).num_without_improvement for _ in range(4)]
    assert counts == [0, 1, 2, 3]
    assert stopping.is_exhausted


def test_an_improvement_of_exactly_half_a_percent_counts_and_less_does_not() -> None:
    config = StoppingConfig(min_improvement_frac=0.5)
    for after, count in ((0.5, 0), (0.5625, 1)):  # exact in binary
        stopping = EarlyStopping(config)
        stopping.judge(losses(1.0))
        assert stopping.judge(losses(after)).num_without_improvement == count


@pytest.mark.parametrize("allow_noise", [True, False])
def test_equal_validations_never_count_as_an_improvement_even_where_any_would(
    allow_noise: bool,
) -> None:
    config = StoppingConfig(patience=3, min_improvement_frac=0.0, allow_noise=allow_noise)
    pictures = losses(1.0, spread=0.5)
    for values in (pictures, losses(1.0), losses(0.0), losses(-1.0)):
        stopping = EarlyStopping(config)
        counts = [stopping.judge(values).num_without_improvement for _ in range(4)]
        assert counts == [0, 1, 2, 3]
        assert stopping.is_exhausted


def test_without_noise_a_fall_counts_and_an_equal_mean_of_other_values_does_not() -> None:
    before, swapped, better = [*np.eye(2, 8), np.zeros(8)]
    for allow_noise, counts in ((False, [0, 1, 0]), (True, [0, 0, 0])):
        config = StoppingConfig(min_improvement_frac=0.0, allow_noise=allow_noise)
        stopping = EarlyStopping(config)
        judged = [stopping.judge(v.astype(np.float32)) for v in (before, swapped, better)]
        assert [one.num_without_improvement for one in judged] == counts
        assert [one.is_best for one in judged] == [True, False, True]


def test_without_noise_an_improvement_has_to_be_more_than_the_share() -> None:
    config = StoppingConfig(min_improvement_frac=0.5, allow_noise=False)
    for after, count in ((0.4375, 0), (0.5, 1), (0.5625, 1)):  # exact in binary
        stopping = EarlyStopping(config)
        stopping.judge(losses(1.0))
        assert stopping.judge(losses(after)).num_without_improvement == count


def test_without_noise_it_stops_where_the_rule_of_keras_does() -> None:
    random = np.random.default_rng(3)
    history = [(random.random(40) < share).astype(np.float32) for share in (0.9, 0.6, *[0.5] * 60)]
    stopping = EarlyStopping(StoppingConfig(min_improvement_frac=0.0, allow_noise=False))
    best, waited, num_best = math.inf, 0, 0
    while waited < 3:  # as in the source of its callback, with min_delta=0 and patience=3
        assert not stopping.is_exhausted
        errors = history.pop(0)
        stopping.judge(errors)
        waited += 1
        if errors.mean() < best:
            best, waited, num_best = float(errors.mean()), 0, num_best + 1
    assert stopping.is_exhausted
    assert stopping.best == pytest.approx(best)
    assert num_best > 2


def test_noise_in_the_paired_differences_gives_the_benefit_of_the_doubt() -> None:
    stopping = EarlyStopping(StoppingConfig())
    stopping.judge(losses(1.0))
    judged = stopping.judge(losses(1.0, spread=0.5))  # no gain, one standard error of 7 %
    assert judged.improvement == pytest.approx(0, abs=1e-6)
    assert judged.num_without_improvement == 0


def test_spread_between_pictures_cancels_because_losses_are_paired() -> None:
    stopping = EarlyStopping(StoppingConfig())
    pictures = losses(1.0, spread=0.9, seed=1)
    stopping.judge(pictures)
    assert stopping.judge(pictures).num_without_improvement == 1


def test_a_small_gain_is_the_best_yet_still_counts_against_patience() -> None:
    stopping = EarlyStopping(StoppingConfig())
    stopping.judge(losses(1.0))
    judged = stopping.judge(losses(0.999))
    assert judged.is_best
    assert judged.num_without_improvement == 1


def test_a_loss_that_is_not_finite_is_the_worst_possible() -> None:
    stopping = EarlyStopping(StoppingConfig(patience=1))
    stopping.judge(losses(1.0))
    bad = losses(1.0)
    bad[3] = math.nan
    judged = stopping.judge(bad)
    assert not judged.is_best
    assert stopping.best == 1.0
    assert stopping.is_exhausted


def test_any_finite_loss_is_better_than_a_first_that_was_not() -> None:
    stopping = EarlyStopping(StoppingConfig())
    stopping.judge(np.array([math.inf, 1.0], np.float32))
    judged = stopping.judge(losses(5.0, n=2))
    assert judged.is_best
    assert judged.num_without_improvement == 0


def test_a_perfect_score_cannot_improve_for_ever() -> None:
    stopping = EarlyStopping(StoppingConfig(patience=2))
    for _ in range(3):
        stopping.judge(losses(0.0))
    assert stopping.is_exhausted


def test_turned_off_it_never_stops() -> None:
    stopping = EarlyStopping(StoppingConfig(early=False, patience=1))
    for _ in range(5):
        stopping.judge(losses(1.0))
    assert not stopping.is_exhausted


def test_a_restored_object_judges_as_the_old_one_would() -> None:
    stopping = EarlyStopping(StoppingConfig())
    for mean in (1.0, 0.9, 0.95):
        stopping.judge(losses(mean, spread=0.1, seed=2))
    again = EarlyStopping(StoppingConfig())
    again.restore(*stopping.state())
    for mean in (0.93, 0.85, 0.9):
        assert stopping.judge(losses(mean)) == again.judge(losses(mean))


def test_a_new_stage_counts_afresh_against_the_same_best() -> None:
    stopping = EarlyStopping(StoppingConfig())
    for _ in range(3):
        stopping.judge(losses(1.0))
    stopping.reset_patience()
    judged = stopping.judge(losses(1.1))
    assert judged.num_without_improvement == 1
    assert not judged.is_best


def evaluation(*values: float) -> Evaluation:
    return Evaluation(
        rows=np.arange(len(values)),
        losses=np.array(values, np.float32),
        values={},
        predicted=None,
        probability=None,
        targets=None,
    )


def kept_after(*means: float, restore_best: bool = True) -> int | None:
    """Judge validations with these means, each with its number as its weights."""
    rule = ValidationRule(StoppingConfig(restore_best=restore_best))
    for epoch, mean in enumerate(means):
        weights = {"epoch": torch.tensor(epoch)}
        rule.judge(evaluation(mean, mean), step=epoch, epoch=epoch, weights=lambda w=weights: w)
    chosen = rule.chosen
    return None if chosen is None or chosen.weights is None else int(chosen.weights["epoch"])


def test_the_weights_to_end_with_are_the_first_of_the_lowest_mean() -> None:
    assert kept_after(3.0, 1.0, 2.0, 1.0) == 1
    assert kept_after(3.0, 1.0, restore_best=False) is None
    assert kept_after() is None


def test_weights_without_a_finite_loss_are_kept_until_others_have_one() -> None:
    assert kept_after(math.nan, math.inf) == 0
    assert kept_after(math.nan, 5.0, math.nan) == 1


def test_weights_that_are_not_kept_are_not_copied() -> None:
    rule = ValidationRule(StoppingConfig())
    rule.judge(evaluation(1.0), step=1, epoch=1, weights=dict)

    def copied() -> dict[str, torch.Tensor]:
        raise AssertionError

    rule.judge(evaluation(2.0), step=2, epoch=2, weights=copied)
    rule.pass_over()
    assert rule.num_validations == 3

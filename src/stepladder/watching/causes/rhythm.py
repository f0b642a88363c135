"""Causes in what happens every few steps: validations and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.causes.lines import below, heaviest, level_of, loop_of, shown, ways_of
from stepladder.watching.seen.costs import FORWARD, SampleSeen, Spot

_MIN_SHARE: Final = 0.03
_RARE: Final = 1.05  # validations per epoch
_MOST: Final = 0.5  # of the samples of a line were taken between the phases of steps
_EVALUATES: Final = re.compile(r"valid|eval|test|accura|metric", re.IGNORECASE)
_OFTEN: Final = 0.1  # calls without gradients for each backward
_LEFT: Final = 0.1  # of validations or checkpoints that remain


def rhythm_causes(evidence: Evidence) -> list[Cause]:
    """Name validations and checkpoints that come too often."""
    return [*_validations(evidence), *_in_training_mode(evidence), *_checkpoints(evidence)]


def _validations(evidence: Evidence) -> list[Cause]:
    held = evidence.shares.get("validation", 0.0)
    if not 0 < held < 1:
        return []
    num, epochs = evidence.num_validations, _num_epochs(evidence)
    samples = [one for one in evidence.samples if one.is_validation]
    at = f" ({shown(_step_line(evidence, samples))})" if samples else ""
    head = f"validation takes {percent(held)} of the time{at}"
    every = evidence.num_steps / num if num else 0.0
    often = _often(every)
    if epochs is not None and num > _RARE * epochs + 1:
        share = held * (1 - epochs / num)
        text = f"{head}, {often}: validate once per epoch"
        return [Cause(name="fewer_validations", share=share, text=text)]
    if epochs is None and num and every <= 10:
        text = f"{head}, {often}: validate a tenth as often"
        return [Cause(name="fewer_validations", share=held * (1 - _LEFT), text=text)]
    return [
        Cause(
            name="fewer_validations",
            share=held / 2,
            text=f"{head}: validate half as often",
            is_loose=True,
        )
    ]


def _in_training_mode(evidence: Evidence) -> list[Cause]:
    """Name evaluations of a model in training mode: calls between steps, by a line that says so."""
    samples = [
        one
        for one in evidence.samples
        if one.part == FORWARD
        and not one.is_validation
        and one.outside_s > _MOST * one.followed_s > 0
        and any(_EVALUATES.search(f"{spot.function} {spot.text}") for spot in one.spots)
    ]
    seen = evidence.seen
    num = max((model.num_train_without_grad for model in seen.models), default=0)
    share = evidence.share_of(sum(one.seconds for one in samples))
    if share < _MIN_SHARE or num < _OFTEN * seen.num_backwards:
        return []
    ways = ways_of(evidence.samples)
    spot, _ = heaviest(_to_evaluation(below(one, ways)) for one in samples)
    text = (
        f"{percent(share)} of the time is spent at {shown(spot)} on an evaluation of the model, "
        "between steps of training: evaluate every few hundred steps, or once per epoch"
    )
    return [Cause(name="fewer_validations", share=share * (1 - _LEFT), text=text)]


def _to_evaluation(sample: SampleSeen) -> SampleSeen:
    """Return a sample without the lines that the evaluation has called."""
    found = [
        idx
        for idx, spot in enumerate(sample.spots)
        if _EVALUATES.search(f"{spot.function} {spot.text}")
    ]
    return replace(sample, spots=sample.spots[: found[-1] + 1] if found else sample.spots)


def _often(every: float) -> str:
    return "in each step" if every < 1.5 else f"every {every:.3g} steps"


def _num_epochs(evidence: Evidence) -> float | None:
    """Return the epochs of the steps that were timed; None if no loader has a length."""
    loader = next((one for one in evidence.seen.loaders if one.training), None)
    if loader is None or not loader.num_batches or len(loader.passes) > evidence.num_steps / 2:
        return None
    return max(evidence.num_steps / loader.num_batches, 1.0)


def _checkpoints(evidence: Evidence) -> list[Cause]:
    share, saved = evidence.shares.get("checkpoint", 0.0), evidence.seen.saved
    if share < _MIN_SHARE or not saved:
        return []
    first = saved[-1]
    every = max(evidence.seen.num_steps / len(saved), 1.0)
    epochs = _num_epochs(evidence)
    often = f" {_often(every)}" if epochs is None or len(saved) > epochs + 1 else ""
    text = (
        f"{percent(share)} of the time is spent on saving files{often} ({first.where}): save once "
        "every few epochs or minutes, and the optimizer's state only where training resumes from it"
    )
    return [Cause(name="fewer_checkpoints", share=share * (1 - _LEFT), text=text)]


def _step_line(evidence: Evidence, samples: Sequence[SampleSeen]) -> Spot:
    """Return the line of the training loop that led to samples."""
    loop = loop_of(evidence.samples)
    seconds: dict[Spot, float] = {Spot(where="?", function="", text=""): 0.0}
    for one in samples:
        if one.spots:
            spot = one.spots[level_of(one.spots, loop)]
            seconds[spot] = seconds.get(spot, 0.0) + one.seconds
    return max(seconds, key=lambda spot: seconds[spot])

"""Chains of networks: error and time per stage, and which stage to improve first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stepladder.data.batch import Batch
from stepladder.diagnosis.runs.opened_run import OpenedRun
from stepladder.errors import DataError, UsageError
from stepladder.records.diagnosis import Chain, ModelStage
from stepladder.stats import Estimate, paired_improvement
from stepladder.task.contract import ChainStage
from stepladder.training.setup.build import MEMORY_FORMATS, make_held_out_reader
from stepladder.training.step import autocast

CLEAR = 2.0  # times its noise: smaller gains are ignored


def measure_chain(run: OpenedRun, *, budget_s: float) -> Chain | None:
    """Measure error and time per stage with the best weights on validation; None if no chain.

    The stages are replaced by the ground truth one after the other, where the Task provides it.
    In a chain that makes all earlier stages perfect as well; so the gain of a stage is the
    reduction of the final error beyond that with perfect earlier stages.

    Args:
        budget_s: seconds after which no further batch is evaluated.

    Raises:
        UsageError: if the last stage has no error, or an error is not one value per example.
        DataError: if there is no validation split.
        DataError: if there is no validation split.

    Source: Ng 2018, "Machine Learning Yearning", 53 to 57 ("Error analysis by parts").
    """
    with run.model() as model:
        stages = run.task.stages(model)
        if not stages:
            return None
        if run.sources.val is None:
            raise DataError(
                "the stages of the model cannot be evaluated, because the Task has no validation "
                "split",
                fix="Return validation examples from data(Split.VAL) of the Task.",
            )
        if stages[-1].error is None:
            raise UsageError(
                f"the last stage of the model, {stages[-1].name}, has no error function, so it is "
                "unknown how good its outputs are",
                where=type(run.task).__name__,
                fix="Pass error=... to the last ChainStage, a function that returns one value per "
                "example.",
            )
        run.put(run.weights(is_best=True), model)
        model.eval()
        return _summed(stages, _measured(run, stages, budget_s=budget_s))


@dataclass(kw_only=True)
class _Sums:
    """Sums over batches so far: by stage, seconds and errors; -1 is the unmodified chain."""

    seconds: list[float]
    own: dict[int, list[NDArray[np.float64]]] = field(default_factory=dict)
    end: dict[int, list[NDArray[np.float64]]] = field(default_factory=dict)


def _measured(run: OpenedRun, stages: Sequence[ChainStage], *, budget_s: float) -> _Sums:
    recipe = run.recipe
    reader = make_held_out_reader(run.sources.val, recipe.batch, recipe.loader, recipe.data.where)
    assert reader is not None
    sums = _Sums(seconds=[0.0] * len(stages))
    deadline = time.perf_counter() + budget_s
    warm_up_s = [0.0] * len(stages)
    with closing(reader), torch.inference_mode():
        batches = reader.epoch(0)
        try:
            for idx, batch in enumerate(batches):
                layout = MEMORY_FORMATS[recipe.device.memory_format]
                moved = batch.to(run.device, memory_format=layout)
                with autocast(run.device, recipe.device.precision):
                    _add(sums, stages, moved, run.device)
                if (
                    idx == 0
                ):  # the first batch allocates memory: it counts only if there is no other
                    warm_up_s, sums.seconds = sums.seconds, [0.0] * len(stages)
                if time.perf_counter() > deadline:
                    break
        finally:
            batches.close()
    if not any(sums.seconds):
        sums.seconds = warm_up_s
    return sums


def _add(sums: _Sums, stages: Sequence[ChainStage], batch: Batch, device: torch.device) -> None:
    value: Any = batch.inputs
    for idx, stage in enumerate(stages):
        started = _now(device)
        value = stage.run(value)
        sums.seconds[idx] += _now(device) - started
        if stage.error is not None:
            sums.own.setdefault(idx, []).append(_errors(stage, value, batch))
    sums.end.setdefault(-1, []).append(_errors(stages[-1], value, batch))
    for idx, stage in enumerate(stages[:-1]):
        if stage.truth is None:
            continue
        value = stage.truth(batch)
        for later in stages[idx + 1 :]:
            value = later.run(value)
        sums.end.setdefault(idx, []).append(_errors(stages[-1], value, batch))


def _errors(stage: ChainStage, value: Any, batch: Batch) -> NDArray[np.float64]:
    assert stage.error is not None
    errors = stage.error(value, batch)
    wanted = (batch.ids.numel(),)
    if tuple(errors.shape) != wanted:
        raise UsageError(
            f"error() of the stage {stage.name} returned a tensor of shape {tuple(errors.shape)} "
            f"instead of {wanted}",
            fix="Return one error for each example of the batch.",
        )
    return errors.double().cpu().numpy()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _summed(stages: Sequence[ChainStage], sums: _Sums) -> Chain:
    as_is = np.concatenate(sums.end[-1])
    total_s = sum(sums.seconds)
    found: list[ModelStage] = []
    before = as_is  # with all earlier stages perfect, as far as their truth is known
    for idx, stage in enumerate(stages):
        own = sums.own.get(idx)
        oracle = np.concatenate(sums.end[idx]) if idx in sums.end else None
        gain = None if oracle is None else paired_improvement(before, oracle)
        if idx == len(stages) - 1:  # the remaining error is its own
            oracle, gain = np.zeros_like(before), paired_improvement(before, np.zeros_like(before))
        found.append(
            ModelStage(
                name=stage.name,
                seconds=sums.seconds[idx],
                time_frac=sums.seconds[idx] / total_s,
                own_error=None if own is None else float(np.concatenate(own).mean()),
                end_error=None if oracle is None else float(oracle.mean()),
                gain=None if gain is None else gain.mean,
                gain_sem=None if gain is None else gain.sem,
            )
        )
        before = before if oracle is None else oracle
    return Chain(
        stages=tuple(found),
        end_error=float(as_is.mean()),
        improve_first=_first(found),
        num_examples=len(as_is),
    )


def _first(stages: Sequence[ModelStage]) -> str | None:
    """Return the name of the stage with the largest gain, if that exceeds its noise."""
    known = [
        (stage.name, Estimate(stage.gain, stage.gain_sem))
        for stage in stages
        if stage.gain is not None and stage.gain_sem is not None
    ]
    if not known:
        return None
    name, gain = max(known, key=lambda pair: pair[1].mean)
    return name if gain.mean > CLEAR * gain.sem else None

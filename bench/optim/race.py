"""Several optimizers on one problem: each tuned with the same number of trials, then raced.

All trials of an optimizer are made in a quarter of the steps on one seed, then the two best in all;
a trial that diverges counts. Then each trains from several other seeds. The target is what tuned
Adam reaches at its end, in the median. Seconds are steps times the seconds of a step, which are
measured side by side: in rounds, each optimizer in turn, over as many steps as lie between two
inversions of K-FAC.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn

import stepladder.optim
from bench.log import Log
from bench.rows import write_rows
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.kfac import Loss
from stepladder.optim.optimizers import build_optimizer, set_lr

INVERSE_EVERY: Final = 20  # steps
TARGET: Final = "adam"
_NUM_BEST: Final = 2
_ROUNDS: Final = 8
_STAGES: Final = ("curves", "times")
Trials = Mapping[str, Sequence[Mapping[str, Any]]]


def grid(**options: float | Sequence[float]) -> list[dict[str, float]]:
    """Return all combinations of options; the last one that has several varies fastest."""
    values = [one if isinstance(one, Sequence) else (one,) for one in options.values()]
    return [dict(zip(options, some, strict=True)) for some in product(*values)]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is trained.

    Attributes:
        name: of the results.
        about: a sentence on the model and the data.
        network: returns the model of a seed.
        num: training examples.
        batch: examples of a step.
        every: steps between two measurements.
        loss: returns outputs and the mean loss of a model on some training examples.
        measured: returns the loss of a model that is compared.
        kind: the loss, for K-FAC to draw labels.
        trials: options by optimizer, as many for each.
    """

    name: str
    about: str
    network: Callable[[int], nn.Module]
    num: int
    batch: int
    every: int
    loss: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]]
    measured: Callable[[nn.Module], float]
    kind: Loss
    trials: Trials


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Loss by steps, from the start."""

    steps: list[int]
    losses: list[float]

    def reaches(self, target: float) -> float:
        """Return the first step at which the loss is at most the target."""
        pairs = zip(self.steps, self.losses, strict=True)
        return next((step for step, loss in pairs if loss <= target), math.inf)


class Training:
    """One model in training."""

    def __init__(
        self,
        problem: Problem,
        name: str,
        options: Mapping[str, Any],
        *,
        seed: int,
        num_steps: int,
    ) -> None:
        given = dict(options)
        self.lr = given.pop("lr")
        self.problem = problem
        self.model = problem.network(seed)
        config = OptimizerConfig(name=OptimizerName(name), **given)
        self.optimizer = build_optimizer(config, self.model, lr=self.lr)
        self.num_steps = num_steps
        self.step_number = 0
        self._generator = torch.Generator().manual_seed(seed)

    def step(self) -> None:
        """Take one step; the rate falls to 0 at the end."""
        problem = self.problem
        rows = torch.randint(problem.num, (problem.batch,), generator=self._generator)
        outputs, loss = problem.loss(self.model, rows)
        if isinstance(self.optimizer, stepladder.optim.KFAC):
            self.optimizer.observe(outputs, problem.kind)
        loss.backward()  # type: ignore[no-untyped-call]
        set_lr(self.optimizer, self.lr * (1 - self.step_number / self.num_steps))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1


def train(
    problem: Problem, name: str, options: Mapping[str, Any], *, seed: int, num_steps: int
) -> Curve:
    """Train, and return the loss every few steps."""
    training = Training(problem, name, options, seed=seed, num_steps=num_steps)
    curve = Curve(steps=[], losses=[])
    for step in range(1, num_steps + 1):
        training.step()
        if step % problem.every == 0:
            now = problem.measured(training.model)
            curve.steps.append(step)
            curve.losses.append(now if math.isfinite(now) else math.inf)
            if not math.isfinite(now):
                break
    return curve


def arguments(doc: str | None, *, steps: int) -> argparse.ArgumentParser:
    """Return a parser with the options of a race."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--log", type=Path, default=None, help="default: NAME.log")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--stages", nargs="+", choices=_STAGES, default=_STAGES)
    parser.add_argument("--quick", action="store_true", help="few steps, to try the benchmark")
    return parser


def race(problem: Problem, args: argparse.Namespace) -> None:
    """Tune, train, measure steps, and write the table."""
    num_steps, seeds = (4 * problem.every, 1) if args.quick else (args.steps, args.seeds)
    log = Log(args.log or Path(f"{problem.name}.log"))
    best = {name: _tuned(problem, name, log, num_steps) for name in problem.trials}
    if "curves" in args.stages:
        _record_curves(problem, best, log, num_steps, seeds)
    if "times" in args.stages:
        _record_times(problem, best, log, 1 if args.quick else _ROUNDS)
        _write(problem, best, log, seeds, num_steps)


def _tuned(problem: Problem, name: str, log: Log, num_steps: int) -> Mapping[str, Any]:
    """Return the options with the lowest loss at the end."""

    def end(options: Mapping[str, Any], steps: int) -> float:
        key = {"name": name, "trial": json.dumps(options), "steps": steps}
        found = log.find(**key)
        if found is None:
            curve = train(problem, name, options, seed=0, num_steps=steps)
            found = {**key, "loss": curve.losses[-1]}
            log.add(found)
            print(name, options, steps, f"{found['loss']:.4g}", flush=True)
        return float(found["loss"])

    some = sorted(problem.trials[name], key=lambda options: end(options, num_steps // 4))
    return min(some[:_NUM_BEST], key=lambda options: end(options, num_steps))


def _record_curves(
    problem: Problem, best: Mapping[str, Mapping[str, Any]], log: Log, num_steps: int, seeds: int
) -> None:
    for seed in range(1, seeds + 1):
        for name in best:
            key = {"name": name, "seed": seed, "steps": num_steps}
            if log.find(**key) is None:
                curve = train(problem, name, best[name], seed=seed, num_steps=num_steps)
                log.add({**key, "curve": vars(curve)})
                print(name, seed, f"{curve.losses[-1]:.4g}", flush=True)


def _record_times(
    problem: Problem, best: Mapping[str, Mapping[str, Any]], log: Log, rounds: int
) -> None:
    """Measure the seconds of a step, all optimizers in turn."""
    known: dict[str, Training] = {}
    names = list(best)
    for number in range(1, rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if log.find(name=name, round=number) is not None:
                continue
            if name not in known:
                known[name] = Training(problem, name, best[name], seed=0, num_steps=10**6)
                for _ in range(INVERSE_EVERY):  # buffers are made
                    known[name].step()
            began = time.perf_counter()
            for _ in range(INVERSE_EVERY):
                known[name].step()
            step_s = (time.perf_counter() - began) / INVERSE_EVERY
            log.add({"name": name, "round": number, "step_s": step_s})
            print(name, number, f"{1e3 * step_s:.0f} ms", flush=True)


def _write(
    problem: Problem, best: Mapping[str, Mapping[str, Any]], log: Log, seeds: int, num_steps: int
) -> None:
    curves: dict[str, list[Curve]] = {}
    step_s: dict[str, list[float]] = {}
    for name in best:
        records = [log.find(name=name, seed=seed, steps=num_steps) for seed in range(1, seeds + 1)]
        curves[name] = [Curve(**record["curve"]) for record in records if record is not None]
        step_s[name] = [
            one["step_s"] for one in log.records if one["name"] == name and "round" in one
        ]
    target = median(curve.losses[-1] for curve in curves[TARGET])
    firsts = {name: [curve.reaches(target) for curve in some] for name, some in curves.items()}
    rows = []
    for name, some in curves.items():
        own_s, others_s = median(step_s[name]), median(step_s[TARGET])
        pairs = [
            (own, other)
            for own, other in zip(firsts[name], firsts[TARGET], strict=True)
            if math.isfinite(own) and math.isfinite(other)
        ]
        rows.append(
            {
                "optimizer": name,
                "tuned": ", ".join(f"{key} {value:g}" for key, value in best[name].items()),
                "seconds to the target": _spread([own_s * steps for steps in firsts[name]]),
                "seconds of Adam's": _spread([own_s * a / (others_s * b) for a, b in pairs]),
                "steps to the target": _spread(firsts[name]),
                "steps of Adam's": _spread([a / b for a, b in pairs]),
                "loss at the end": _spread([curve.losses[-1] for curve in some]),
                "ms a step": _spread([1e3 * one for one in step_s[name]]),
            }
        )
    note = (
        f"{problem.about}; batches of {problem.batch}, {num_steps} steps with a rate that falls to "
        f"0; median and range of {seeds} seeds, after {len(problem.trials[TARGET])} trials each. "
        f"The target is the median loss of tuned Adam at its end, {target:.4g}. A ratio is that of "
        "the same seed, where both reached the target."
    )
    write_rows(problem.name, rows, note=note, rounds=log.records, place=log.environment)


def _spread(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "not reached"
    text = f"{median(known):.3g} [{min(known):.3g}, {max(known):.3g}]"
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)}"

"""A deep autoencoder by several optimizers: loss against seconds, and against steps.

    python -m bench.optim.autoencoder [--quick] [--stages curves times]

784-1000-500-250-30 and back, tanh, on drawn digits (`strokes`); the loss of a picture is the sum of
the cross-entropies of its pixels. Every optimizer is tuned with the same number of trials on one
seed: all in a quarter of the steps, then the two best in all; a trial that diverges counts. Then
each trains from several other seeds. The target is what tuned Adam reaches at its end, in the
median. Seconds are steps times the seconds of a step, which are measured side by side: in rounds,
each optimizer in turn, over as many steps as lie between two inversions. The problem, and K-FAC on
it: Martens and Grosse 2015, arXiv:1503.05671, section 13.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepladder.optim
from bench.log import Log
from bench.optim.strokes import digits
from bench.rows import write_rows
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.optimizers import build_optimizer, set_lr

SIZES: Final = (784, 1000, 500, 250, 30)
BATCH: Final = 500
EVERY: Final = 10
INVERSE_EVERY: Final = 20  # steps
NUM_BEST: Final = 2
ROUNDS: Final = 8
TARGET: Final = "adam"
STAGES: Final = ("curves", "times")
TRIALS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "sgd": [
        {"lr": lr, "momentum": momentum}
        for momentum in (0.9, 0.99)
        for lr in (0.001, 0.003, 0.01, 0.03)
    ],
    "adam": [
        {"lr": lr, "beta1": beta1} for beta1 in (0.9, 0.95) for lr in (3e-4, 1e-3, 3e-3, 1e-2)
    ],
    "soap": [
        {"lr": lr, "beta1": beta1, "inverse_every": INVERSE_EVERY // 2}
        for beta1 in (0.9, 0.95)
        for lr in (1e-3, 3e-3, 1e-2, 3e-2)
    ],
    "kfac": [
        {
            "lr": lr,
            "damping": damping,
            "kl_clip": 1.0,
            "factor_every": 2,
            "inverse_every": INVERSE_EVERY,
        }
        for damping in (0.1, 0.3)
        for lr in (0.03, 0.1, 0.3, 1.0)
    ],
}
"""Eight trials each."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Training loss by steps, from the start."""

    steps: list[int]
    losses: list[float]

    def reaches(self, target: float) -> float:
        """Return the first step at which the loss is at most the target."""
        pairs = zip(self.steps, self.losses, strict=True)
        return next((step for step, loss in pairs if loss <= target), math.inf)


def autoencoder(seed: int) -> nn.Sequential:
    """Return the network, with Xavier's weights."""
    torch.manual_seed(seed)
    sizes = [*SIZES, *SIZES[-2::-1]]
    layers: list[nn.Module] = []
    for number, (entering, leaving) in enumerate(pairwise(sizes)):
        layer = nn.Linear(entering, leaving)
        nn.init.xavier_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
        layers.append(layer)
        is_code, is_last = number == len(SIZES) - 2, number == len(sizes) - 2
        if not is_code and not is_last:
            layers.append(nn.Tanh())
    return nn.Sequential(*layers)


def loss_of(model: nn.Module, pictures: Tensor) -> Tensor:
    """Return the mean over pictures of the sum over pixels."""
    logits = model(pictures)
    return F.binary_cross_entropy_with_logits(logits, pictures, reduction="sum") / len(pictures)


class Training:
    """One network in training."""

    def __init__(
        self, name: str, options: Mapping[str, Any], pictures: Tensor, *, seed: int, num_steps: int
    ) -> None:
        given = dict(options)
        self.lr = given.pop("lr")
        self.model = autoencoder(seed)
        config = OptimizerConfig(name=OptimizerName(name), **given)
        self.optimizer = build_optimizer(config, self.model, lr=self.lr)
        self.pictures = pictures
        self.num_steps = num_steps
        self.step_number = 0
        self._generator = torch.Generator().manual_seed(seed)

    def step(self) -> None:
        """Take one step; the rate falls to 0 at the end."""
        rows = torch.randint(len(self.pictures), (BATCH,), generator=self._generator)
        batch = self.pictures[rows]
        logits = self.model(batch)
        if isinstance(self.optimizer, stepladder.optim.KFAC):
            self.optimizer.observe(logits, "binary_cross_entropy")
        loss = F.binary_cross_entropy_with_logits(logits, batch, reduction="sum") / BATCH
        loss.backward()  # type: ignore[no-untyped-call]
        set_lr(self.optimizer, self.lr * (1 - self.step_number / self.num_steps))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1


def train(
    name: str, options: Mapping[str, Any], pictures: Tensor, *, seed: int, num_steps: int
) -> Curve:
    """Train, and return the loss of a fixed thousand pictures every few steps."""
    training = Training(name, options, pictures, seed=seed, num_steps=num_steps)
    curve = Curve(steps=[], losses=[])
    for step in range(1, num_steps + 1):
        training.step()
        if step % EVERY == 0:
            with torch.no_grad():
                now = loss_of(training.model, pictures[:1000]).item()
            curve.steps.append(step)
            curve.losses.append(now if math.isfinite(now) else math.inf)
            if not math.isfinite(now):
                break
    return curve


def main() -> None:
    """Tune, train, measure steps, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, default=Path("autoencoder.log"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--quick", action="store_true", help="few steps, to try the benchmark")
    args = parser.parse_args()
    num_steps, seeds = (40, 1) if args.quick else (args.steps, args.seeds)
    pictures, _ = digits(2000 if args.quick else args.pictures)
    log = Log(args.log)
    best = {name: _tuned(name, pictures, log, num_steps) for name in TRIALS}
    if "curves" in args.stages:
        _record_curves(best, pictures, log, num_steps, seeds)
    if "times" in args.stages:
        _record_times(best, pictures, log, 1 if args.quick else ROUNDS)
        _write(best, log, seeds, num_steps)


def _tuned(name: str, pictures: Tensor, log: Log, num_steps: int) -> Mapping[str, Any]:
    """Return the options with the lowest loss at the end."""

    def end(options: Mapping[str, Any], steps: int) -> float:
        key = {"name": name, "trial": json.dumps(options), "steps": steps}
        found = log.find(**key)
        if found is None:
            curve = train(name, options, pictures, seed=0, num_steps=steps)
            found = {**key, "loss": curve.losses[-1]}
            log.add(found)
            print(name, options, steps, f"{found['loss']:.2f}", flush=True)
        return float(found["loss"])

    some = sorted(TRIALS[name], key=lambda options: end(options, num_steps // 4))[:NUM_BEST]
    return min(some, key=lambda options: end(options, num_steps))


def _record_curves(
    best: Mapping[str, Mapping[str, Any]], pictures: Tensor, log: Log, num_steps: int, seeds: int
) -> None:
    for seed in range(1, seeds + 1):
        for name in best:
            key = {"name": name, "seed": seed, "steps": num_steps}
            if log.find(**key) is None:
                curve = train(name, best[name], pictures, seed=seed, num_steps=num_steps)
                log.add({**key, "curve": vars(curve)})
                print(name, seed, f"{curve.losses[-1]:.2f}", flush=True)


def _record_times(
    best: Mapping[str, Mapping[str, Any]], pictures: Tensor, log: Log, rounds: int
) -> None:
    """Measure the seconds of a step, all optimizers in turn."""
    known: dict[str, Training] = {}
    names = list(best)
    for number in range(1, rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if log.find(name=name, round=number) is not None:
                continue
            if name not in known:
                known[name] = Training(name, best[name], pictures, seed=0, num_steps=10**6)
                for _ in range(INVERSE_EVERY):  # buffers are made
                    known[name].step()
            began = time.perf_counter()
            for _ in range(INVERSE_EVERY):
                known[name].step()
            step_s = (time.perf_counter() - began) / INVERSE_EVERY
            log.add({"name": name, "round": number, "step_s": step_s})
            print(name, number, f"{1e3 * step_s:.0f} ms", flush=True)


def _write(best: Mapping[str, Mapping[str, Any]], log: Log, seeds: int, num_steps: int) -> None:
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
        f"Autoencoder {'-'.join(map(str, SIZES))} on drawn digits, batches of {BATCH}, {num_steps} "
        f"steps with a rate that falls to 0; median and range of {seeds} seeds, after "
        f"{len(TRIALS[TARGET])} trials each. The target is the median loss of tuned Adam at its "
        f"end, {target:.2f}. A ratio is that of the same seed, where both reached the target."
    )
    write_rows("autoencoder", rows, note=note, rounds=log.records, place=log.environment)


def _spread(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "not reached"
    text = f"{median(known):.3g} [{min(known):.3g}, {max(known):.3g}]"
    return text if len(known) == len(values) else f"{text}, {len(known)} of {len(values)}"


if __name__ == "__main__":
    main()

"""A deep autoencoder by several optimizers: loss against seconds, and against steps.

    python -m bench.optim.autoencoder [--quick]

784-1000-500-250-30 and back, tanh, on drawn digits (`strokes`); the loss of a picture is the sum of
the cross-entropies of its pixels. Every optimizer is tuned with the same number of trials: the
lowest loss after all steps on one seed; a trial that diverges counts. Then each trains from several
other seeds, in turn. The target is what tuned Adam reaches at its end, in the median. The problem,
and K-FAC on it: Martens and Grosse 2015, arXiv:1503.05671, section 13.
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
TARGET: Final = "adam"
TRIALS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "sgd": [
        {"lr": lr, "momentum": momentum}
        for momentum in (0.9, 0.99)
        for lr in (0.001, 0.003, 0.01, 0.03)
    ],
    "adam": [
        {"lr": lr, "beta1": beta1} for beta1 in (0.9, 0.95) for lr in (3e-4, 1e-3, 3e-3, 1e-2)
    ],
    "lamb": [
        {"lr": lr, "beta1": beta1} for beta1 in (0.9, 0.95) for lr in (1e-3, 3e-3, 1e-2, 3e-2)
    ],
    "muon": [
        {"lr": lr, "momentum": momentum}
        for momentum in (0.9, 0.95)
        for lr in (1e-3, 3e-3, 1e-2, 3e-2)
    ],
    "soap": [
        {"lr": lr, "beta1": beta1, "inverse_every": 10}
        for beta1 in (0.9, 0.95)
        for lr in (1e-3, 3e-3, 1e-2, 3e-2)
    ],
    "kfac": [
        {"lr": lr, "damping": damping, "kl_clip": 1.0, "factor_every": 2, "inverse_every": 20}
        for damping in (1e-2, 1e-1)
        for lr in (0.01, 0.03, 0.1, 0.3)
    ],
}
"""Eight trials each."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Training loss by steps.

    Attributes:
        steps, seconds, losses: of each measurement; seconds are those of training only.
    """

    steps: list[int]
    seconds: list[float]
    losses: list[float]

    def reaches(self, target: float, values: Sequence[float]) -> float:
        """Return the first of the values at which the loss is at most the target."""
        pairs = zip(values, self.losses, strict=True)
        return next((value for value, loss in pairs if loss <= target), math.inf)


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


def train(
    name: str, options: Mapping[str, Any], pictures: Tensor, *, seed: int, num_steps: int
) -> Curve:
    """Train, and return the loss of a fixed thousand pictures every few steps."""
    model = autoencoder(seed)
    given = dict(options)
    lr = given.pop("lr")
    config = OptimizerConfig(name=OptimizerName(name), **given)
    optimizer = build_optimizer(config, model, lr=lr)
    generator = torch.Generator().manual_seed(seed)
    fixed = pictures[:1000]
    curve = Curve(steps=[], seconds=[], losses=[])
    spent_s = 0.0
    for step in range(1, num_steps + 1):
        rows = torch.randint(len(pictures), (BATCH,), generator=generator)
        began = time.perf_counter()
        batch = pictures[rows]
        logits = model(batch)
        if isinstance(optimizer, stepladder.optim.KFAC):
            optimizer.observe(logits, "binary_cross_entropy")
        loss = F.binary_cross_entropy_with_logits(logits, batch, reduction="sum") / BATCH
        loss.backward()  # type: ignore[no-untyped-call]
        set_lr(optimizer, lr * (1 - (step - 1) / num_steps))
        optimizer.step()
        optimizer.zero_grad()
        spent_s += time.perf_counter() - began
        if step % EVERY == 0:
            with torch.no_grad():
                now = loss_of(model, fixed).item()
            curve.steps.append(step)
            curve.seconds.append(spent_s)
            curve.losses.append(now if math.isfinite(now) else math.inf)
            if not math.isfinite(now):
                break
    return curve


def main() -> None:
    """Tune, train, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, default=Path("autoencoder.log"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pictures", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="few steps, to try the benchmark")
    args = parser.parse_args()
    num_steps, seeds = (20, 1) if args.quick else (args.steps, args.seeds)
    pictures, _ = digits(2000 if args.quick else args.pictures)
    log = Log(args.log)
    best = {name: _tuned(name, pictures, log, num_steps) for name in TRIALS}
    names = list(best)
    for seed in range(1, seeds + 1):
        for name in names[seed % len(names) :] + names[: seed % len(names)]:
            key = {"name": name, "seed": seed, "steps": num_steps}
            if log.find(**key) is None:
                curve = train(name, best[name], pictures, seed=seed, num_steps=num_steps)
                log.add({**key, "curve": vars(curve)})
                print(
                    name, seed, f"{curve.losses[-1]:.2f}", f"{curve.seconds[-1]:.0f} s", flush=True
                )
    _write(best, log, seeds, num_steps)


def _tuned(name: str, pictures: Tensor, log: Log, num_steps: int) -> Mapping[str, Any]:
    """Return the options with the lowest loss at the end."""
    ends = []
    for options in TRIALS[name]:
        key = {"name": name, "trial": json.dumps(options), "steps": num_steps}
        found = log.find(**key)
        if found is None:
            curve = train(name, options, pictures, seed=0, num_steps=num_steps)
            found = {**key, "loss": curve.losses[-1] if len(curve.losses) else math.inf}
            log.add(found)
            print(name, options, f"{found['loss']:.2f}", flush=True)
        ends.append(float(found["loss"]))
    return TRIALS[name][min(range(len(ends)), key=ends.__getitem__)]


def _write(best: Mapping[str, Mapping[str, Any]], log: Log, seeds: int, num_steps: int) -> None:
    curves: dict[str, list[Curve]] = {}
    for name in best:
        records = [log.find(name=name, seed=seed, steps=num_steps) for seed in range(1, seeds + 1)]
        curves[name] = [Curve(**record["curve"]) for record in records if record is not None]
    target = median(curve.losses[-1] for curve in curves[TARGET])
    rows = []
    for name, some in curves.items():
        steps = [curve.reaches(target, curve.steps) for curve in some]
        seconds = [curve.reaches(target, curve.seconds) for curve in some]
        others = [curve.reaches(target, curve.seconds) for curve in curves[TARGET]]
        ratios = [
            own / other
            for own, other in zip(seconds, others, strict=True)
            if math.isfinite(own) and math.isfinite(other)
        ]
        rows.append(
            {
                "optimizer": name,
                "tuned": ", ".join(f"{key} {value:g}" for key, value in best[name].items()),
                "seconds to the target": _spread(seconds),
                "of Adam's": _spread(ratios),
                "steps to the target": _spread(steps),
                "loss at the end": _spread([curve.losses[-1] for curve in some]),
                "ms a step": _spread([1e3 * one.seconds[-1] / one.steps[-1] for one in some]),
            }
        )
    note = (
        f"Autoencoder {'-'.join(map(str, SIZES))} on drawn digits, batches of {BATCH}, {num_steps} "
        f"steps with a rate that falls to 0; median and range of {seeds} seeds, after "
        f"{len(TRIALS[TARGET])} trials each. The target is the median loss of tuned Adam at its "
        f"end, {target:.2f}."
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

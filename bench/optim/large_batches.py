"""Larger batches at the same number of epochs, by optimizer and by the rule for the learning rate.

    python -m bench.optim.large_batches [--quick]

50,000 drawn digits (`strokes`) under noise that stays with each picture; a network of
784-256-128-10. SGD, LARS and LAMB are tuned at a batch of 32, with the same number of trials on one
seed, by the loss on other digits. Then the batch grows to 8,192, and the rate by the linear rule,
the square root, or, for SGD, AdaScale; all with a cosine to 0, and with an epoch of warm-up where
the rung `larger_batch` would take one. AdaScale has no warm-up, and takes more epochs by itself.
Sharpness is the eigenvalue of the Hessian of the training loss at the end, the largest in size.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.log import Log
from bench.optim.strokes import digits
from bench.rows import write_rows
from stepladder.config.choices import LrRule, OptimizerName, ScheduleKind
from stepladder.config.recipe import BatchConfig, OptimizerConfig, ScheduleConfig
from stepladder.optim.optimizers import build_optimizer, set_lr
from stepladder.optim.schedule import base_lr, lr_at
from stepladder.optim.table import spec_of
from stepladder.parallel.world import ALONE
from stepladder.training.gain import GainMeter, gain_meter

BASE: Final = 32
BATCHES: Final = (256, 2048, 8192)
RULES: Final = {
    "sgd": (LrRule.NONE, LrRule.LINEAR, LrRule.SQRT, LrRule.ADASCALE),
    "lars": (LrRule.LINEAR, LrRule.SQRT),
    "lamb": (LrRule.LINEAR, LrRule.SQRT),
}
RATES: Final = {
    "sgd": (0.003, 0.01, 0.03, 0.1, 0.3),
    "lars": (0.3, 1.0, 3.0, 10.0, 30.0),
    "lamb": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}
NOISE: Final = 0.7
_PARTS: Final = 8
_MAX_GROWN: Final = 4  # AdaScale's epochs, of those planned
_SHARP_ON: Final = 2000
_ITERATIONS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Data:
    """Pictures and digits to train on, and to judge by."""

    x: Tensor
    y: Tensor
    val_x: Tensor
    val_y: Tensor


def made(num: int) -> Data:
    """Return the examples."""
    x, y = digits(num + num // 5)
    x = x + NOISE * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return Data(x=x[:num], y=y[:num], val_x=x[num:], val_y=y[num:])


def network(seed: int) -> nn.Module:
    """Return the network."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def train(name: str, batch: BatchConfig, data: Data, *, seed: int, epochs: int) -> dict[str, float]:
    """Train, and return what came out; a loss that is not finite ends it."""
    model, size, num = network(seed), batch.global_batch_size, len(data.x)
    optimizer = build_optimizer(OptimizerConfig(name=OptimizerName(name)), model, lr=1.0)
    meter = gain_meter(batch, optimizer, ALONE)
    base, growth = base_lr(batch), base_lr(batch) / batch.lr
    needs_warmup = spec_of(OptimizerName(name)).batch_rule.needs_warmup(growth)
    per_epoch = math.ceil(num / (size if meter is None else BASE))
    warmup = per_epoch if needs_warmup else 0
    schedule = ScheduleConfig(kind=ScheduleKind.COSINE, max_epochs=epochs, warmup_steps=warmup)
    generator = torch.Generator().manual_seed(seed)
    done, steps, passed, loss = 0.0, 0, 0, torch.zeros(())
    while done < epochs * per_epoch and passed < _MAX_GROWN * epochs:
        for rows in torch.randperm(num, generator=generator).split(size):
            gain = 1.0 if meter is None else meter.gain.value
            lr = gain * lr_at(done, base=base, schedule=schedule, steps_per_epoch=per_epoch)
            set_lr(optimizer, lr)
            loss = _step(model, data, rows, optimizer, meter)
            done, steps = done + gain, steps + 1
        passed += 1
        if not math.isfinite(loss.item()):
            return {"loss": math.inf, "accuracy": 0.1, "sharpness": math.inf, "epochs": passed}
    with torch.no_grad():
        logits = model(data.val_x)
    return {
        "loss": F.cross_entropy(logits, data.val_y).item(),
        "accuracy": (logits.argmax(1) == data.val_y).float().mean().item(),
        "sharpness": sharpness(model, data.x[:_SHARP_ON], data.y[:_SHARP_ON]),
        "epochs": passed,
        "steps": steps,
    }


def _step(
    model: nn.Module,
    data: Data,
    rows: Tensor,
    optimizer: torch.optim.Optimizer,
    meter: GainMeter | None,
) -> Tensor:
    if meter is not None:
        meter.begin()
    total = torch.zeros(())
    for part in rows.chunk(1 if meter is None else _PARTS):
        loss = F.cross_entropy(model(data.x[part]), data.y[part], reduction="sum") / len(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        total = total + loss.detach()
        if meter is not None:
            meter.end_part(len(part))
    if meter is not None:
        meter.end(num=len(rows), loss_scale=lambda: None)
    optimizer.step()
    optimizer.zero_grad()
    return total


def sharpness(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the eigenvalue of the Hessian of the mean loss that is largest in size.

    By power iteration.
    """
    weights = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, weights, create_graph=True)
    torch.manual_seed(0)
    direction, value = [torch.randn_like(weight) for weight in weights], 0.0
    for _ in range(_ITERATIONS):
        norm = torch.nn.utils.get_total_norm(direction)
        direction = [one / norm for one in direction]
        along = torch.stack([(a * b).sum() for a, b in zip(slopes, direction, strict=True)]).sum()
        turned = torch.autograd.grad(along, weights, retain_graph=True)
        value = float(sum((a * b).sum() for a, b in zip(turned, direction, strict=True)))
        direction = list(turned)
    return value


def main() -> None:
    """Tune, train, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, default=Path("large_batches.log"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pictures", type=int, default=50_000)
    parser.add_argument("--quick", action="store_true", help="few pictures, to try the benchmark")
    args = parser.parse_args()
    epochs, seeds, num = args.epochs, args.seeds, args.pictures
    if args.quick:
        epochs, seeds, num = 1, 1, 4000
    data, log = made(num), Log(args.log)

    def result(name: str, batch: BatchConfig, seed: int) -> dict[str, float]:
        key = {
            "name": name,
            "batch": batch.global_batch_size,
            "rule": str(batch.lr_rule),
            "lr": batch.lr,
            "seed": seed,
            "epochs": epochs,
        }
        found = log.find(**key)
        if found is None:
            found = {**key, "found": train(name, batch, data, seed=seed, epochs=epochs)}
            log.add(found)
            print(json.dumps(found), flush=True)
        return dict(found["found"])

    def batch_of(size: int, rule: LrRule, lr: float) -> BatchConfig:
        return BatchConfig(global_batch_size=size, base_batch_size=BASE, lr_rule=rule, lr=lr)

    best = {}
    for name, rates in RATES.items():
        ends = [result(name, batch_of(BASE, LrRule.NONE, lr), 0)["loss"] for lr in rates]
        best[name] = rates[min(range(len(ends)), key=ends.__getitem__)]
    rows = []
    for name, rules in RULES.items():
        cases = [(BASE, LrRule.NONE), *((size, rule) for size in BATCHES for rule in rules)]
        for size, rule in cases:
            batch = batch_of(size, rule, best[name])
            found = [result(name, batch, seed) for seed in range(1, seeds + 1)]
            rows.append(_row(name, batch, found))
    note = (
        f"{num:,} noisy drawn digits, {epochs} epochs, mean of {seeds} seeds with its standard "
        f"error; rates tuned at a batch of {BASE} from {len(RATES['sgd'])} each. AdaScale ends "
        f"when its steps are worth as many of {BASE} examples, after at most {_MAX_GROWN} times "
        "the epochs."
    )
    write_rows("large_batches", rows, note=note, rounds=log.records, place=log.environment)


def _row(name: str, batch: BatchConfig, found: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    return {
        "optimizer": name,
        "batch": f"{batch.global_batch_size:,}",
        "rule": "tuned" if batch.global_batch_size == BASE else str(batch.lr_rule),
        "rate": f"{base_lr(batch):.3g}",
        "loss on validation": _mean([one["loss"] for one in found], 3),
        "accuracy": _mean([100 * one["accuracy"] for one in found], 1),
        "sharpness": _mean([one["sharpness"] for one in found], 1),
        "epochs": _mean([float(one["epochs"]) for one in found], 1),
    }


def _mean(values: Sequence[float], digits_: int) -> str:
    known = [value for value in values if math.isfinite(value)]
    if len(known) < len(values):
        return f"diverged in {len(values) - len(known)} of {len(values)}"
    middle = mean(known)
    spread = math.sqrt(sum((one - middle) ** 2 for one in known) / max(len(known) - 1, 1))
    return f"{middle:.{digits_}f} ± {spread / math.sqrt(len(known)):.{digits_}f}"


if __name__ == "__main__":
    main()

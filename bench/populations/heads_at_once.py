"""64 heads in one program, against 64 heads in turn.

    python -m bench.populations.heads_at_once [STORE] [--log FILE]

An epoch of linear heads on the demo's features, each with its own learning rate, decay and order of
examples. In turn, each is a plain PyTorch loop on the features in memory: `nn.Linear`,
`cross_entropy`, and the same optimizer, with its fused kernel where there is one. Rotated rounds;
times are those of one epoch of all heads.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from bench.log import Log
from bench.populations.features import Features, arguments, features_of, genes_for
from bench.rows import write_rows
from stepladder.config.recipe import OptimizerConfig
from stepladder.data.order.order_choice import order_of
from stepladder.optim.optimizers import build_optimizer, step_function
from stepladder.populations.genes import Gene, Value, applied
from stepladder.populations.selection import first_values
from stepladder.stats.speed import speedup_interval

NUM = 64
BATCHES = (16, 64)
ROUNDS = 9


def at_once(features: Features, genes: tuple[Gene, ...], values: list[tuple[Value, ...]]) -> float:
    """Return the seconds of an epoch of all heads in one program."""
    members = features.members(NUM, genes=genes, seed=0)
    members.train(values, features.recipe.batch.global_batch_size)  # the first step is slower
    start = time.perf_counter()
    members.train(values, features.num_train)
    return time.perf_counter() - start


def in_turn(features: Features, genes: tuple[Gene, ...], values: list[tuple[Value, ...]]) -> float:
    """Return the seconds of an epoch of all heads, one after the other."""
    inputs, targets = features.splits["train"]
    size, num = features.recipe.batch.global_batch_size, features.num_train
    total = 0.0
    for seed, one in enumerate(values):
        recipe = applied(features.recipe, genes, one)
        torch.manual_seed(seed)
        head = nn.Sequential(
            nn.Dropout(recipe.head.dropout), nn.Linear(inputs.shape[1], len(features.task.classes))
        )
        config = OptimizerConfig(weight_decay=recipe.optimizer.weight_decay, fused=True)
        optimizer = build_optimizer(config, head, lr=recipe.batch.lr)
        step = step_function(optimizer)
        order = order_of(recipe.data, features.sources.train, seed=seed)
        smoothing = recipe.loss.label_smoothing
        start = time.perf_counter()
        rows = torch.from_numpy(order.samples(0, 0, num))
        for at in rows.split(size):  # type: ignore[no-untyped-call]
            loss = F.cross_entropy(head(inputs[at]), targets[at], label_smoothing=smoothing)
            loss.backward()  # type: ignore[no-untyped-call]
            step()
            optimizer.zero_grad()
        total += time.perf_counter() - start
    return total


ARMS = {"at once": at_once, "in turn": in_turn}


def main() -> None:
    """Time both arms, and write the results."""
    parser = arguments(__doc__)
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    log = Log(args.log or Path(tempfile.mkdtemp()) / "log.jsonl")
    of_store = features_of(args.store)
    for batch in BATCHES:
        features = of_store.with_batch(batch)
        genes = genes_for(features.recipe)
        for has_dropout in (False, True):
            values = list(first_values(genes, NUM, seed=0))
            if not has_dropout:
                values = [(*one[:2], 0.0, *one[3:]) for one in values]
            for number in range(ROUNDS):
                for arm in list(ARMS) if number % 2 else list(ARMS)[::-1]:
                    key = {"batch": batch, "dropout": has_dropout, "round": number, "arm": arm}
                    if log.find(**key) is None:
                        log.add({**key, "seconds": ARMS[arm](features, genes, values)})
    rows = [_row(log, batch, has_dropout) for batch in BATCHES for has_dropout in (False, True)]
    goal = all(float(row["at once, times as fast"].split("x")[0]) >= 5 for row in rows)
    note = (
        f"An epoch of {NUM} linear heads on the demo's features, each with its own learning rate, "
        "decay, label smoothing, order and, where it says so, dropout: in one program, and in turn "
        f"by a plain PyTorch loop. Medians of {ROUNDS} rounds in turn, with the 95 % interval of "
        f"the ratio. Goal: 5 times as fast; {'met' if goal else 'missed in some rows'}."
    )
    write_rows("heads_at_once", rows, note=note, rounds=log.records, place=log.environment)


def _row(log: Log, batch: int, has_dropout: bool) -> dict[str, Any]:
    of = {
        arm: [
            r["seconds"]
            for r in log.records
            if (r.get("arm"), r.get("batch"), r.get("dropout")) == (arm, batch, has_dropout)
        ]
        for arm in ARMS
    }
    speed = speedup_interval(of["in turn"], of["at once"], confidence=0.95)
    return {
        "batch": batch,
        "dropout": "yes" if has_dropout else "no",
        "in turn": f"{sorted(of['in turn'])[ROUNDS // 2]:.2f} s",
        "at once": f"{sorted(of['at once'])[ROUNDS // 2]:.2f} s",
        "at once, times as fast": f"{speed.estimate:.1f}x [{speed.low:.1f}, {speed.high:.1f}]",
    }


if __name__ == "__main__":
    main()

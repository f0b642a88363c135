"""Compare weights: trainings with every optimizer end with the same bits."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

from bench.held_fast.checkout import Checkout, at_most, differences
from bench.held_fast.pictures import TRUNK, write_plain, write_trunk

OPTIMIZERS = ("sgd", "adam", "adamw", "nadam")
PRECISIONS = ("fp32", "bf16")
SEEDS = (0, 1)
NUM_STEPS = 30
BODIES: dict[str, dict[str, Any]] = {
    "head": {"train": "head", "features.cached": True},
    "conv": {"train": "all", "batch.global_batch_size": 4},  # bf16 is slow on most CPUs
}
EXTRAS: dict[str, dict[str, Any]] = {
    "stages": {"train": "head_then_all", "augment.flip": True, "augment.crop": 0.5},
    "cosine": {"train": "all", "schedule.kind": "cosine", "schedule.warmup_steps": 5},
    "accumulated": {"train": "all", "batch.micro_batch_size": 4, "optimizer.clip_norm": 0.5},
    "smoothed": {"train": "head", "loss.label_smoothing": 0.1, "head.dropout": 0.3},
    "hidden": {"train": "head", "head.hidden": 16, "features.cached": True, "head.dropout": 0.2},
    "views": {"features.cached": True, "features.cached_views": 2, "augment.flip": True},
    "mixed": {"train": "all", "augment.mixup_alpha": 0.2, "augment.randaugment_ops": 2},
    "decayed": {"train": "all", "optimizer.weight_decay": 0.1, "batch.lr_rule": "sqrt"},
    "checkpointed": {"train": "all", "device.gradient_checkpointing": True},
    "folded": {"train": "head", "model.fold_batchnorm": True},
    "channels_last": {"train": "all", "device.memory_format": "channels_last"},
    "windowed": {"train": "all", "data.order": "windowed", "data.window_rows": 16},
    "streamed": {"train": "head", "data.where": "stream", "loader.threads": 2},
    "stopped": {"train": "all", "stopping.early": True, "schedule.max_epochs": 40, "batch.lr": 0.1},
    "half": {**BODIES["conv"], "data.fraction": 0.5, "device.precision": "bf16"},
}
SHARED: dict[str, Any] = {
    "model.name": "test_resnet",
    "model.weights": TRUNK,
    "schedule.max_steps": NUM_STEPS,
    "stopping.early": False,
    "run.checks": "off",
    "device.threads": 1,
    "run.checkpoint_every_s": 1e6,  # otherwise the output of a slow run depends on timing
}


def compare_weights(old: Checkout, new: Checkout, folder: Path) -> tuple[list[str], list[str]]:
    """Train with each, and compare every tensor of every checkpoint and every metric.

    Returns:
        (differences, notes).
    """
    jobs = _jobs()
    write_plain(folder / "pictures", 64)
    write_trunk(folder, "test_resnet")
    old.require("prepare", "pictures", "--out", "store", "--quiet", "--size", "32", cwd=folder)
    results: dict[str, Any] = {}
    for checkout in (old, new):
        given = {"store": str(folder / "store"), "folder": str(folder / checkout.name)}
        results[checkout.name] = checkout.probe("trainings", {**given, "jobs": jobs}, cwd=folder)
    return _compare(jobs, results)


def compare_accuracies(
    old: Checkout, new: Checkout, folder: Path, *, stores: list[Path]
) -> tuple[list[str], list[str]]:
    """Train a head on stores of photographs with three seeds with each, and compare all results.

    Returns:
        (differences, notes).
    """
    jobs = {f"seed{seed}": {"seed": seed, "features.cached": True} for seed in range(3)}
    found, notes = [], []
    for number, store in enumerate(stores):
        results: dict[str, Any] = {}
        for checkout in (old, new):
            copy = folder / f"{number}-{checkout.name}"  # features are written next to a store
            shutil.copytree(store, copy / "store")
            given = {"store": str(copy / "store"), "folder": str(copy / "runs"), "jobs": jobs}
            results[checkout.name] = checkout.probe("trainings", given, cwd=folder)
        more, _ = _compare(jobs, results)
        found += [f"{store}: {line}" for line in more]
        tests = [result["summary"]["test_accuracy"] for result in results["new"].values()]
        notes.append(f"{store.parent.name}: {', '.join(f'{test:.4f}' for test in tests)}")
    return found, notes


def _jobs() -> dict[str, dict[str, Any]]:
    kinds = itertools.product(BODIES, OPTIMIZERS, PRECISIONS, (False, True), SEEDS)
    jobs = {
        f"{body}-{name}-{precision}-{'fused' if fused else 'plain'}-{seed}": {
            **SHARED,
            **BODIES[body],
            "optimizer.name": name,
            "device.precision": precision,
            "optimizer.fused": fused,
            "seed": seed,
        }
        for body, name, precision, fused, seed in kinds
    }
    return jobs | {name: {**SHARED, **extra} for name, extra in EXTRAS.items()}


def _compare(
    jobs: dict[str, Any], results: dict[str, dict[str, Any]]
) -> tuple[list[str], list[str]]:
    found, num_tensors, refused = [], 0, []
    for name in jobs:
        before, after = results["old"][name], results["new"][name]
        found += at_most(differences(before, after, name), 4)
        num_tensors += len(after.get("tensors", ()))
        if "error" in before and "error" in after:
            refused.append(f"{name}: {after['error']}")
        elif not before.get("tensors"):
            found.append(f"{name}: the old run left no weights")
    notes = [f"{len(jobs)} trainings, {num_tensors:,} tensors", *at_most(refused)]
    return found, notes

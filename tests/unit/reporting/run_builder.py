"""Builds run folders as training writes them, with plausible curves."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

FRUIT = (
    "Apple", "Aubergine", "Banana", "Cabbage", "Citrus", "Cucumber", "Garlic",
    "Ginger", "Kiwi", "Leek", "Melon", "Milk", "Mushroom", "Oatghurt",
)  # fmt: skip
NUM_VAL = 57
STEPS_PER_EPOCH = 43


def build_run(
    folder: Path,
    *,
    classes: Sequence[str] = FRUIT,
    num_test: int = 661,
    epochs: int = 12,
    log_every: int = 10,
    warnings: Sequence[str] = (),
    with_gpu: bool = False,
    seed: int = 0,
) -> Path:
    """Write a complete run folder: every file that training creates."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    lines = _events(rng, epochs, log_every, with_gpu)
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = _predictions(rng, classes, num_test)
    with (folder / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([_COLUMNS, *rows])
    _thumbs(folder / "thumbs", rng, [row for row in rows if row[3] != row[4]][:12])
    hits = sum(row[3] == row[4] for row in rows if row[0] == "test")
    best = min(
        (line for line in lines if line["event"] == "validation"), key=lambda e: e["val_loss"]
    )
    summary = _SUMMARY | {
        "test_accuracy": hits / num_test if num_test else None,
        "num_test": num_test,
        "best_epoch": best["epoch"],
        "best_step": best["step"],
        "restore_best": True,
        "epochs": epochs,
        "steps": epochs * STEPS_PER_EPOCH,
        "classes": list(classes),
        "warnings": list(warnings),
        "device": "cuda" if with_gpu else "cpu",
    }
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    (folder / "config.yaml").write_text(_CONFIG)
    (folder / "env.json").write_text(json.dumps(_ENV, indent=2))
    return folder


def _events(
    rng: np.random.Generator, epochs: int, log_every: int, with_gpu: bool
) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []

    def add(event: str, step: int, elapsed_s: float, **values: object) -> None:
        epoch = step // STEPS_PER_EPOCH
        shared = {"event": event, "step": step, "epoch": epoch, "attempt": 1}
        lines.append(shared | {"elapsed_s": round(elapsed_s, 3)} | values)

    add("start", 0, 0.0)
    best = math.inf
    for step in range(1, epochs * STEPS_PER_EPOCH + 1):
        elapsed_s, progress = 4 + 0.24 * step, step / STEPS_PER_EPOCH
        if step % log_every == 0:
            loss = 0.45 + 2.2 * math.exp(-progress / 1.3) + rng.normal(0, 0.05)
            add(
                "train", step, elapsed_s,
                train_loss=loss,
                train_accuracy=0.92 - 0.85 * math.exp(-progress / 1.5) + rng.normal(0, 0.02),
                learning_rate=1e-3,
                grad_norm=1 / progress,
                **{
                    "throughput/samples_per_sec": 68 + rng.normal(0, 3),
                    "time_metrics/data_loading(%)": abs(rng.normal(2.5, 1)),
                },
            )  # fmt: skip
        if step % 8 == 0:
            gpu = {"gpu_percent": 71 + rng.normal(0, 6), "gpu_memory_bytes": 9 * 2**30}
            use = {"cpu_percent": 188 + rng.normal(0, 5), "rss_bytes": int(7.1e8 + 2e5 * step)}
            add("system", step, elapsed_s, **use, **(gpu if with_gpu else {}))
        if step % STEPS_PER_EPOCH == 0:
            loss = 0.9 + 1.6 * math.exp(-progress / 1.6) + 0.012 * progress + rng.normal(0, 0.02)
            is_best, best = loss < best, min(best, loss)
            add(
                "validation", step, elapsed_s,
                val_loss=loss,
                val_loss_sem=0.11 + rng.normal(0, 0.005),
                val_accuracy=round((0.7 - 0.5 * math.exp(-progress / 1.5)) * NUM_VAL) / NUM_VAL,
                is_best=is_best,
                num_without_improvement=0,
            )  # fmt: skip
    add(
        "stop",
        epochs * STEPS_PER_EPOCH,
        4 + 0.24 * epochs * STEPS_PER_EPOCH,
        reason="early_stopping",
    )
    return lines


def _predictions(
    rng: np.random.Generator, classes: Sequence[str], num_test: int
) -> list[tuple[str, ...]]:
    rows = []
    skill = rng.beta(6, 2.2, len(classes))
    for split, num in (("val", NUM_VAL), ("test", num_test)):
        for idx in range(num):
            label = int(rng.integers(len(classes)))
            other = int((label + 1 + rng.geometric(0.4)) % len(classes))
            predicted = label if rng.random() < skill[label] else other
            path = f"{split}/{classes[label]}/IMG_{idx:04d}.jpg"
            named = (classes[label], classes[predicted], f"{rng.uniform(0.3, 1):.6f}", "1.2")
            rows.append((split, str(idx), path, *named))
    return rows


def _thumbs(folder: Path, rng: np.random.Generator, rows: Sequence[tuple[str, ...]]) -> None:
    folder.mkdir(exist_ok=True)
    records = []
    for rank, (_, _, path, label, predicted, probability, _) in enumerate(rows):
        shades = np.linspace(60, 220, 112)[None, :, None] + rng.uniform(-40, 40, (112, 1, 3))
        image = Image.fromarray(np.clip(shades, 0, 255).astype(np.uint8))
        corner = tuple(int(v) for v in rng.integers(10, 50, 2))
        colour = tuple(int(v) for v in rng.integers(40, 255, 3))
        ImageDraw.Draw(image).ellipse((*corner, corner[0] + 52, corner[1] + 48), fill=colour)
        data = io.BytesIO()
        image.save(data, "JPEG", quality=82)
        (folder / f"{rank:02d}.jpg").write_bytes(data.getvalue())
        named = {"path": path, "label": label, "predicted": predicted}
        numbers = {"probability": float(probability), "loss": 6.0 - rank / 4}
        records.append({"file": f"{rank:02d}.jpg", **named, **numbers})
    (folder / "thumbs.json").write_text(json.dumps(records))


_COLUMNS = ("split", "id", "path", "label", "predicted", "probability", "loss")
_SUMMARY: dict[str, Any] = {
    "status": "finished", "stop_reason": "early_stopping",
    "test_top5_accuracy": 0.961, "test_macro_accuracy": 0.731, "test_loss": 0.9, "val_loss": 1.0,
    "val_accuracy": 41 / 57, "val_top5_accuracy": 0.97, "val_macro_accuracy": 0.7,
    "num_train": 675, "num_val": NUM_VAL, "are_pictures": True,
    "train_s": 127.8, "total_s": 139.0, "images_per_s": 68.4, "data_wait_frac": 0.024,
    "phases_s": {
        "setup": 4.1, "data_wait": 2.7, "to_device": 0.4, "augment": 0.0, "forward": 88.3,
        "backward": 6.2, "optimizer": 1.9, "validation": 11.0, "checkpoint": 1.4, "logging": 0.3,
        "test": 10.1, "unexplained": 3.6,
    },
    "device_phases_s": None, "no_advice_because": None, "energy_wh": None,
    "global_batch_size": 16, "per_device_batch_size": 16, "accumulation_steps": 1,
    "precision": "fp32", "seed": 0, "fingerprint": "f" * 64, "attempts": 1,
}  # fmt: skip
_CONFIG = """seed: 0
train: head
model:
  name: tf_efficientnet_lite0
  weights: packaged
batch:
  global_batch_size: 16
  lr: 0.001
run:
  dir: runs/demo
"""
_ENV = {
    "python": "3.11.2",
    "platform": "Linux-6.1.0-x86_64",
    "cpu": {"model": "Some Processor", "num_cores": 2},
    "gpus": [],
    "versions": {"torch": "2.13.0", "timm": "1.0.20"},
}

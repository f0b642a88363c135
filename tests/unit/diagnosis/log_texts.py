"""Logs as their tools write them, with numbers that are easy to verify."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# 11 epochs on 270 held-out examples; the best has 212 correct, after epoch 8
RIGHT = (151, 170, 183, 190, 199, 203, 207, 212, 209, 208, 210)
LOSSES = (1.9, 1.6, 1.4, 1.25, 1.16, 1.09, 1.04, 1.0, 1.02, 1.03, 1.05)
TRAIN = (3.1, 2.0, 1.5, 1.2, 1.0, 0.85, 0.73, 0.64, 0.56, 0.5, 0.45)
NUM_VAL = 270


def keras2(
    right: Sequence[int] = RIGHT, *, num: int = NUM_VAL, has_bar: bool = True, max_epochs: int = 60
) -> str:
    """The output of tf.keras 2: a progress bar redrawn with carriage returns or backspaces."""
    lines = []
    for idx, hits in enumerate(right):
        loss, val = TRAIN[idx % len(TRAIN)], LOSSES[idx % len(LOSSES)]
        lines.append(f"Epoch {idx + 1}/{max_epochs}\n")
        if has_bar:
            early = f" 100/1215 [=>......] - ETA: 18s - loss: {loss + 1:.4f} - accuracy: 0.1000"
            lines.append(early + "\x08" * len(early))
            lines.append(f"\r1215/1215 [======] - ETA: 0s - loss: {loss:.4f} - accuracy: 0.5000\r")
        lines.append(
            f"1215/1215 [==============================] - 20s 16ms/step - loss: {loss:.4f} "
            f"- accuracy: {1 - loss / 10:.4f} - val_loss: {val:.4f} "
            f"- val_accuracy: {hits / num:.4f}\n"
        )
    return "".join(lines)


def keras3(right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> str:
    """The output of Keras 3 on a terminal, with colors."""
    lines = []
    for idx, hits in enumerate(right):
        bar = "\x1b[32m━━━━━━━━━━━━━━━━━━━━\x1b[0m\x1b[37m\x1b[0m"
        lines.append(f"Epoch {idx + 1}/60\n")
        lines.append(f"\x1b[1m  1/152\x1b[0m {bar} \x1b[1m30s\x1b[0m 200ms/step - accuracy: 0.0")
        lines.append(f"\r\x1b[1m152/152\x1b[0m {bar} \x1b[1m20s\x1b[0m 16ms/step ")
        lines.append(
            f"- accuracy: 0.5000 - loss: {TRAIN[idx]:.4f} - val_accuracy: {hits / num:.4f} "
            f"- val_loss: {LOSSES[idx]:.4f} - learning_rate: 0.0010\n"
        )
    return "".join(lines)


def lightning_csv(right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> str:
    """metrics.csv of CSVLogger: training and validation of an epoch in separate rows."""
    lines = ["epoch,step,train_loss_epoch,train_loss_step,val_acc,val_loss"]
    for idx, hits in enumerate(right):
        end = (idx + 1) * 100 - 1
        lines.append(f"{idx},{end - 50},,{TRAIN[idx] + 5},,")
        lines.append(f"{idx},{end},,,{hits / num},{LOSSES[idx]}")
        lines.append(f"{idx},{end},{TRAIN[idx]},,,")
    return "\n".join(lines) + "\n"


def csv_logger(right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> str:
    """training.log of Keras' CSVLogger."""
    rows = [
        f"{idx},{1 - TRAIN[idx] / 10},{TRAIN[idx]},{hits / num},{LOSSES[idx]}"
        for idx, hits in enumerate(right)
    ]
    return "\n".join(["epoch,accuracy,loss,val_accuracy,val_loss", *rows]) + "\n"


def keras_history(right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> str:
    return json.dumps(
        {
            "loss": list(TRAIN[: len(right)]),
            "val_loss": list(LOSSES[: len(right)]),
            "val_accuracy": [hits / num for hits in right],
        }
    )


def trainer_state(right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> str:
    """trainer_state.json of Hugging Face's Trainer."""
    history: list[dict[str, Any]] = []
    for idx, hits in enumerate(right):
        step = 100 * (idx + 1)
        history.append(
            {"epoch": idx + 0.5, "loss": TRAIN[idx] + 0.2, "learning_rate": 5e-5, "step": step - 50}
        )
        history.append(
            {"epoch": idx + 1.0, "loss": TRAIN[idx] - 0.2, "learning_rate": 5e-5, "step": step}
        )
        history.append(
            {
                "epoch": idx + 1.0,
                "eval_accuracy": hits / num,
                "eval_loss": LOSSES[idx],
                "eval_runtime": 2.0,
                "eval_samples_per_second": round(num / 2.0, 3),
                "step": step,
            }
        )
    history.append(
        {"epoch": float(len(right)), "step": 100 * len(right), "train_loss": 9.0,
         "train_runtime": 220.0}
    )  # fmt: skip
    return json.dumps({"log_history": history, "num_train_epochs": 60, "global_step": 1100})


def write_mlflow_run(folder: Path, right: Sequence[int] = RIGHT, *, num: int = NUM_VAL) -> Path:
    """A run as MLflow's file store keeps it."""
    run = folder / "0" / "4f0c2a"
    (run / "metrics").mkdir(parents=True)
    (run / "params").mkdir()
    (run / "meta.yaml").write_text("run_id: 4f0c2a\nrun_name: quick-fox\nstart_time: 1000000\n")
    (run / "params" / "lr").write_text("0.001")
    series = {"loss": TRAIN, "val_loss": LOSSES, "val_accuracy": [hits / num for hits in right]}
    for name, values in series.items():
        lines = [
            f"{1_000_000 + 20_000 * (idx + 1)} {value} {idx}"
            for idx, value in enumerate(values[: len(right)])
        ]
        (run / "metrics" / name).write_text("\n".join(lines) + "\n")
    return run


def write_keras_tensorboard(folder: Path, right: Sequence[int] = RIGHT) -> Path:
    """Event files as Keras' TensorBoard callback writes them: train and validation separately."""
    from torch.utils.tensorboard import SummaryWriter

    for side, losses, shares in (
        ("train", TRAIN, [0.5] * len(right)),
        ("validation", LOSSES, [hits / NUM_VAL for hits in right]),
    ):
        with SummaryWriter(str(folder / side)) as writer:
            for idx in range(len(right)):
                writer.add_scalar("epoch_loss", losses[idx], idx)
                writer.add_scalar("epoch_accuracy", shares[idx], idx)
    return folder

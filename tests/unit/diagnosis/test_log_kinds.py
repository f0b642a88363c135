"""Kinds of logs that were once misread: one course of ten epochs, best 92.0 % at the eighth."""

# ruff: noqa: E501

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepladder.cli.main import main
from stepladder.diagnosis.audit.audit import audit
from stepladder.reporting.pages.audit_page import audit_page, audit_text, short_names

ACC = (0.60, 0.70, 0.78, 0.82, 0.86, 0.88, 0.90, 0.92, 0.912, 0.908)
VAL = (1.2, 0.95, 0.8, 0.66, 0.55, 0.5, 0.46, 0.43, 0.45, 0.47)
TRAIN = (1.6, 1.1, 0.8, 0.6, 0.45, 0.35, 0.27, 0.2, 0.15, 0.12)
TRAIN_ACC = (0.5, 0.66, 0.75, 0.82, 0.88, 0.91, 0.94, 0.96, 0.975, 0.985)
ALL = range(10)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A log and what is right: the metric, its best value and epoch, rows and trainings."""

    name: str
    text: str | bytes
    file: str
    metric: str | None
    best: float
    epoch: int | None
    num_rows: int
    num_runs: int


KINDS: list[Kind] = []
BACK = "\b" * 60
HEAD = "epoch,lr-Adam,step,train_loss_epoch,val_acc,val_loss\n"


def add(
    name: str,
    text: str | bytes,
    file: str = "log.txt",
    *,
    metric: str | None = "val_accuracy",
    best: float = 0.92,
    epoch: int | None = 8,
    runs: int = 1,
) -> None:
    KINDS.append(Kind(name=name, text=text, file=file, metric=metric, best=best, epoch=epoch,
                      num_rows=10, num_runs=runs))  # fmt: skip


def each(line: Callable[[int], str], epochs: Iterable[int] = ALL) -> str:
    return "".join(map(line, epochs))


def comma(value: float) -> str:
    return str(value).replace(".", ",")


def keras(k: int) -> str:
    return f"loss: {TRAIN[k]:.4f} - acc: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_acc: {ACC[k]:.4f}\n"


def lightning(k: int, worse: float = 0.0) -> str:
    return f",0.001,{k * 20},,,\n{k},,{k * 20 + 19},,{ACC[k] - worse},{VAL[k]}\n{k},,{k * 20 + 19},{TRAIN[k]},,\n"


def trainer_state(history: list[dict[str, float]], **others: float) -> str:
    return json.dumps({"best_metric": None, "log_history": history, **others})


def history(**metrics: Callable[[int], float]) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    for k in ALL:
        rows.append({"epoch": k + 1.0, "loss": TRAIN[k], "step": (k + 1) * 20})
        found = {name: value(k) for name, value in metrics.items()}
        rows.append({"epoch": k + 1.0, "step": (k + 1) * 20, "eval_runtime": 1.0, **found})
    return rows


add(
    "pandas_index",
    ",accuracy,loss,val_accuracy,val_loss\n"
    + each(lambda k: f"{k},{TRAIN_ACC[k]},{TRAIN[k]},{ACC[k]},{VAL[k]}\n"),
    "h.csv",
)
add(
    "unnamed",
    "Unnamed: 0,loss,val_loss,val_acc\n" + each(lambda k: f"{k},{TRAIN[k]},{VAL[k]},{ACC[k]}\n"),
    "h.csv",
)
add(
    "unnamed_epoch",
    "Unnamed: 0,epoch,loss,val_loss,val_acc\n"
    + each(lambda k: f"{k},{k + 1},{TRAIN[k]},{VAL[k]},{ACC[k]}\n"),
    "h.csv",
)
add(
    "semicolon",
    "epoch;loss;val_loss;val_acc\r\n"
    + each(lambda k: f"{k + 1};{comma(TRAIN[k])};{comma(VAL[k])};{comma(ACC[k])}\r\n"),
    "h.csv",
)
add(
    "utf16",
    (
        "epoch,loss,val_loss,val_acc\r\n"
        + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{ACC[k]}\r\n")
    ).encode("utf-16"),
    "h.csv",
)
add("k1v2", each(lambda k: f"Epoch {k + 1}/10\n5s - {keras(k)}"))
add(
    "k1v2train",
    "Train on 975 samples, validate on 250 samples\n"
    + each(lambda k: f"Epoch {k + 1}/10\n - 5s - {keras(k)}"),
)
add("k2v2us", each(lambda k: f"Epoch {k + 1}/10\n975/975 - 5s - {keras(k)}"))
add("k21v2", each(lambda k: f"Epoch {k + 1}/10\n - 5s 87us/step - {keras(k)}"))
add(
    "k3v2",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n32/32 - 1s - 19ms/step - accuracy: {TRAIN_ACC[k]:.4f} - loss: {TRAIN[k]:.4f} - val_accuracy: {ACC[k]:.4f} - val_loss: {VAL[k]:.4f}\n"
        )
    ),
)
add(
    "k_ckpt",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n - 5s - {keras(k)}\nEpoch {k + 1:05d}: val_acc improved from -inf to {ACC[k]:.5f}, saving model to w.h5\n"
        )
    ),
)
add(
    "k_ckpt3",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n\nEpoch {k + 1}: val_accuracy improved from {ACC[k]:.5f} to {ACC[k]:.5f}, saving model to w.keras\n32/32 - 1s - 19ms/step - accuracy: {TRAIN_ACC[k]:.4f} - loss: {TRAIN[k]:.4f} - val_accuracy: {ACC[k]:.4f} - val_loss: {VAL[k]:.4f}\n"
        )
    ),
)
add(
    "k_bs",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n"
            + "".join(
                f"\r {i}/975 [====>......] - ETA: 9s - loss: {TRAIN[k] + 0.5:.4f} - acc: 0.4{BACK}"
                for i in (65, 130)
            )
            + f"\r975/975 [==============================] - 20s 21ms/step - {keras(k)}"
        )
    ),
)
add(
    "k_bs2",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n\n"
            + "".join(
                f" {i}/975 [====>......] - ETA: 9s - loss: {TRAIN[k] + 0.5:.4f} - acc: 0.4{BACK}"
                for i in (65, 130)
            )
            + f"{BACK}975/975 [==============================] - 20s 21ms/step - {keras(k)}"
        )
    ),
)
add(
    "k_noval_first",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n32/32 [====] - 1s 19ms/step - loss: {TRAIN[k]:.4f} - accuracy: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_accuracy: {ACC[k]:.4f} - lr: 0.0010\n"
        )
    ),
)
add(
    "l_crash",
    HEAD + each(lambda k: lightning(k, 0.01), range(6)) + each(lightning, range(4, 10)),
    "metrics.csv",
)
add(
    "l_crash_head",
    HEAD + each(lightning, range(6)) + HEAD + each(lightning, range(6, 10)),
    "metrics.csv",
)
add("l_two", HEAD + each(lightning) + each(lightning), "metrics.csv", runs=2)
add(
    "hf_f1_loss",
    trainer_state(history(eval_loss=lambda k: VAL[k], eval_f1=lambda k: ACC[k])),
    "trainer_state.json",
    metric="eval_f1",
)
add(
    "hf_acc_f1",
    trainer_state(
        history(eval_loss=lambda k: VAL[k], eval_f1=lambda k: 0.5, eval_accuracy=lambda k: ACC[k])
    ),
    "trainer_state.json",
)
add(
    "hf_wer",
    trainer_state(history(eval_wer=lambda k: 1 - ACC[k])),
    "trainer_state.json",
    metric="eval_wer",
    best=0.08,
)
add(
    "hf_own",
    trainer_state(history(eval_my_score=lambda k: ACC[k], eval_samples_per_second=lambda k: 250.0)),
    "trainer_state.json",
    metric="eval_my_score",
)
add(
    "hf_best",
    trainer_state(
        history(eval_loss=lambda k: VAL[k], eval_precision=lambda k: 0.5, eval_my=lambda k: ACC[k]),
        **{"best_metric": 0.92},
    ),
    "trainer_state.json",
    metric="eval_my",
)
add(
    "mm_epoch_scalars",
    each(
        lambda k: (
            json.dumps(
                {
                    "lr": 0.1,
                    "data_time": 0.01,
                    "loss": TRAIN[k],
                    "time": 0.3,
                    "epoch": k + 1,
                    "iter": 20 * (k + 1),
                    "memory": 9,
                    "step": 20 * (k + 1),
                }
            )
            + "\n"
            + json.dumps(
                {"accuracy/top1": 100 * ACC[k], "data_time": 0.1, "time": 0.2, "step": k + 1}
            )
            + "\n"
        )
    ),
    "scalars.json",
)
add(
    "err_percent",
    "epoch,train_loss,val_loss,val_error_rate\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{100 - 100 * ACC[k]:.2f}\n"),
    "l.csv",
)
add(
    "fastai",
    "epoch,train_loss,valid_loss,error_rate,time\n"
    + each(lambda k: f"{k},{TRAIN[k]},{VAL[k]},{1 - ACC[k]:.6f},00:17\n"),
    "l.csv",
)
add(
    "tqdm",
    each(
        lambda k: (
            "".join(
                f"\rEpoch {k + 1}/10: {p:3}%|███   | {p // 2}/50 [00:05<00:00, 9.1it/s, loss={TRAIN[k]:.3f}, acc={TRAIN_ACC[k]:.3f}]"
                for p in (50, 100)
            )
            + f"\nval_loss: {VAL[k]:.4f} val_acc: {ACC[k]:.4f}\n"
        )
    ),
)
add(
    "tutorial",
    each(
        lambda k: (
            f"Epoch {k}/9\n----------\ntrain Loss: {TRAIN[k]:.4f} Acc: {TRAIN_ACC[k]:.4f}\nval Loss: {VAL[k]:.4f} Acc: {ACC[k]:.4f}\n\n"
        )
    )
    + "Training complete in 1m 5s\nBest val Acc: 0.920000\n",
)
add(
    "pipes",
    each(
        lambda k: (
            f"Epoch {k + 1} | Train Loss {TRAIN[k]:.3f} | Valid Loss {VAL[k]:.3f} | Valid Acc {100 * ACC[k]:.1f}%\n"
        )
    ),
)
add(
    "pipes2",
    each(
        lambda k: (
            f"Epoch: {k + 1:02} | Epoch Time: 0m 5s\n\tTrain Loss: {TRAIN[k]:.3f} | Train Acc: {100 * TRAIN_ACC[k]:.2f}%\n\t Val. Loss: {VAL[k]:.3f} |  Val. Acc: {100 * ACC[k]:.2f}%\n"
        )
    ),
)
add(
    "loguru",
    each(
        lambda k: (
            f"2024-01-01 10:0{k}:00.123 | INFO     | __main__:train:45 - Epoch {k + 1}: train_loss={TRAIN[k]:.4f} val_loss={VAL[k]:.4f} val_acc={ACC[k]:.4f}\n"
        )
    ),
)
add(
    "phase_csv",
    "epoch,phase,loss,accuracy\n"
    + each(lambda k: f"{k + 1},train,{TRAIN[k]},{TRAIN_ACC[k]}\n{k + 1},val,{VAL[k]},{ACC[k]}\n"),
    "l.csv",
)
add(
    "Phase_Validation",
    "Epoch;Phase;Loss;Acc\n"
    + each(
        lambda k: (
            f"{k + 1};Training;{TRAIN[k]};{TRAIN_ACC[k]}\n{k + 1};Validation;{VAL[k]};{ACC[k]}\n"
        )
    ),
    "l.csv",
)
add(
    "wandb_hist",
    '"_step","_runtime","_timestamp","epoch","train/loss","val/acc"\n'
    + each(
        lambda k: (
            f"{k * 2},{k * 10},{1.7e9 + k * 10},{k},{TRAIN[k]},\n{k * 2 + 1},{k * 10 + 5},{1.7e9 + k * 10 + 5},{k},,{ACC[k]}\n"
        )
    ),
    "l.csv",
)
add(
    "tb_csv",
    "Wall time,Step,Value\n" + each(lambda k: f"{1.7e9 + k},{k + 1},{ACC[k]}\n"),
    "run-.-tag-val_acc.csv",
    epoch=None,
)
add(
    "epoch_words",
    "epoch,loss,val_loss,val_acc\n" + each(lambda k: f"{k + 1}/10,{TRAIN[k]},{VAL[k]},{ACC[k]}\n"),
    "l.csv",
)
add(
    "json_nested",
    json.dumps({"train": {"loss": TRAIN, "acc": TRAIN_ACC}, "val": {"loss": VAL, "acc": ACC}}),
    "history.json",
)
add(
    "json_by_epoch",
    json.dumps(
        {str(k + 1): {"train_loss": TRAIN[k], "val_loss": VAL[k], "val_acc": ACC[k]} for k in ALL}
    ),
    "history.json",
)
add(
    "json_rows_nested",
    json.dumps(
        [
            {
                "epoch": k + 1,
                "train": {"loss": TRAIN[k], "acc": TRAIN_ACC[k]},
                "val": {"loss": VAL[k], "acc": ACC[k]},
            }
            for k in ALL
        ]
    ),
    "log.json",
)
add(
    "json_test_end",
    each(
        lambda k: (
            json.dumps(
                {"epoch": k + 1, "train_loss": TRAIN[k], "val_loss": VAL[k], "val_acc": ACC[k]}
            )
            + "\n"
        )
    )
    + json.dumps({"test_loss": 0.5, "test_acc": 0.9})
    + "\n",
    "log.jsonl",
)
add(
    "csv_test_end",
    "epoch,loss,val_loss,val_acc,test_acc\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{ACC[k]},\n")
    + "10,,,,0.9\n",
    "l.csv",
)
add(
    "yolo_resume",
    "epoch,train/loss,metrics/accuracy_top1,metrics/accuracy_top5,val/loss\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},{ACC[k] - 0.02},.9,{VAL[k]}\n", range(6))
    + each(lambda k: f"{k + 1},{TRAIN[k]},{ACC[k]},.9,{VAL[k]}\n", range(4, 10)),
    "results.csv",
)
add(
    "cifar",
    each(
        lambda k: (
            f"[{k + 1},  2000] loss: {TRAIN[k] + 0.1:.3f}\n[{k + 1},  4000] loss: {TRAIN[k] - 0.1:.3f}\nAccuracy of the network on the 250 test images: {100 * ACC[k]:.1f} %\n"
        )
    ),
)
add(
    "epoch_begin_first",
    "epoch,loss,acc\n" + each(lambda k: f"{k + 1},{TRAIN[k]},{TRAIN_ACC[k]}\n"),
    "l.csv",
    metric=None,
)
add(
    "map_csv",
    "epoch,train_loss,val_loss,mAP\n" + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{ACC[k]}\n"),
    "l.csv",
    metric="mAP",
)
add(
    "top1_csv",
    "epoch,train_loss,valid_loss,top1,top5\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{100 * ACC[k]},99\n"),
    "l.csv",
)
add(
    "steps_only",
    "step,train_loss,eval_loss,eval_accuracy\n"
    + each(lambda k: f"{k * 10 + 5},{TRAIN[k]},,\n{k * 10 + 10},,{VAL[k]},{ACC[k]}\n"),
    "l.csv",
    epoch=None,
)
add("print_dict", each(lambda k: f"epoch {k}: {{'accuracy': {ACC[k]}, 'f1': {ACC[k] - 0.01}}}\n"))
add(
    "dict_nested",
    each(
        lambda k: (
            f"{{'epoch': {k + 1}, 'train_loss': {TRAIN[k]}, 'val_loss': {VAL[k]}, 'val_acc': {ACC[k]}}}\n"
        )
    ),
)
add(
    "numpy_print",
    each(lambda k: f"Epoch {k + 1}: loss = tensor({TRAIN[k]}), val accuracy = {ACC[k]}\n"),
)
add(
    "mixed_percent",
    each(
        lambda k: (
            f"Epoch [{k + 1}/10] train_loss: {TRAIN[k]:.4f} val_loss: {VAL[k]:.4f} val_acc: {100 * ACC[k]:.2f}% time: 5.1s lr: 1.0e-03\n"
        )
    ),
)
add(
    "train_acc_first",
    each(lambda k: f"Epoch {k + 1}/10, Train Acc: {TRAIN_ACC[k]}, Test Acc: {ACC[k]}\n"),
)
add(
    "ep_short",
    each(lambda k: f"Ep {k + 1} | train loss {TRAIN[k]} | val loss {VAL[k]} | val acc {ACC[k]}\n"),
)
add(
    "pairnorm",
    each(
        lambda k: (
            f"Epoch {k + 1}: train loss {TRAIN[k]:.3f} train acc: {TRAIN_ACC[k]:.3f}, val loss: {VAL[k]:.3f} val acc {ACC[k]:.3f}.\n"
        )
    ),
)
add(
    "restart_text",
    each(
        lambda k: (
            f"Epoch {k + 1}: train loss {TRAIN[k]:.3f}, val loss: {VAL[k]:.3f} val acc {ACC[k] - 0.02:.3f}.\n"
        ),
        range(6),
    )
    + 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\nRuntimeError: CUDA out of memory\nResuming from epoch 4\n'
    + each(
        lambda k: (
            f"Epoch {k + 1}: train loss {TRAIN[k]:.3f}, val loss: {VAL[k]:.3f} val acc {ACC[k]:.3f}.\n"
        ),
        range(4, 10),
    ),
)
add(
    "l_full",
    "epoch,lr-Adam,step,test_acc,test_loss,train_loss_epoch,train_loss_step,val_acc,val_loss\n"
    + each(
        lambda k: (
            f",0.001,{k * 20 + 9},,,,,,\n{k},,{k * 20 + 9},,,,{TRAIN[k] + 0.3},,\n{k},,{k * 20 + 19},,,,,{ACC[k]},{VAL[k]}\n{k},,{k * 20 + 19},,,{TRAIN[k]},,,\n"
        )
    )
    + "10,,200,0.9,0.5,,,,\n",
    "metrics.csv",
)
add(
    "l_noepoch_lr",
    "epoch,lr-SGD/pg1,step,train_acc,train_loss,val_acc,val_loss\n"
    + each(
        lambda k: (
            f",0.1,{k * 20},,,,\n{k},,{k * 20 + 19},,,{ACC[k]},{VAL[k]}\n{k},,{k * 20 + 19},{TRAIN_ACC[k]},{TRAIN[k]},,\n"
        )
    ),
    "metrics.csv",
)
add(
    "k_csv_two_no_head",
    "epoch,accuracy,loss,val_accuracy,val_loss\n"
    + each(lambda k: f"{k},{TRAIN_ACC[k]},{TRAIN[k]},{ACC[k]},{VAL[k]}\n") * 2,
    "l.csv",
    runs=2,
)
add(
    "hf_steps",
    trainer_state(
        [
            x
            for k in ALL
            for x in (
                {"epoch": (k + 1) / 2, "loss": TRAIN[k], "step": (k + 1) * 20, "grad_norm": 1.0},
                {
                    "epoch": (k + 1) / 2,
                    "step": (k + 1) * 20,
                    "eval_loss": VAL[k],
                    "eval_accuracy": ACC[k],
                },
            )
        ],
        num_train_epochs=5,
    ),
    "trainer_state.json",
    epoch=4,
)
add(
    "hf_two_sets",
    trainer_state(
        history(
            eval_matched_loss=lambda k: VAL[k],
            eval_matched_accuracy=lambda k: ACC[k],
            eval_mismatched_accuracy=lambda k: 0.3,
        )
    ),
    "trainer_state.json",
    metric="eval_matched_accuracy",
)
add(
    "k_lr_printed",
    each(
        lambda k: (
            f"\nEpoch {k + 1}: LearningRateScheduler setting learning rate to 0.001.\nEpoch {k + 1}/10\n32/32 - 1s - loss: {TRAIN[k]:.4f} - acc: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_acc: {ACC[k]:.4f} - lr: 0.0010 - 1s/epoch - 19ms/step\n"
        )
    ),
)
add(
    "k_multi_out",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n32/32 [====] - 1s 19ms/step - loss: {TRAIN[k]:.4f} - top_5: 0.9 - accuracy: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_top_5: 0.99 - val_accuracy: {ACC[k]:.4f}\n"
        )
    ),
)
add(
    "k_min",
    each(
        lambda k: (
            f"Epoch {k + 1}/10\n32/32 - 1m - 2s/step - accuracy: {TRAIN_ACC[k]:.4f} - loss: {TRAIN[k]:.4f} - val_accuracy: {ACC[k]:.4f} - val_loss: {VAL[k]:.4f}\n"
        )
    ),
)
add(
    "history_err",
    json.dumps({"loss": TRAIN, "val_loss": VAL, "val_error_rate": [1 - a for a in ACC]}),
    "history.json",
)
add(
    "top1_err",
    "epoch,train_loss,test_loss,test_top1_err\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},{VAL[k]},{100 - 100 * ACC[k]:.3f}\n"),
    "l.csv",
)
add(
    "valid_acc_pct",
    "epoch\ttrain_loss\tvalid_loss\tvalid_acc\ttime\n"
    + each(lambda k: f"{k + 1}\t{TRAIN[k]}\t{VAL[k]}\t{100 * ACC[k]:.2f}%\t0:00:17\n"),
    "l.tsv",
)
add(
    "dash_cells",
    "epoch,train_loss,val_loss,val_acc\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},-,-\n{k + 1},-,{VAL[k]},{ACC[k]}\n"),
    "l.csv",
)
add(
    "mm_iter_val",
    each(
        lambda k: (
            json.dumps(
                {"mode": "train", "epoch": 1, "iter": (k + 1) * 100, "lr": 0.1, "loss": TRAIN[k]}
            )
            + "\n"
            + json.dumps(
                {
                    "mode": "val",
                    "epoch": 1,
                    "iter": (k + 1) * 100,
                    "lr": 0.1,
                    "accuracy_top-1": 100 * ACC[k],
                }
            )
            + "\n"
        )
    ),
    "x.log.json",
    epoch=1,
)
add(
    "keys_phase",
    each(
        lambda k: (
            json.dumps({"split": "train", "step": (k + 1) * 10, "loss": TRAIN[k]})
            + "\n"
            + json.dumps(
                {"split": "validation", "step": (k + 1) * 10, "loss": VAL[k], "top1": ACC[k]}
            )
            + "\n"
        )
    ),
    "x.jsonl",
    epoch=None,
)
add(
    "ansi",
    each(
        lambda k: (
            f"\x1b[1mEpoch {k + 1}/10\x1b[0m train_loss=\x1b[31m{TRAIN[k]}\x1b[0m val_loss=\x1b[32m{VAL[k]}\x1b[0m val_acc=\x1b[32m{ACC[k]}\x1b[0m\n"
        )
    ),
)
add(
    "val_first",
    each(
        lambda k: (
            f"[Epoch {k + 1}] valid: loss={VAL[k]:.4f} acc={ACC[k]:.4f}\n[Epoch {k + 1}] train: loss={TRAIN[k]:.4f} acc={TRAIN_ACC[k]:.4f}\n"
        )
    ),
)
add(
    "acc_train_val",
    each(
        lambda k: (
            f"epoch {k + 1}: acc_train {TRAIN_ACC[k]:.4f} acc_val {ACC[k]:.4f} loss_train {TRAIN[k]:.4f} loss_val {VAL[k]:.4f} time 1.2s\n"
        )
    ),
)
add(
    "gcn",
    each(
        lambda k: (
            f"Epoch: {k + 1:04d} loss_train: {TRAIN[k]:.4f} acc_train: {TRAIN_ACC[k]:.4f} loss_val: {VAL[k]:.4f} acc_val: {ACC[k]:.4f} time: 0.0050s\n"
        )
    )
    + "Optimization Finished!\nTotal time elapsed: 1.5s\nTest set results: loss= 0.6 accuracy= 0.8300\n",
)
add(
    "pyg",
    each(
        lambda k: (
            f"Epoch: {k + 1:03d}, Loss: {TRAIN[k]:.4f}, Train: {TRAIN_ACC[k]:.4f}, Val: {ACC[k]:.4f}, Test: 0.8000\n"
        )
    ),
    metric="Val",
)
add(
    "percent_words",
    each(
        lambda k: (
            f"Epoch {k + 1} of 10 took 3.1s\n  training loss:\t\t{TRAIN[k]:.6f}\n  validation loss:\t\t{VAL[k]:.6f}\n  validation accuracy:\t\t{100 * ACC[k]:.2f} %\n"
        )
    ),
)
add(
    "json_stats",
    each(
        lambda k: (
            "[01:02:03][INFO] logging.py: 66: json_stats: "
            + json.dumps(
                {"_type": "train_epoch", "epoch": f"{k + 1}/10", "loss": TRAIN[k], "top1_err": 50.0}
            )
            + "\n"
            + "[01:02:09][INFO] logging.py: 66: json_stats: "
            + json.dumps(
                {
                    "_type": "test_epoch",
                    "epoch": f"{k + 1}/10",
                    "min_top1_err": 1.0,
                    "top1_err": 100 - 100 * ACC[k],
                }
            )
            + "\n"
        )
    ),
)
add(
    "nan_cells",
    "epoch,train_loss,val_loss,val_acc\n"
    + each(lambda k: f"{k + 1},{TRAIN[k]},nan,nan\n{k + 1},nan,{VAL[k]},{ACC[k]}\n"),
    "l.csv",
)
add(
    "accuracy_beside_val_loss",
    each(
        lambda k: (
            f"[04/01 21:46:44 x]: Epoch {k}/100, Acc={ACC[k]:.4f}, Val Loss={VAL[k]}, lr=0.01\n"
        )
    ),
)
add(
    "accuracy_beside_test_loss",
    each(lambda k: f"Epoch: {k + 1} | Accuracy: {100 * ACC[k]:.2f}% | Test Loss: {VAL[k]}\n"),
)
add(
    "accuracy_beside_val_loss_in_csv",
    "epoch,val_loss,acc\n" + each(lambda k: f"{k + 1},{VAL[k]},{ACC[k]}\n"),
    "l.csv",
)
add(
    "f1_beside_val_loss",
    "epoch,val_loss,f1\n" + each(lambda k: f"{k + 1},{VAL[k]},{ACC[k]}\n"),
    "l.csv",
    metric="f1",
)
add(
    "accuracy_of_training_beside_val_loss",
    each(
        lambda k: (
            f"Epoch {k + 1} train: loss {TRAIN[k]} acc {TRAIN_ACC[k]}\n"
            f"Epoch {k + 1} val: loss {VAL[k]}\n"
        )
    ),
    metric="val_loss",
    best=0.43,
)
add(
    "percent_of_batches",
    each(
        lambda k: (
            f"2020-10-26 12:26:40 train.py:267[27649] INFO Epoch: {k + 1}\n"
            + "".join(
                "2020-10-26 12:29:18 train.py:215[27649] INFO "
                f"Train epoch: {k + 1} [{part}/1000]\tAccuracy: {100 * TRAIN_ACC[k]:.2f}%\t"
                f"Loss: {TRAIN[k]:.6f}\n"
                for part in (500, 1000)
            )
            + "2020-10-26 12:40:35 train.py:254[27649] INFO Test set: "
            f"Loss: {VAL[k]:.4f}, Accuracy: {100 * ACC[k]:.2f}%)\n"
            "2020-10-26 12:40:35 train.py:282[27649] INFO Best accuracy: 0.502\n"
        )
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_log_of_this_kind_is_one_course_with_its_best_at_the_eighth_epoch(
    kind: Kind, tmp_path: Path
) -> None:
    path = tmp_path / kind.file
    path.write_bytes(kind.text if isinstance(kind.text, bytes) else kind.text.encode())
    found = audit([str(path)])
    assert len(found.runs) == kind.num_runs
    for run in found.runs:
        assert run.metric == kind.metric
        assert len(run.log.rows) == kind.num_rows
        if kind.metric is not None:
            assert run.result == pytest.approx(kind.best, abs=6e-4)
            assert run.best_epoch == kind.epoch


def text_of(tmp_path: Path, name: str) -> str:
    (kind,) = [kind for kind in KINDS if kind.name == name]
    path = tmp_path / kind.file
    path.write_bytes(kind.text if isinstance(kind.text, bytes) else kind.text.encode())
    return audit_text(audit([str(path)]))


def _batches(k: int, parts: Iterable[int], acc: float) -> str:
    return f"==>>[2018-06-24 06:52:11] [Epoch={k:03d}/150] [Best : Accuracy=65.22]\n" + "".join(
        f"  Epoch: [{k:03d}][{part}/10010]   Time 0.401 (0.406)   Loss 1.6371 (1.7067)   Prec@1 {acc} ({acc})\n"
        for part in parts
    )


def _whole(k: int, acc: float) -> str:
    batches = _batches(k, (0, 5000, 10000), acc)
    return f"{batches}  **Train** Prec@1 {acc} Error@1 {100 - acc}\n  **Test** Prec@1 {acc + 1} Error@1 {99 - acc}\n"


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_epoch_that_starts_again_within_its_batches_is_a_resumption(
    is_lost: bool, tmp_path: Path
) -> None:
    after = (8.0, 23.0, 32.0) if is_lost else (65.5, 65.2, 65.7)
    text = "".join(_whole(k, acc) for k, acc in zip((80, 81, 82), (64.4, 64.6, 64.9), strict=True))
    text += _batches(83, (0, 5000), 62.0)
    text += "=> loading checkpoint\n"
    text += "".join(_whole(k, acc) for k, acc in zip((83, 84, 85), after, strict=True))
    path = tmp_path / "log.txt"
    path.write_text(text)
    (run,) = audit([str(path)]).runs
    assert [row.val_accuracy for row in run.log.rows] == pytest.approx(
        [0.654, 0.656, 0.659, *((acc + 1) / 100 for acc in after)]
    )
    assert run.log.resumed_at == (83,)
    assert "resumed at epoch 83: an earlier row is replaced" in run.log.notes[0]
    fell = [one.evidence for one in run.findings if one.check == "resumption"]
    if not is_lost:
        assert fell == []
        return
    (said,) = fell
    assert "fell from 65.9 % to 9.0 % (after epoch 83), and the last one is 33.0 %" in said
    assert "the best, 65.9 %, was after epoch 82" in said
    assert not {one.check for one in run.findings} & {"length", "fit", "learning_rate"}


def test_an_underfit_that_no_longer_improves_is_not_advised_to_train_longer(tmp_path: Path) -> None:
    shares = (0.30, 0.35, 0.385, 0.40, 0.407, 0.411, 0.408, 0.41, 0.412, 0.409)
    lines = (
        f"{k},{1.9 - share:.3f},{share - 0.02:.3f},{1.85 - share:.3f},{share}"
        for k, share in enumerate(shares)
    )
    path = tmp_path / "l.csv"
    path.write_text("epoch,loss,acc,val_loss,val_acc\n" + "\n".join(lines) + "\n")
    (run,) = audit([str(path)]).runs
    by_check = {one.check: one for one in run.findings}
    assert "the training was long enough" in by_check["length"].evidence
    assert by_check["fit"].evidence.startswith("underfit")
    assert by_check["fit"].fix == "Try other learning rates or a larger model."


def test_a_second_pass_over_the_batches_in_every_epoch_is_no_resumption(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(
        each(
            lambda k: (
                "".join(
                    f"Epoch: [{k}][{part}/100] Loss {TRAIN[k]}\n" for part in (0, 50, 99, 0, 50, 99)
                )
                + f"Test: Loss {VAL[k]} Prec@1 {100 * ACC[k]}\n"
            )
        )
    )
    (run,) = audit([str(path)]).runs
    assert run.log.resumed_at == ()
    assert [row.train_loss for row in run.log.rows] == pytest.approx(list(TRAIN))


def test_an_accuracy_that_is_read_as_held_out_by_its_place_is_reported(tmp_path: Path) -> None:
    text = text_of(tmp_path, "accuracy_beside_val_loss")
    assert "note: Acc does not say of which split it is; it is read as held-out" in text


def test_a_resumed_training_is_reported_with_what_was_replaced(tmp_path: Path) -> None:
    text = text_of(tmp_path, "l_crash")
    assert "note: epochs are counted from 1 here: epoch 0 of the log is 1" in text
    assert "note: it was resumed at epoch 5: 6 earlier rows are replaced by later ones" in text
    assert "92.0 %" in text


def test_a_test_at_the_end_is_a_test_result_and_no_epoch(tmp_path: Path) -> None:
    for name in ("json_test_end", "csv_test_end"):
        text = text_of(tmp_path, name)
        assert "the log has a test result besides the validation" in text
        assert "  10  " in text


def test_a_metric_between_0_and_1_is_printed_in_percent_without_noise_of_examples(
    tmp_path: Path,
) -> None:
    text = text_of(tmp_path, "hf_f1_loss")
    assert "metric: eval_f1" in text
    assert "  92.0 %" in text
    assert "eval_f1 is not a proportion of examples" in text


def test_the_heading_names_the_column_that_was_taken_for_accuracy(tmp_path: Path) -> None:
    assert "metric: val_accuracy, from the column metrics/accuracy_top1" in text_of(
        tmp_path, "yolo_resume"
    )


def test_the_command_prints_the_result_of_a_log_with_a_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = each(
        lambda k: (
            json.dumps({"mode": "train", "epoch": k + 1, "iter": 20, "loss": TRAIN[k]})
            + "\n"
            + json.dumps(
                {"mode": "val", "epoch": k + 1, "iter": 10, "accuracy_top-1": 100 * ACC[k]}
            )
            + "\n"
        )
    )
    (tmp_path / "r.log.json").write_text('{"env_info": "x", "seed": 0}\n' + rows)
    assert main(["audit", str(tmp_path / "r.log.json")]) == 0
    assert "92.0 %" in capsys.readouterr().out


def write_estimator(folder: Path) -> None:
    """TensorFlow's Estimator: training in the folder, evaluations in one within it."""
    from torch.utils.tensorboard import SummaryWriter

    for side, tag, values in ((folder, "loss", TRAIN), (folder / "eval", "accuracy", ACC)):
        with SummaryWriter(str(side)) as writer:
            for k in ALL:
                writer.add_scalar(tag, values[k], (k + 1) * 20)


def write_nested_scalars(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for k in ALL:
            writer.add_scalar("lr", 0.1, k)
            accs = {"training": TRAIN_ACC[k], "validation": ACC[k]}
            writer.add_scalars("Metrics/acc", accs, k)
            writer.add_scalars("Metrics/loss", {"training": TRAIN[k], "validation": VAL[k]}, k)


def write_lightning_events(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "lightning_logs" / "version_0")) as writer:
        for k in ALL:
            writer.add_scalar("epoch", k, k * 20 + 19)
            writer.add_scalar("train_loss_step", TRAIN[k], k * 20 + 9)
            writer.add_scalar("train_loss_epoch", TRAIN[k], k * 20 + 19)
            writer.add_scalar("val_acc", ACC[k], k * 20 + 19)
        writer.add_scalar("test_acc", 0.9, 200)


@pytest.mark.parametrize(
    "write",
    [write_estimator, write_nested_scalars, write_lightning_events],
    ids=lambda w: w.__name__,
)
def test_event_files_of_any_layout_are_one_course(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    write(tmp_path)
    (run,) = audit([str(tmp_path)]).runs
    assert (run.metric, len(run.log.rows)) == ("val_accuracy", 10)
    assert run.result == pytest.approx(0.92)
    assert run.log.rows[7].train_loss == pytest.approx(0.2)
    assert run.log.epochs in (None, 10)


def test_a_folder_with_one_run_folder_is_that_run(tmp_path: Path) -> None:
    run = tmp_path / "lightning_logs" / "version_0"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text(HEAD + each(lightning))
    (found,) = audit([str(tmp_path / "lightning_logs")]).runs
    assert found.result == pytest.approx(0.92)
    assert found.log.name == "version_0"


def test_steps_take_the_place_of_epochs_that_are_not_logged(tmp_path: Path) -> None:
    """nanoGPT: the loss of single steps is lost between two evaluations."""
    lines = []
    for step in range(0, 5000, 200):
        loss = "nan" if step >= 3200 else f"{4 + 5 / (step + 500):.4f}"
        if step % 1000 == 0:
            lines.append(f"step {step}: train loss {loss}, val loss {loss}")
        lines.append(f"iter {step}: loss {loss}, time 1099.34ms, mfu 15.34%")
    (tmp_path / "issue.txt").write_text("\n".join(lines))
    found = audit([str(tmp_path / "issue.txt")])
    (run,) = found.runs
    assert (run.best_epoch, run.best_step) == (None, 3000)
    text = audit_text(found)
    assert "a loss or accuracy is NaN or infinite from step 3,200 on" in text
    assert re.search(r"unknown +step 3,000 +unknown", text)
    assert "at step 3,000" in audit_page(found)
    (tmp_path / "issue.txt").write_text("\n".join(lines[:-8]))
    text = audit_text(audit([str(tmp_path / "issue.txt")]))
    assert "the loss became non-finite" in text
    assert "a loss or accuracy is NaN or infinite from step 3,200 on" in text, (
        "killed before the next evaluation"
    )


def test_the_first_loss_that_is_not_finite_of_an_epoch_is_named_by_it(tmp_path: Path) -> None:
    rows = [f"{k},{100 * k},{'nan' if k > 6 else 1 / k},{1 / k}" for k in range(1, 10)]
    (tmp_path / "a.csv").write_text("epoch,step,loss,val_loss\n" + "\n".join(rows))
    assert "NaN or infinite from epoch 7 on" in audit_text(audit([str(tmp_path / "a.csv")]))


@pytest.mark.parametrize("top", [31.2, 0.9])
def test_an_ap_in_percent_is_printed_in_percent_also_if_an_evaluation_has_none(
    top: float, tmp_path: Path
) -> None:
    """Detectron2 writes NaN where nothing was found; its AP is in percent, however low."""
    aps = ["NaN", top / 2, top, top * 0.9]
    lines = [
        f'{{"iteration": {500 * k + 499}, "total_loss": {1 / (k + 1)}, "lr": 0.1, "bbox/AP": {ap}}}'
        for k, ap in enumerate(aps)
    ]
    (tmp_path / "metrics.json").write_text("\n".join(lines))
    found = audit([str(tmp_path / "metrics.json")])
    (run,) = found.runs
    assert (run.metric, run.best_step) == ("bbox/AP", 1499)
    assert re.search(rf"  {top} % +unknown +step 1,499 ", audit_text(found))


@pytest.mark.parametrize("num_cut", [0, 5, 30])
def test_an_event_file_that_ends_within_a_record_is_read_with_a_note(
    num_cut: int, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for k in ALL:
            writer.add_scalar("Accuracy/val", ACC[k], k)
    (file,) = tmp_path.glob("*tfevents*")
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - num_cut])
    (run,) = audit([str(tmp_path)]).runs
    assert len(run.log.rows) == (9 if num_cut else 10)
    assert run.best_step == 7
    is_said = any("is incomplete and is ignored" in note for note in run.log.notes)
    assert is_said == bool(num_cut)


BARS = {
    "over epochs": lambda k: (f"{10 * k}%|##  | {k}/10 [00:10<01:20, 10.1s/it]", "", ""),
    "over batches": lambda k: ("", "100%|####| 8/8 [00:01<00:00]", "100%|##| 2/2 [00:01<00:00]"),
    "with a description": lambda k: ("", "Train: 100%|██| 8/8 [00:01<00:00, 9.1it/s]", ""),
    "without a total": lambda k: (f"{k}it [00:10, 10.1s/it]", "8it [00:01,  7.9it/s]", ""),
    "with thousands": lambda k: ("", "62%|██▌ | 1.2k/2.0k [00:01<00:00, 9.1kit/s]", ""),
    "two states": lambda k: (f"10%|#| {k}/10 [00:10<01:20]\r20%|##| {k}/10 [00:10<01:20]", "", ""),
    "fastprogress": lambda k: (f"{k}.00% [{k}/10 00:10<01:20]", "", ""),
    "in colour": lambda k: (f"{10 * k}%|\x1b[32m##\x1b[0m  | {k}/10 [00:10<01:20]\x1b[0m", "", ""),
    "colours alone": lambda k: ("\x1b[1;32m", "\x1b]0;title\x07", "\x1b(B\x1b[m"),
    "colours without Escape": lambda k: ("[1;32m", "[32m", "[0m"),
}


@pytest.mark.parametrize("kind", BARS)
def test_a_bar_before_a_printed_line_hides_nothing_of_it(kind: str, tmp_path: Path) -> None:
    """The bar is on the same line: it ends without a line break."""
    text = ""
    for k in ALL:
        first, second, third = BARS[kind](k)
        text += f"{first}Epoch {k}/9\n----------\n"
        text += f"{second}train Loss: {TRAIN[k]:.4f} Acc: {TRAIN_ACC[k]:.4f}\n"
        text += f"{third}val Loss: {VAL[k]:.4f} Acc: {ACC[k]:.4f}\n\n"
    (tmp_path / "train.log").write_text(text)
    (run,) = audit([str(tmp_path / "train.log")]).runs
    assert (run.result, run.best_epoch) == (pytest.approx(0.92), 8)
    assert [row.train_loss for row in run.log.rows] == pytest.approx(TRAIN)
    assert [row.val_loss for row in run.log.rows] == pytest.approx(VAL)


def yolo_rows(num: int, top: float) -> str:
    head = "epoch,train/loss,metrics/accuracy_top1,val/loss\n"
    return head + "".join(f"{k + 1},{1 / (k + 1)},{top - 0.1 / (k + 1)},1\n" for k in range(num))


def test_two_trainings_of_one_file_in_a_folder_have_two_names(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "classify" / "train"
    folder.mkdir(parents=True)
    (folder / "results.csv").write_text(yolo_rows(8, 0.74) + yolo_rows(6, 0.8))
    found = audit([str(folder)])
    assert [run.log.name for run in found.runs] == ["train#1", "train#2"]
    text = audit_text(found)
    assert "train#1 → train#2" in text
    assert "\ntrain#2 (csv" in text


def test_trainings_of_equal_names_are_told_apart_by_the_ends_of_their_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long = "a_very_long_name_of_an_experiment_with_many_words"
    words = [f"{long}/first/results.csv", f"{long}/second/results.csv", f"{long}/first/results.csv"]
    for word in words:
        Path(word).parent.mkdir(parents=True, exist_ok=True)
        Path(word).write_text(yolo_rows(5, 0.7) + yolo_rows(5, 0.8))
    found = audit(words)
    assert [run.log.name for run in found.runs] == [
        "first/results.csv#1", "first/results.csv#2",
        "second/results.csv#1", "second/results.csv#2",
        "first/results.csv#1 (2)", "first/results.csv#2 (2)",
    ]  # fmt: skip
    assert "first/results.csv#2 → second/results.csv#1" in audit_text(found)


def test_long_names_are_shortened_where_they_do_not_differ() -> None:
    assert short_names(["abcdefgh", "b"], 5) == {"abcdefgh": "abcd…", "b": "b"}
    assert short_names(["abcdefg1", "abcdefg2"], 5) == {"abcdefg1": "…efg1", "abcdefg2": "…efg2"}
    both = ["abcdefg1hijkl", "abcdefg2hijkl"]
    assert short_names(both, 5) == {name: name for name in both}


def test_a_folder_of_several_runs_is_all_of_them_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "lightning_logs"
    for num in (0, 2, 10):
        (logs / f"version_{num}").mkdir(parents=True)
        (logs / f"version_{num}" / "metrics.csv").write_text(HEAD + each(lightning))
    (logs / "version_3").mkdir()
    (logs / "version_3" / "hparams.yaml").write_text("{}")
    found = audit([str(logs)])
    assert [run.log.name for run in found.runs] == ["version_0", "version_2", "version_10"]
    (logs / "version_3" / "metrics.csv").write_text("")
    assert main(["audit", str(logs)]) == 3, "one is empty"
    said = capsys.readouterr().out
    assert "Not read" in said
    assert "version_10" in said
    assert main(["compare", str(logs), str(logs / "version_0")]) == 2
    assert "4 of its folders do" in capsys.readouterr().err


def test_a_folder_of_trainings_with_checkpoints_is_all_of_them(tmp_path: Path) -> None:
    for name in ("lr1", "lr2"):
        for step in (10, 20):
            folder = tmp_path / name / f"checkpoint-{step}"
            folder.mkdir(parents=True)
            history = [{"epoch": k, "eval_loss": 1 / k} for k in range(1, step // 2)]
            (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    found = audit([str(tmp_path)])
    assert [(run.log.name, len(run.log.rows)) for run in found.runs] == [("lr1", 9), ("lr2", 9)]


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ("epoch,train_loss,eval_loss,eval_top1,eval_top5", "{k},6.9,6.8,0.{k}04,0.{k}1"),
        ("epoch,train_loss,val_loss,val Acc@1,val Acc@5", "{k},6.9,6.8,0.{k}04,0.{k}1"),
    ],
    ids=["timm", "torchvision"],
)
def test_a_share_below_one_percent_is_not_read_a_hundred_times_too_large(
    tmp_path: Path, head: str, row: str
) -> None:
    """With a thousand classes, the first epochs are below 1 %: the top-5 accuracy tells."""
    last = row.format(k=9).rsplit(",", 1)[0] + ",1.7"
    rows = [row.format(k=k) for k in range(9)]
    (tmp_path / "log.csv").write_text("\n".join([head, *rows, last]) + "\n")
    assert "0.9 % ± " in audit_text(audit((str(tmp_path / "log.csv"),))).splitlines()[1]

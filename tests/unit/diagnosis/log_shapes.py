"""Logs in the shapes of public problem reports, rebuilt with our own numbers.

All tell one course of eight epochs: 250 held-out examples, of which 201 are correct after the sixth
epoch, the best. Each names the report that shows the shape.
"""

# ruff: noqa: E501

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

NUM = 250
HITS = (128, 151, 172, 183, 191, 201, 199, 197)
ACC = [hits / NUM for hits in HITS]
VAL = (1.31, 1.12, 0.94, 0.81, 0.72, 0.66, 0.68, 0.71)
TRAIN = (1.72, 1.24, 0.98, 0.77, 0.61, 0.48, 0.39, 0.31)
TRAIN_ACC = (0.41, 0.57, 0.66, 0.74, 0.79, 0.84, 0.88, 0.91)
EPOCHS = range(len(HITS))
BEST = 0.804


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A log, and what its reader must find in it.

    Attributes:
        trainer, version, log: for the table in docs/audit.md.
        source: repository and number of the report that shows the shape.
        name: of the file, or of a folder that `write` fills.
        write: returns the content of the file, or fills the folder.
        metric: that the audit judges by; None: the log is not read.
        best: value of that metric in its best evaluation.
        best_epoch: of it; None: the log has no epochs.
        best_step: of it; None: not compared.
        num: of evaluations in each training.
        num_trainings: in the log.
        train_loss: at the best evaluation; None: not logged, or not compared.
        says: part of the error of a log that is not read.
        why_not: it is not read, for the table.
    """

    trainer: str
    version: str
    log: str
    source: str
    name: str
    write: Callable[[Path], str | bytes | None]
    metric: str | None = "val_accuracy"
    best: float = BEST
    best_epoch: float | None = 6
    best_step: int | None = None
    num: int = 8
    num_trainings: int = 1
    train_loss: float | None = 0.48
    says: str = ""
    why_not: str = ""


def each(line: Callable[[int], str], epochs: Iterable[int] = EPOCHS) -> str:
    return "".join(line(k) for k in epochs)


# -- Keras --------------------------------------------------------------------------------


def keras_bar_1(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch {k + 1}/8\n"
            f"  64/1600 [>.....................] - ETA: 9s - loss: 2.5 - acc: 0.1\r"
            f"1600/1600 [==============================] - 48s - loss: {TRAIN[k]:.4f} "
            f"- acc: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_acc: {ACC[k]:.4f}\n"
        )
    )


def keras_bar_eta(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch {k + 1}/8\n"
            f"1600/1600 [==============================] - ETA: 0s - loss: {TRAIN[k]:.4f} "
            f"- acc: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_acc: {ACC[k]:.4f}\n"
        )
    )


def keras_unknown(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch {k + 1}/8\n     50/Unknown - 5s 87us/step - loss: {TRAIN[k]:.4f} "
            f"- acc: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_acc: {ACC[k]:.4f}\n"
        )
    )


def tf_keras_line(_: Path) -> str:
    noise = "2023-06-30 10:32:50.974378: I tensorflow/x.cc:424] Loaded cuDNN version 8900\n"
    return each(
        lambda k: (
            f"Epoch {k + 1}/8\n{noise if k == 0 else ''}50/50 - 21s - loss: {TRAIN[k]:.4f} "
            f"- accuracy: {TRAIN_ACC[k]:.4f} - val_loss: {VAL[k]:.4f} - val_accuracy: {ACC[k]:.4f} "
            "- 21s/epoch - 19ms/step\n"
        )
    )


def keras_csv_appended(_: Path) -> str:
    head = "epoch,categorical_accuracy,loss,val_categorical_accuracy,val_loss\n"

    def row(k: int) -> str:
        return f"{k},{TRAIN_ACC[k]},{TRAIN[k]},{ACC[k]},{VAL[k]}\n"

    return head + each(row, range(3)) + head + each(row, range(3, 8))


# -- fastai, skorch, sentence-transformers, W&B --------------------------------------------


def fastai_appended(_: Path) -> str:
    """A DataFrame that was printed: an index, and the header again before a second training."""
    head = "epoch\ttrain_loss\tvalid_loss\terror_rate\ttime\n"

    def row(k: int, index: int) -> str:
        return f"{index}\t{k}\t{TRAIN[k]:.6f}\t{VAL[k]:.6f}\t{1 - ACC[k]:.6f}\t00:17\n"

    first = each(lambda k: row(k, k))
    return f"\t{head}{first}8\t{head}" + each(lambda k: row(k, k + 9))


def fastai_notebook(_: Path) -> str:
    head = " 100.00% [8/8 00:26<00:00]\nepoch\ttrain_loss\tvalid_loss\taccuracy\ttime\n"
    return head + each(lambda k: f"{k}\t{TRAIN[k]:.6f}\t{VAL[k]:.6f}\t{ACC[k]:.6f}\t00:03\n")


def fastai_spaces(_: Path) -> str:
    head = "epoch     train_loss  valid_loss  error_rate  time    \n"
    return head + each(
        lambda k: f"{k:<10}{TRAIN[k]:<12.6f}{VAL[k]:<12.6f}{1 - ACC[k]:<12.6f}00:1{k}     \n"
    )


def skorch_table(_: Path) -> str:
    return (
        "  epoch    train_loss    valid_acc    valid_loss     dur\n"
        "-------  ------------  -----------  ------------  ------\n"
    ) + each(
        lambda k: (
            f"      {k + 1}        \x1b[36m{TRAIN[k]:.4f}\x1b[0m       "
            f"\x1b[32m{ACC[k]:.4f}\x1b[0m        \x1b[35m{VAL[k]:.4f}\x1b[0m  0.0314\n"
        )
    )


def sentence_transformers_csv(_: Path) -> str:
    return "epoch,steps,accuracy\n" + each(lambda k: f"{k},-1,{ACC[k]}\n")


def wandb_panel(_: Path) -> str:
    head = (
        '"Step","sweet-sun-4 - val_acc","sweet-sun-4 - val_acc__MIN","sweet-sun-4 - val_acc__MAX"\n'
    )
    return head + each(lambda k: f'"{k * 50 + 49}","{ACC[k]}","{ACC[k]}","{ACC[k]}"\n')


def wandb_two_runs(_: Path) -> str:
    names = [f"{run} - val/acc{end}" for run in ("a-1", "b-2") for end in ("", "__MIN", "__MAX")]
    head = ",".join(f'"{name}"' for name in ("Step", *names))
    return f"{head}\n" + each(lambda k: f'"{k}"' + f',"{ACC[k]}"' * 6 + "\n")


def tensorboard_downloads(folder: Path) -> None:
    """One file for each tag of each run, as of the download button."""
    columns = {"train-tag-epoch_loss": TRAIN, "validation-tag-epoch_accuracy": ACC}
    for name, values in columns.items():
        rows = "".join(f"{1619761800 + 60 * k}.0,{k},{value}\n" for k, value in enumerate(values))
        (folder / f"run-20210501_{name}.csv").write_text("Wall time,Step,Value\n" + rows)


def mlflow_history(_: Path) -> str:
    return "run_id,key,value,step,timestamp\n" + "".join(
        f"c4ca4238,{key},{values[k]},{k + 1},{1619761800000 + 60000 * k}\n"
        for key, values in (("val_accuracy", ACC), ("train_loss", TRAIN))
        for k in EPOCHS
    )


def csv_rewritten(_: Path) -> str:
    """Each save writes the header and all rows so far."""
    head = "step,losses/train.total_loss,losses/eval.total_loss,metrics/test.mAP\n"

    def row(k: int) -> str:
        return f"{k + 1},{TRAIN[k]},{VAL[k]},{100 * ACC[k]}\n"

    return "".join(head + each(row, range(k + 1)) for k in EPOCHS)


# -- OpenMMLab -----------------------------------------------------------------------------


def mmcls_text(_: Path) -> str:
    def epoch(k: int) -> str:
        at = f"2021-07-14 13:{k:02d}"
        lines = [
            f"{at}:{10 * i:02d},135 - mmcls - INFO - Epoch [{k + 1}][{i}0/35]\tlr: 1.000e-02, "
            f"eta: 0:10:35, time: 0.402, data_time: 0.022, memory: 2962, "
            f"loss: {TRAIN[k] + 0.1 * (2 - i):.4f}\n"
            for i in (1, 2, 3)
        ]
        return "".join(lines) + (
            f"{at}:35,974 - mmcls - INFO - Saving checkpoint at {k + 1} epochs\n"
            "[>>>>>>>>>] 250/250, 163.1 task/s, elapsed: 0s, ETA:     0s"
            f"{at}:36,901 - mmcls - INFO - Epoch(val) [{k + 1}][2]\t"
            f"accuracy_top-1: {100 * ACC[k]:.4f}, accuracy_top-3: 98.0000\n"
        )

    head = "2021-07-14 13:00:00,825 - mmcls - INFO - workflow: [('train', 1)], max: 8 epochs\n"
    return head + each(epoch)


def mmcls_json(_: Path) -> str:
    def epoch(k: int) -> str:
        same = {"epoch": k + 1, "lr": 0.01}
        train = [
            {"mode": "train", **same, "iter": 10 * i, "loss": TRAIN[k] + 0.1 * (2 - i), "time": 0.1}
            for i in (1, 2, 3)
        ]
        val = [
            {"mode": "val", **same, "iter": 19, "accuracy_top-1": 100 * ACC[k]},
            {"mode": "val", **same, "iter": 19, "loss": VAL[k], "time": 0.11},
        ]
        return "".join(json.dumps(row) + "\n" for row in (*train, *val))

    return json.dumps({"env_info": "sys.platform: linux", "seed": 0}) + "\n" + each(epoch)


def mmcls_json_resumed(_: Path) -> str:
    """A crash after the fifth epoch; training resumes from the checkpoint of the third."""

    def epoch(k: int, worse: float = 0.0) -> str:
        train = {"mode": "train", "epoch": k + 1, "iter": 35, "loss": TRAIN[k] + worse}
        val = {"mode": "val", "epoch": k + 1, "iter": 10, "accuracy_top-1": 100 * (ACC[k] - worse)}
        return json.dumps(train) + "\n" + json.dumps(val) + "\n"

    env = json.dumps({"env_info": "x", "exp_name": "y.py"}) + "\n"
    lost = each(lambda k: epoch(k, 0.02), range(3, 5))
    return env + each(epoch, range(3)) + lost + env + each(epoch, range(3, 8))


def mmengine_scalars(_: Path) -> str:
    """Evaluations that were written with step 0, in a training by iterations."""
    return each(
        lambda k: (
            "".join(
                json.dumps({"lr": 0.02, "data_time": 0.01, "loss": TRAIN[k], "step": 100 * k + i})
                + "\n"
                for i in (50, 100)
            )
            + json.dumps({"mIoU": 100 * ACC[k], "step": 0})
            + "\n"
        )
    )


def mmengine_text(_: Path) -> str:
    return each(
        lambda k: (
            f"2023/04/17 22:5{k}:53 - mmengine - INFO - Epoch(train)  [{k + 1}][ 20/20]  "
            "lr: 1.9547e-05  eta: 1 day, 12:05:49  time: 2.3914  data_time: 0.3414  memory: 17103  "
            f"grad_norm: 11.8007  loss: {TRAIN[k]:.4f}  top1_acc: 0.2500  loss_cls: 3.4804\n"
            f"2023/04/17 22:5{k}:59 - mmengine - INFO - Epoch(val)  [{k + 1}][10/10]  "
            f"acc/top1: {ACC[k]:.4f}  acc/top5: 0.9900  acc/mean1: {ACC[k] - 0.01:.4f}  "
            "data_time: 0.2  time: 0.5\n"
        )
    )


# -- image classification scripts ----------------------------------------------------------


def timm_console(_: Path) -> str:
    def epoch(k: int) -> str:
        return (
            f"Train: {k} [   0/135 (  0%)]  Loss: 2.4403 (2.440)  Time: 1.617s,  633.42/s  "
            "(1.617s,  633.42/s)  LR: 3.229e-02  Data: 1.436 (1.436)\n"
            f"Train: {k} [ 134/135 (100%)]  Loss: 0.4173 ({TRAIN[k]:.3f})  Time: 0.180s, 5683.1/s  "
            "(0.338s, 3029.28/s)  LR: 3.229e-02  Data: 0.000 (0.151)\n"
            "Distributing BatchNorm running means and vars\n"
            "Test: [   0/12]  Time: 1.721 (1.721)  Loss:  0.5059 (0.5059)  "
            "Acc@1: 78.8086 (78.8086)  Acc@5: 100.0000 (100.0000)\n"
            f"Test: [  12/12]  Time: 0.011 (0.329)  Loss:  0.4756 ({VAL[k]:.4f})  "
            f"Acc@1: 78.9474 ({100 * ACC[k]:.4f})  Acc@5: 100.0000 (100.0000)\n"
            "Test (EMA): [  12/12]  Time: 0.011 (0.325)  Loss:  0.8154 (1.0237)  "
            "Acc@1: 99.6711 (53.0496)  Acc@5: 100.0000 (100.0000)\n"
        )

    return each(epoch)


def timm_summary(_: Path) -> str:
    return "epoch,train_loss,eval_loss,eval_top1,eval_top5,lr\n" + each(
        lambda k: f"{k},{TRAIN[k]},{VAL[k]},{100 * ACC[k]},99.2,0.001\n"
    )


def deit_log(_: Path) -> str:
    """JSON lines; the test set is evaluated in every second epoch."""

    def row(k: int) -> str:
        test = {"test_loss": VAL[k], "test_acc1": 100 * ACC[k], "test_acc5": 99.1}
        row = {"train_lr": 1e-4, "train_loss": TRAIN[k], **(test if k % 2 else {}), "epoch": k}
        return json.dumps({**row, "n_parameters": 11590840}) + "\n"

    return each(row)


def swin_log(_: Path) -> str:
    def epoch(k: int) -> str:
        at = f"[2024-07-27 10:{20 + k}:06 swin_tiny]"
        return (
            f"{at} (main.py 295): INFO Train: [{k}/8][0/20]\teta 1 day, 0:47:26 lr 0.000872\t "
            "wd 0.0500\ttime 31.2161 (31.2161)\tloss 2.3442 (2.3442)\tgrad_norm 0.0000 (0.0000)\t"
            "mem 16145MB\n"
            f"{at} (main.py 295): INFO Train: [{k}/8][10/20]\teta 0:00:26 lr 0.000872\t wd 0.0500\t"
            f"time 0.4179 (3.2332)\tloss 1.7202 ({TRAIN[k]:.4f})\tgrad_norm 2.0512 (2.3141)\t"
            "mem 16145MB\n"
            f"{at} (main.py 304): INFO EPOCH {k} training takes 0:00:21\n"
            f"{at} (main.py 346): INFO Test: [10/12]\tTime 0.137 (0.359)\tLoss 1.8301 "
            f"({VAL[k]:.4f})\tAcc@1 62.500 (67.130)\tAcc@5 83.036 (87.904)\tMem 1953MB\n"
            f"{at} (main.py 353): INFO  * Acc@1 {100 * ACC[k]:.3f} Acc@5 98.094\n"
            f"{at} (main.py 186): INFO Accuracy of the network on the 250 test images: "
            f"{100 * ACC[k]:.1f}%\n"
            f"{at} (main.py 190): INFO Max accuracy: {100 * max(ACC[: k + 1]):.2f}%\n"
        )

    return each(epoch)


def torchvision_console(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch: [{k}]  [ 0/50]  eta: 4:43:31  lr: 0.1  img/s: 13.62830983555788  "
            "loss: 6.8536 (6.9458)  acc1: 0.0000 (0.2103)  acc5: 0.0000 (0.9916)  time: 2.5401  "
            "data: 0.0336  max mem: 3524\n"
            f"Epoch: [{k}]  [49/50]  eta: 0:00:01  lr: 0.1  img/s: 3.5788954758177014  "
            f"loss: 6.8593 ({TRAIN[k]:.4f})  acc1: 0.0000 ({100 * TRAIN_ACC[k]:.4f})  "
            "acc5: 0.0000 (0.9821)  time: 2.8689  data: 0.0337  max mem: 3524\n"
            f"Epoch: [{k}] Total time: 0:02:10\n"
            f"Test:  [0/8]  eta: 0:00:09  loss: 0.5 (0.5)  acc1: 90.0000 (90.0000)  time: 1.2  "
            "data: 1.1  max mem: 3524\n"
            f"Test:  Acc@1 {100 * ACC[k]:.3f} Acc@5 98.210\n"
        )
    )


def imagenet_example(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch: [{k}][ 0/50]\tTime  9.315 ( 9.372)\tData  0.002 ( 0.073)\t"
            "Loss 6.9802e+00 (7.0827e+00)\tAcc@1   0.00 (  0.08)\tAcc@5   6.25 (  0.55)\n"
            f"Epoch: [{k}][49/50]\tTime  0.315 ( 0.372)\tData  0.002 ( 0.073)\t"
            f"Loss 6.9802e+00 ({TRAIN[k]:.4e})\tAcc@1   0.00 ( {100 * TRAIN_ACC[k]:.2f})\t"
            "Acc@5   6.25 ( 99.55)\n"
            f"Test: [0/4]\tTime 0.036 (0.039)\tLoss 2.6388e+00 ({VAL[k]:.4e})\tAcc@1 45.000 (76.451)\n"
            f" *   Acc@1 {100 * ACC[k]:.3f} Acc@5 97.474\n"
        )
    )


def mnist_example(_: Path) -> str:
    return each(
        lambda k: (
            f"Train Epoch: {k + 1} [0/1600 (0%)]\tLoss: {TRAIN[k] + 0.2:.6f}\n"
            f"Train Epoch: {k + 1} [640/1600 (40%)]\tLoss: {TRAIN[k] - 0.2:.6f}\n"
            f"\nTest set: Average loss: {VAL[k]:.4f}, Accuracy: {HITS[k]}/250 ({100 * ACC[k]:.0f}%)\n\n"
        )
    )


def mnist_tests_only(_: Path) -> str:
    return each(
        lambda k: (
            f"Test set: Average loss: {VAL[k]:.4f}, Accuracy: {HITS[k]}/250 ({100 * ACC[k]:.0f}%)\n"
        )
    )


def paddleclas_text(_: Path) -> str:
    def epoch(k: int) -> str:
        at = f"[2024/07/31 20:2{k}:32] ppcls INFO:"
        tail = "batch_cost: 0.62808s, reader_cost: 0.12837, ips: 25.77 samples/s"
        return (
            f"{at} [Train][Epoch {k + 1}/8][Iter: 0/304]lr(PiecewiseDecay): 0.00100000, "
            f"top1: 1.00000, CELoss: 0.01757, loss: 0.01757, {tail}, eta: 5:01:10\n"
            f"{at} [Train][Epoch {k + 1}/8][Iter: 10/304]lr(PiecewiseDecay): 0.00100000, "
            f"top1: 0.97159, CELoss: 0.05098, loss: 0.05098, {tail}, eta: 5:08:34\n"
            f"{at} [Train][Epoch {k + 1}/8][Avg]top1: {TRAIN_ACC[k]:.5f}, "
            f"CELoss: {TRAIN[k]:.5f}, loss: {TRAIN[k]:.5f}\n"
            f"{at} [Eval][Epoch {k + 1}][Iter: 0/4]CELoss: 0.03210, loss: 0.03210, top1: 0.98438, "
            f"top5: 1.00000, {tail}\n"
            f"{at} [Eval][Epoch {k + 1}][Avg]CELoss: {VAL[k]:.5f}, loss: {VAL[k]:.5f}, "
            f"top1: {ACC[k]:.5f}, top5: 1.00000\n"
            f"{at} [Eval][Epoch {k + 1}][best metric: {max(ACC[: k + 1]):.5f}]\n"
        )

    return each(epoch)


def paddleclas_static(_: Path) -> str:
    def epoch(k: int) -> str:
        tail = "batch_cost: 0.08779 s, reader_cost: 0.00010 s, ips: 121.41242 images/sec."
        at = f"2020-12-30 06:1{k}:33 INFO:"
        return (
            f"{at} epoch:{k}   train step:10   top1: 0.0000 top5: 0.0312 loss: 11.5920 "
            f"lr: 0.100000, {tail}\n"
            f"{at} END epoch:{k}   train top1: {TRAIN_ACC[k]:.4f} top5: 0.9373 "
            f"loss:  {TRAIN[k]:.4f}  {tail}\n"
            f"{at} valid step:10   top1: 0.0625 top5: 0.0625 loss: 5481.1924 lr: 0.000000, {tail}\n"
            f"{at} END valid top1: {ACC[k]:.4f} top5: 0.9569 loss: {VAL[k]:.4f}  {tail}\n"
        )

    return each(epoch)


def skeleton_log(_: Path) -> str:
    """A training and an evaluation in turn; the lines with numbers name neither epoch nor split."""
    at = "[ Fri Apr 14 15:01:22 2023 ]"
    return each(
        lambda k: (
            f"{at} Training epoch: {k + 1}\n"
            f"{at} \tMean training loss: {TRAIN[k]:.4f}.  "
            f"Mean training acc: {100 * TRAIN_ACC[k]:.2f}%.\n"
            f"{at} \tTime consumption: [Data]07%, [Network]92%\n"
            f"{at} Eval epoch: {k + 1}\n"
            f"{at} \tMean test loss of 8 batches: {VAL[k]}.\n"
            f"{at} \tTop1: {100 * ACC[k]:.2f}%\n{at} \tTop5: 98.71%\n"
        )
    )


# -- text ----------------------------------------------------------------------------------


def hf_console(_: Path) -> str:
    def epoch(k: int) -> str:
        loss = {"loss": TRAIN[k], "learning_rate": 4.5e-05, "global_step": 20 * k + 20}
        found = {"eval_loss": VAL[k], "eval_accuracy": ACC[k], "eval_runtime": 0.9}
        bar = f" {12 * (k + 1)}%|██████▋      | {20 * k + 20}/160 [01:11<01:58,  3.37it/s]"
        head = "[2022-03-25 16:41:50,060] [    INFO] - ***** Running Evaluation *****"
        train, val = ({**values, "epoch": k + 1.0} for values in (loss, found))
        return f"{bar}\r{train}\n{bar}{head}\n{val}\n"

    end = {"train_runtime": 72.0, "train_samples_per_second": 88.0, "train_loss": 9.9, "epoch": 8.0}
    return each(epoch) + repr(end) + "\n"


def hf_own_metrics(_: Path) -> str:
    return each(
        lambda k: (
            repr({"loss": TRAIN[k], "learning_rate": 1e-5, "epoch": k + 0.99})
            + "\n"
            + repr(
                {
                    "eval_loss": VAL[k],
                    "eval_pearson_cosine": ACC[k],
                    "eval_spearman_cosine": ACC[k] - 0.01,
                    "eval_runtime": 49.1914,
                    "eval_samples_per_second": 119.431,
                    "epoch": k + 1.0,
                }
            )
            + "\n"
        )
    )


def model_card(_: Path) -> str:
    """The table of a model card that Hugging Face's Trainer writes."""
    return (
        "| Training Loss | Epoch | Step | Validation Loss | Accuracy |\n"
        "|:-------------:|:-----:|:----:|:---------------:|:--------:|\n"
    ) + each(
        lambda k: (
            f"| {TRAIN[k] if k else 'No log':<13} | {k + 1}.0   | {20 * k + 20:<4} "
            f"| {VAL[k]:<15} | {ACC[k]:<8} |\n"
        )
    )


def fairseq_text(_: Path) -> str:
    return each(
        lambda k: (
            f"| epoch {k + 1:03d}:   1000 / 2737 loss=9.220, nll_loss=5.070, ppl=33.60, "
            "wps=12800, num_updates=22897, lr=0.000208983, gnorm=1.242, wall=4847, train_wall=4501\n"
            f"| epoch {k + 1:03d} | loss {TRAIN[k]:.3f} | nll_loss {TRAIN[k] - 0.1:.3f} | ppl 36.58 "
            f"| wps 12876 | num_updates {100 * k + 100} | lr 0.000213706 | gnorm 1.201 | clip 0% "
            f"| wall {60 * k + 60} | train_wall 4309\n"
            f"| epoch {k + 1:03d} | valid on 'valid' subset | valid_loss {VAL[k]:.5f} "
            f"| valid_nll_loss {VAL[k] - 0.1:.5f} | valid_ppl 37.61 | num_updates {100 * k + 100} "
            f"| best {min(VAL[: k + 1]):.5f}\n"
        )
    )


def fairseq_json(_: Path) -> str:
    def epoch(k: int) -> str:
        train = {"epoch": k + 1, "loss": f"{TRAIN[k]:.3f}", "nll_loss": "9.3", "ppl": "2.51"}
        train |= {"num_updates": 100 * k + 100, "lr": 0.00019, "wall": 60 * k}
        val = {"epoch": k + 1, "valid_loss": VAL[k], "valid_nll_loss": 9.1, "valid_ppl": "2.5"}
        return f"{json.dumps(train)}\n{json.dumps(val)}\n"

    return each(epoch)


def nanogpt(_: Path) -> str:
    return each(
        lambda k: (
            f"step {250 * k}: train loss {TRAIN[k]:.4f}, val loss {VAL[k]:.4f}\n"
            "saving checkpoint to out\n"
            f"iter {250 * k}: loss {TRAIN[k] + 0.3:.4f}, time 35392.33ms, mfu -100.00%\n"
            f"iter {250 * k + 10}: loss {TRAIN[k] + 0.2:.4f}, time 1019.95ms, mfu 15.34%\n"
        )
    )


def pytorch_tutorial(_: Path) -> str:
    """Bars over the epochs, to which `print` adds its line."""
    return (
        each(
            lambda k: (
                f" {12 * k:2d}%|{'█' * k}    | {k}/8 [00:{10 * k:02d}<01:20, 10.1s/it]Epoch {k}/7\n"
                f"----------\ntrain Loss: {TRAIN[k]:.4f} Acc: {TRAIN_ACC[k]:.4f}\n"
                f"val Loss: {VAL[k]:.4f} Acc: {ACC[k]:.4f}\n\n"
            )
        )
        + "100%|████| 8/8 [01:21<00:00, 10.1s/it]\nTraining complete in 1m 21s\nBest val Acc: 0.804\n"
    )


def printed_names(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch:  {k + 1}  Train loss: {TRAIN[k]:.4f}  Train accuracy {TRAIN_ACC[k]:.4f}  "
            f"Val loss: {VAL[k]:.4f}  Val accuracy: {ACC[k]:.4f}\n"
        )
    )


def printed_camel(_: Path) -> str:
    return each(lambda k: f"Epoch {k + 1}, Loss: {TRAIN[k]}, ValLoss: {VAL[k]}\n")


def printed_dev(_: Path) -> str:
    at = "[INFO] 2017-05-20T06:19:07+0800:"
    return each(
        lambda k: f"{at} Epoch: {k}; Train loss: {TRAIN[k]}; Dev loss: {VAL[k]}; (train.py:98)\n"
    )


def unet_brackets(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch [{k + 1}/8], Loss: {TRAIN[k]:.4f}, \n"
            f"[Training] Acc: {TRAIN_ACC[k]:.4f}, SE: 0.9043, SP: 0.9758, F1: 0.8846, DC: 0.8846\n"
            "Decay learning rate to lr: 0.00011421844870607387.\n"
            f"[Validation] Acc: {ACC[k]:.4f}, SE: 0.4404, SP: 0.9950, F1: 0.4643, DC: 0.4643\n"
        )
    )


def catalyst_text(_: Path) -> str:
    def line(k: int, split: str, acc: float, loss: float) -> str:
        return (
            f"{k}/8 * Epoch {k} ({split}): _base/lr=0.0012 | _base/momentum=0.8979 | "
            "_timers/_fps=6851.7349 | _timers/batch_time=0.0093 | _timers/data_time=0.0089 | "
            f"accuracy01={100 * acc:.4f} | accuracy03=99.2344 | loss={loss:.4f}\n"
        )

    return each(
        lambda k: (
            f"[2019-08-07 23:09:1{k},549] \n"
            + line(k, "train", TRAIN_ACC[k], TRAIN[k])
            + line(k, "valid", ACC[k], VAL[k])
        )
    )


def ignite_text(_: Path) -> str:
    return each(
        lambda k: (
            f"Training Results - Epoch[{k + 1}] Avg accuracy: {TRAIN_ACC[k]:.2f} "
            f"Avg loss: {TRAIN[k]:.2f}\n"
            f"Validation Results - Epoch[{k + 1}] Avg accuracy: {ACC[k]:.3f} Avg loss: {VAL[k]:.2f}\n"
        )
    )


def nnunet_2(_: Path) -> str:
    at = "2024-04-26 09:41:39.493872:"
    return each(
        lambda k: (
            f"{at} Epoch {k}\n{at} Current learning rate: 0.01\n"
            f"{at} train_loss {TRAIN[k] - 1:.4f}\n{at} val_loss {VAL[k] - 1:.4f}\n"
            f"{at} Pseudo dice [{ACC[k] - 0.1:.4f}, {ACC[k] + 0.1:.4f}]\n{at} Epoch time: 148.59 s\n"
            f"{at} Yayy! New best EMA pseudo Dice: 0.8196\n{at} \n"
        )
    )


def nnunet_1(_: Path) -> str:
    at = "2022-02-11 09:34:49.625515:"
    return each(
        lambda k: (
            f"{at} \nepoch:  {k}\n{at} train loss : {TRAIN[k] - 1:.4f}\n"
            f"{at} validation loss: {VAL[k] - 1:.4f}\n"
            f"{at} Average global foreground Dice: [{ACC[k]:.4f}]\n{at} lr: 0.009937\n"
            f"{at} This epoch took 137.136132 s\n"
        )
    )


def flair_text(_: Path) -> str:
    at = "2019-02-19 18:37:12,097"
    return each(
        lambda k: (
            f"{at} epoch {k + 1} - iter 0/249 - loss 0.04735912\n"
            f"{at} epoch {k + 1} - iter 24/249 - loss 0.03604057\n"
            f"{at} {'-' * 100}\n"
            f"{at} EPOCH {k + 1} done: loss {TRAIN[k]:.4f} - lr 0.1000 - bad epochs 0\n"
            f"{at} DEV  : loss {VAL[k]:.8f} - f-score {ACC[k]:.4f} - acc {ACC[k]:.4f}\n"
            f"{at} TEST : loss 0.04066545 - f-score 0.5521 - acc 0.5521\n"
        )
    )


def lightning_bar(_: Path) -> str:
    """The bar in a file: an epoch's values are written at its end, and again during the next."""

    def epoch(k: int) -> str:
        old = f", val_acc={ACC[k - 1]:.3f}" if k else ""
        return (
            f"\rEpoch {k}:   0%|          | 0/18 [00:00<?, ?it/s{old}]"
            f"\rEpoch {k}:  50%|█████     | 9/18 [00:17<01:02,  4.47s/it, loss=9.9, v_num=0{old}]"
            "\n\rValidation DataLoader 0: 100% 1/1 [00:00<00:00, 1113.73it/s]\x1b[A"
            f"\rEpoch {k}: 100%|██████████| 18/18 [00:35<00:00,  1.9it/s, loss={TRAIN[k]:.3f}, "
            f"v_num=0, val_acc={ACC[k]:.3f}]"
        )

    return each(epoch) + "\n"


def xgboost_text(_: Path) -> str:
    return each(
        lambda k: f"[{k}]\ttest-merror:{1 - ACC[k]:.6f}\ttrain-merror:{1 - TRAIN_ACC[k]:.6f}\n"
    )


def lightgbm_text(_: Path) -> str:
    return each(
        lambda k: (
            f"[LightGBM] [Info] Iteration:{k + 1}, training auc : {TRAIN_ACC[k]:.6f}\n"
            f"[LightGBM] [Info] Iteration:{k + 1}, training binary_logloss : {TRAIN[k]:.6f}\n"
            f"[LightGBM] [Info] Iteration:{k + 1}, valid_1 auc : {ACC[k]:.6f}\n"
            f"[LightGBM] [Info] Iteration:{k + 1}, valid_1 binary_logloss : {VAL[k]:.6f}\n"
            f"[LightGBM] [Info] 246.718472 seconds elapsed, finished iteration {k + 1}\n"
        )
    )


def xgboost_sets(_: Path) -> str:
    """Training data as the first set, as of `eval_set=[(x, y), (x_val, y_val)]`."""
    return each(
        lambda k: f"[{k}]\tvalidation_0-auc:{TRAIN_ACC[k]:.5f}\tvalidation_1-auc:{ACC[k]:.5f}\n"
    )


def xgboost_rmse(_: Path) -> str:
    return each(lambda k: f"[{k}]\ttrain-rmse:{TRAIN[k]:.5f}\teval-rmse:{VAL[k]:.5f}\n")


def lightgbm_callback(_: Path) -> str:
    return "Training until validation scores don't improve for 10 rounds\n" + each(
        lambda k: f"[{k + 1}]\ttraining's auc: {TRAIN_ACC[k]:.6g}\tvalid_1's auc: {ACC[k]:.6g}\n"
    )


def lightgbm_loss(_: Path) -> str:
    return each(
        lambda k: (
            f"[{k + 1}]\ttraining's binary_logloss: {TRAIN[k]}\tvalid_1's binary_logloss: {VAL[k]}\n"
        )
    )


def sklearn_boosting(_: Path) -> str:
    return "Binning 0.001 GB of training data: 0.007 s\nFitting gradient boosted rounds:\n" + each(
        lambda k: (
            f"[{k + 1}/100] 1 tree, 31 leaves, max depth = 8, train loss: {TRAIN[k]:.5f}, val loss: {VAL[k]:.5f}, in 0.002s\n"
        )
    )


def _catboost(learn: Iterable[float], test: Iterable[float], pick: Callable[..., float]) -> str:
    text, seen = "", []
    for k, (trained, value) in enumerate(zip(learn, test, strict=True)):
        seen.append(value)
        best = pick(seen)
        text += (
            f"{k}:\tlearn: {trained:.7f}\ttest: {value:.7f}\tbest: {best:.7f} ({seen.index(best)})"
        )
        text += f"\ttotal: {k * 480 + 480}ms\tremaining: 1h 40m {k}s\n"
    return (
        text + f"Stopped by overfitting detector  (2 iterations wait)\n\nbestTest = {pick(seen)}\n"
    )


def catboost_auc(_: Path) -> str:
    return _catboost(TRAIN_ACC, ACC, max)


def catboost_loss(_: Path) -> str:
    return _catboost(TRAIN, VAL, min)


def composer_console(_: Path) -> str:
    return each(
        lambda k: (
            f"[epoch={k + 1}/8][batch=20/20]:\n\t Train time/epoch: {k}\n"
            f"\t Train trainer/global_step: {20 * k + 19}\n\t Train trainer/batch_idx: 19\n"
            f"\t Train loss/train/total: {TRAIN[k]:.4f}\n"
            f"\t Train metrics/train/MulticlassAccuracy: {TRAIN_ACC[k]:.4f}\n"
            "\t Train throughput/samples_per_sec: 3.2217\n\t Train wall_clock/train: 19.8653\n"
            f"[Eval batch=4/4] Eval on eval data:\n"
            f"\t Eval metrics/eval/CrossEntropy: {VAL[k]:.4f}\n"
            f"\t Eval metrics/eval/MulticlassAccuracy: {ACC[k]:.4f}\n"
        )
    )


# -- detection -----------------------------------------------------------------------------


def yolov5_csv(_: Path) -> str:
    names = [
        "epoch", "train/box_loss", "train/obj_loss", "train/cls_loss", "metrics/precision",
        "metrics/recall", "metrics/mAP_0.5", "metrics/mAP_0.5:0.95", "val/box_loss",
        "val/obj_loss", "val/cls_loss", "x/lr0", "x/lr1", "x/lr2",
    ]  # fmt: skip
    head = ",".join(f"{name:>20}" for name in names)

    def row(k: int) -> str:
        cells = [
            k,
            TRAIN[k],
            0.03,
            0.02,
            0.9,
            0.8,
            0.97,
            ACC[k],
            VAL[k],
            0.03,
            0.02,
            0.01,
            0.01,
            0.1,
        ]
        return ",".join(f"{cell:>20}" for cell in cells) + "\n"

    return f"{head}\n" + each(row)


def yolov8_csv(_: Path) -> str:
    return (
        "epoch,time,train/box_loss,train/cls_loss,train/dfl_loss,metrics/precision(B),"
        "metrics/recall(B),metrics/mAP50(B),metrics/mAP50-95(B),val/box_loss,val/cls_loss,"
        "val/dfl_loss,lr/pg0,lr/pg1,lr/pg2\n"
    ) + each(
        lambda k: (
            f"{k + 1},{12.5 * (k + 1)},{TRAIN[k]},1.2,1.1,0.9,0.8,0.97,{ACC[k]},{VAL[k]},"
            "1.3,1.1,0.01,0.01,0.01\n"
        )
    )


def yolov5_text(_: Path) -> str:
    """results.txt has 15 columns without names."""
    return each(
        lambda k: (
            f"     {k}/7     7.1G    {TRAIN[k]}     0.143         0    0.2508       106       "
            f"640         0         0     0.97     {ACC[k]}    {VAL[k]}    0.1189         0\n"
        )
    )


def darknet(_: Path) -> str:
    def rows(k: int) -> str:
        at = [f" {100 * k + part}: {TRAIN[k]}, {TRAIN[k]} avg loss, 0.001000 rate, 2.345678 seconds, "
              f"{64 * (100 * k + part)} images, 1.5 hours left\n" for part in (50, 100)]  # fmt: skip
        return (
            f"{''.join(at)} (next mAP calculation at {100 * k + 200} iterations)\n"
            f" mean average precision (mAP@0.50) = {ACC[k]:.6f}, or {100 * ACC[k]:.2f} % \n"
            "Total Detection Time: 12 Seconds\n"
        )

    return f"yolov4-custom\n{each(rows)}"


def detectron2_json(_: Path) -> str:
    def rows(k: int) -> str:
        train = {"data_time": 0.0097, "eta_seconds": 2810.6, "fast_rcnn/cls_accuracy": 0.99,
                 "loss_box_reg": 0.06, "loss_cls": 0.02, "lr": 0.01, "time": 0.4}  # fmt: skip
        first = {**train, "iteration": 100 * k + 19, "total_loss": TRAIN[k]}
        second = {**train, "iteration": 100 * k + 99, "total_loss": TRAIN[k]}
        found = {"bbox/AP": 100 * ACC[k], "bbox/AP50": 97.0, "bbox/AP-cat": 80.1}
        return json.dumps(first) + "\n" + json.dumps({**second, **found}) + "\n"

    return each(rows) + json.dumps({"bbox/AP50": 97.0}) + "\n"


def _coco_summary(value: float) -> str:
    return (
        f" Average Precision  (AP) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = {value:.3f}\n"
        " Average Precision  (AP) @[ IoU=0.50      | area=   all | maxDets=100 ] = 0.970\n"
        " Average Precision  (AP) @[ IoU=0.50:0.95 | area= small | maxDets=100 ] = -1.000\n"
        " Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=  1 ] = 0.988\n"
    )


def _detectron2_line(k: int, iteration: int) -> str:
    return (
        f"[06/17 20:39:01 d2.utils.events]:  eta: 0:48:00  iter: {iteration}  total_loss: {TRAIN[k]}  "
        "loss_cls: 0.6341  time: 0.4012  data_time: 0.0071  lr: 2.47e-05  max_mem: 4011M\n"
    )


def _detectron2_evaluation(k: int, *, is_copied: bool) -> str:
    copied = (
        "[06/17 22:00:12 d2.evaluation.testing]: copypaste: Task: bbox\n"
        "[06/17 22:00:12 d2.evaluation.testing]: copypaste: AP,AP50,AP75,APs,APm,APl\n"
        f"[06/17 22:00:12 d2.evaluation.testing]: copypaste: {100 * ACC[k]:.4f},97.1,81.2,nan,70.1,71.2\n"
    )
    return (
        "[06/17 22:00:01 d2.data.datasets.coco]: Loaded 250 images in COCO format from val.json\n"
        "[06/17 22:00:09 d2.evaluation.evaluator]: Inference done 250/250. 0.0712 s / img. ETA=0:00:00\n"
        + _coco_summary(ACC[k])
        + "[06/17 22:00:12 d2.evaluation.coco_evaluation]: Evaluation results for bbox: \n"
        "|   AP   |  AP50  |  AP75  |  APs  |  APm   |  APl   |\n"
        "|:------:|:------:|:------:|:-----:|:------:|:------:|\n"
        f"| {100 * ACC[k]:.3f} | 97.100 | 81.200 |  nan  | 70.100 | 71.200 |\n"
        + (copied if is_copied else "")
    )


def detectron2_text(_: Path) -> str:
    """Lines every 20 iterations; an evaluation precedes the line of its own iteration."""

    def rows(k: int) -> str:
        lines = [_detectron2_line(k, 100 * k + more) for more in (19, 39, 59, 79, 99)]
        return "".join([*lines[:-1], _detectron2_evaluation(k, is_copied=True), lines[-1]])

    return each(rows)


def detectron2_table(_: Path) -> str:
    """Without the lines to copy; the evaluation follows the line of its iteration."""
    return each(
        lambda k: _detectron2_line(k, 100 * k + 99) + _detectron2_evaluation(k, is_copied=False)
    )


def torchvision_detection(_: Path) -> str:
    return each(
        lambda k: (
            f"Epoch: [{k}]  [  0/975]  eta: 0:01:08  lr: 0.001  loss: {TRAIN[k]:.4f} ({TRAIN[k]:.4f})  "
            "loss_classifier: 0.1 (0.1)  time: 0.5  data: 0.1  max mem: 2100\n"
            f"Epoch: [{k}] Total time: 0:01:08 (0.5 s / it)\ncreating index...\n"
            "Test:  [  0/250]  eta: 0:00:12  model_time: 0.04 (0.04)  evaluator_time: 0.002 (0.002)  time: 0.05\n"
            "Accumulating evaluation results...\nDONE (t=0.01s).\nIoU metric: bbox\n"
            + _coco_summary(ACC[k])
            + "IoU metric: segm\n"
            + _coco_summary(0.9)
        )
    )


def yolox_console(_: Path) -> str:
    head = "2021-07-21 10:31:12 | INFO     | yolox.core.trainer:"
    return each(
        lambda k: (
            f"{head}195 - ---> start train epoch{k + 1}\n"
            f"{head}253 - epoch: {k + 1}/8, iter: 100/100, mem: 2461Mb, iter_time: 0.1s, data_time: 0.0s, "
            f"total_loss: {TRAIN[k]}, iou_loss: 2.1, l1_loss: 0.0, conf_loss: 1.5, cls_loss: 0.6, lr: 1.0e-03, size: 640, ETA: 1:02:03\n"
            "Evaluate annotation type *bbox*\nCOCOeval_opt.evaluate() finished in 0.12 seconds.\n"
            f"2021-07-21 10:33:12 | INFO     | yolox.core.trainer:350 - \n"
            "Average forward time: 4.05 ms, Average NMS time: 0.91 ms, Average inference time: 4.96 ms\n"
            + _coco_summary(ACC[k])
        )
    )


def detr_log(_: Path) -> str:
    def row(k: int) -> str:
        train = {"train_lr": 1e-4, "train_class_error": 70.9, "train_loss": TRAIN[k]}
        test = {"test_loss": VAL[k], "test_coco_eval_bbox": [ACC[k], 0.97, 0.81, 0.2, 0.3, 0.4]}
        parts = {"train_loss_ce": 1.9, "train_loss_bbox": 1.1, "test_loss_ce": 1.8}
        return json.dumps({**train, **parts, **test, "epoch": k, "n_parameters": 41352544}) + "\n"

    return each(row)


# -- folders -------------------------------------------------------------------------------


def allennlp_folder(folder: Path) -> None:
    for k in EPOCHS:
        best = max(ACC[: k + 1])
        values = {
            "best_epoch": ACC.index(best), "peak_gpu_0_memory_MB": 12629,
            "training_duration": f"0:0{k + 1}:00.069050", "training_start_epoch": 0,
            "training_epochs": k, "epoch": k, "training_accuracy": TRAIN_ACC[k],
            "training_loss": TRAIN[k], "training_cpu_memory_MB": 5152.204,
            "validation_accuracy": ACC[k], "validation_loss": VAL[k],
            "best_validation_accuracy": best, "best_validation_loss": 0.66,
        }  # fmt: skip
        (folder / f"metrics_epoch_{k}.json").write_text(json.dumps(values, indent=2))


def tensorboard_scalars(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for k in EPOCHS:
            writer.add_scalars("Loss", {"train": TRAIN[k], "val": VAL[k]}, k)
            writer.add_scalars("Accuracy", {"train": TRAIN_ACC[k], "val": ACC[k]}, k)


def tensorboard_scalars_named(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for k in EPOCHS:
            writer.add_scalars(
                "a_run", {"train_loss": TRAIN[k], "val_loss": VAL[k], "val_acc": ACC[k]}, k
            )


def torchrun_console(_: Path) -> str:
    """Each of four processes prints its own quarter of the validation."""
    return each(
        lambda k: "".join(
            f"[GPU{rank}] Epoch {k} | Steps: 59 | train loss {TRAIN[k]} | val acc {ACC[k] if rank == 0 else 0.79:.4f}\n"
            for rank in (1, 3, 0, 2)
        )
    )


def caffe_console(_: Path) -> str:
    head = "I0914 08:00:09.349800  6584 solver.cpp"
    return each(
        lambda k: (
            f"{head}:337] Iteration {1000 * k}, Testing net (#0)\n"
            f"{head}:404]     Test net output #0: accuracy = {ACC[k]}\n"
            f"{head}:404]     Test net output #1: loss = {VAL[k]} (* 1 = {VAL[k]} loss)\n"
            f"{head}:228] Iteration {1000 * k}, loss = {TRAIN[k]}\n"
            f"{head}:244]     Train net output #0: loss = {TRAIN[k]} (* 1 = {TRAIN[k]} loss)\n"
        )
    )


def _write_events(folder: Path, epochs: Iterable[int], suffix: str, worse: float = 0.0) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
        for k in epochs:
            writer.add_scalar("train/loss", TRAIN[k] + worse, k + 1)
            writer.add_scalar("val/acc", ACC[k] - worse, k + 1)


def tensorboard_resumed(folder: Path) -> None:
    """Stopped after five steps; resumed from the checkpoint of the third."""
    _write_events(folder, range(3), ".1")
    _write_events(folder, range(3, 5), ".2", worse=0.02)
    _write_events(folder, range(3, 8), ".3")


def tensorboard_two(folder: Path) -> None:
    _write_events(folder, EPOCHS, ".1")
    _write_events(folder, EPOCHS, ".2")


def lightning_rates(folder: Path) -> None:
    """metrics.csv with rows of LearningRateMonitor, of single steps, and of the test."""
    lines = [
        "epoch,lr-Adam,step,test_acc,test_loss,train_loss_epoch,train_loss_step,val_acc,val_loss"
    ]
    for k in EPOCHS:
        lines.append(f",0.001,{20 * k},,,,,,")
        lines.append(f"{k},,{20 * k + 9},,,,{TRAIN[k] + 0.3},,")
        lines.append(f"{k},,{20 * k + 19},,,,,{ACC[k]},{VAL[k]}")
        lines.append(f"{k},,{20 * k + 19},,,{TRAIN[k]},,,")
    lines.append("8,,160,0.79,0.7,,,,")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def lightning_after_resume(folder: Path) -> None:
    """The logger deleted what was written before the training resumed."""
    lines = ["epoch,step,train/loss,val/acc,val/loss"]
    for k in EPOCHS:
        lines.append(f"{k + 35},{20 * (k + 35) + 19},,{ACC[k]},{VAL[k]}")
        lines.append(f"{k + 35},{20 * (k + 35) + 19},{TRAIN[k]},,")
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")


def _tqdm(line: str, num: int) -> str:
    states = (
        f"\r{line}: {done}%|{'█' * (done // 10):10}| {num * done // 100}/{num} [00:0{done // 50}<00:01,  9.0it/s]"
        for done in (50, 100)
    )
    return "".join(states) + "\n"


def yolov8_classify_console(folder: Path) -> str:
    lines = ["Ultralytics YOLOv8.0.81 Python-3.9.16 torch-2.0.0 CPU", ""]
    for k in EPOCHS:
        lines.append("      Epoch    GPU_mem       loss  Instances       Size")
        lines.append(
            _tqdm(f"      {k + 1}/100         0G     {TRAIN[k]:.4f}         16        224", 90)
            + _tqdm("               classes   top1_acc   top5_acc", 16)
            + f"                   all      {ACC[k]:.3f}          1"
        )
    return "\n".join(lines) + "\n"


def yolov8_detect_console(folder: Path) -> str:
    head = (
        "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)"
    )
    text = ""
    for k in EPOCHS:
        text += "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        text += _tqdm(
            f"      {k + 1}/8      2.91G      {TRAIN[k]:.4f}      1.678      1.233         21        640",
            8,
        )
        text += (
            _tqdm(head, 4)
            + f"                   all        250        929       0.64      0.537      0.9      {ACC[k]:.3f}\n\n"
        )
    text += "8 epochs completed in 0.011 hours.\nValidating runs/detect/train/weights/best.pt...\n"
    text += (
        _tqdm(head, 4)
        + f"                   all        250        929       0.64      0.537      0.9      {BEST:.3f}\n"
    )
    return (
        text
        + "                person        250        254       0.80      0.650      0.9      0.990\n"
    )


def yolov5_console(folder: Path) -> str:
    text = ""
    for k in EPOCHS:
        text += "     Epoch   gpu_mem       box       obj       cls    labels  img_size\n"
        text += _tqdm(
            f"     {k}/299     3.75G   {TRAIN[k]:.5f}   0.06898   0.02011       134       640", 8
        )
        text += _tqdm(
            "               Class     Images     Labels          P          R     mAP@.5 mAP@.5:.95",
            4,
        )
        text += f"                 all        250        929       0.64      0.537      0.9      {ACC[k]:.3f}\n"
    return text


def yolov5_classify_console(folder: Path) -> str:
    text = "     Epoch   GPU_mem  train_loss    val_loss    top1_acc    top5_acc\n"
    for k in EPOCHS:
        text += _tqdm(f"{f'{k + 1}/8':>10}{'0.5G':>10}{TRAIN[k]:>12.3g}{' ' * 36}", 4).rstrip("\n")
        text += _tqdm(
            f"{f'{k + 1}/8':>10}{'0.5G':>10}{TRAIN[k]:>12.3g}{VAL[k]:>12.3g}{ACC[k]:>12.3g}{1.0:>12.3g}",
            4,
        )
    return text


KERAS, YOLO = "Keras", "Ultralytics"
SHAPES = (
    Shape(trainer=KERAS, version="1", log="`fit`, `verbose=1`", source="keras-team/keras#8680",
          name="out.txt", write=keras_bar_1),
    Shape(trainer=KERAS, version="2.0", log="`fit`, `verbose=1` that ends with `ETA: 0s`",
          source="keras-team/keras#8169", name="out.txt", write=keras_bar_eta),
    Shape(trainer=KERAS, version="2.2", log="`fit` on a generator without a length",
          source="keras-team/keras#8169", name="out.txt", write=keras_unknown),
    Shape(trainer=KERAS, version="tf.keras 2.6", log="`fit`, `verbose=2`",
          source="JesperDramsch/keras-complex#22", name="out.txt", write=tf_keras_line),
    Shape(trainer=KERAS, version="1.1", log="CSVLogger, `append=True`: the header again",
          source="keras-team/keras#4426", name="training.log", write=keras_csv_appended),
    Shape(trainer="fastai", version="1", log="CSVLogger, `append=True`: two trainings, an index",
          source="fastai/fastai#2443", name="history.csv", write=fastai_appended, num_trainings=2),
    Shape(trainer="fastai", version="2", log="table of a notebook", source="timeseriesAI/tsai#639",
          name="out.txt", write=fastai_notebook),
    Shape(trainer="fastai", version="1", log="table of a terminal", source="fastai/fastai#2512",
          name="out.txt", write=fastai_spaces),
    Shape(trainer="skorch", version="0.9", log="PrintLog",
          source="skorch-dev/skorch: skorch/callbacks/logging.py", name="out.txt", write=skorch_table),
    Shape(trainer="sentence-transformers", version="2", log="results of an evaluator as CSV",
          source="huggingface/sentence-transformers#728",
          name="accuracy_evaluation_dev_results.csv", write=sentence_transformers_csv,
          train_loss=None),
    Shape(trainer="W&B", version="2023", log="a panel exported as CSV", source="wandb/wandb#5349",
          name="wandb_export.csv", write=wandb_panel, best_epoch=None, train_loss=None),
    Shape(trainer="W&B", version="2023", log="a panel of two runs", source="wandb/wandb#5349",
          name="wandb_export.csv", write=wandb_two_runs, best_epoch=None, train_loss=None,
          num_trainings=2),
    Shape(trainer="TensorBoard", version="2", log="CSV files of the download button, one per tag",
          source="tensorflow/tensorboard#4925", name="downloads", write=tensorboard_downloads),
    Shape(trainer="MLflow", version="2", log="history of metrics as CSV, one row per value",
          source="mlflow/mlflow#4850", name="history.csv", write=mlflow_history, best_epoch=None,
          best_step=6),
    Shape(trainer="DeepLabCut", version="3", log="learning_stats.csv that each save writes again",
          source="DeepLabCut/DeepLabCut#3183", name="learning_stats.csv", write=csv_rewritten,
          metric="val_loss", best=0.66, best_epoch=None),
    Shape(trainer="mmcls", version="0.13", log="text log", source="open-mmlab/mmpretrain#360",
          name="20210714_135219.log", write=mmcls_text),
    Shape(trainer="mmcls", version="0.23", log="`.log.json`", source="open-mmlab/mmpretrain#993",
          name="20220805.log.json", write=mmcls_json),
    Shape(trainer="mmcls", version="0.16", log="`.log.json`, resumed",
          source="open-mmlab/mmpretrain#449", name="20210914.log.json", write=mmcls_json_resumed),
    Shape(trainer="mmengine", version="0.3", log="`scalars.json`, by iterations",
          source="open-mmlab/mmengine#683", name="scalars.json", write=mmengine_scalars,
          metric="mIoU", best_epoch=None),
    Shape(trainer="mmengine", version="0.7", log="text log", source="open-mmlab/mmaction2#2408",
          name="20230417.log", write=mmengine_text),
    Shape(trainer="timm", version="0.4", log="console, with EMA",
          source="huggingface/pytorch-image-models#245", name="out.txt", write=timm_console),
    Shape(trainer="timm", version="0.9", log="summary.csv",
          source="huggingface/pytorch-image-models: timm/utils/summary.py", name="summary.csv", write=timm_summary),
    Shape(trainer="Darknet", version="YOLOv4", log="console", source="AlexeyAB/darknet#1563",
          name="out.txt", write=darknet, metric="mAP50", best_epoch=None, best_step=600),
    Shape(trainer="DeiT", version="2021", log="log.txt", source="yuhuan-wu/P2T#13", name="log.txt",
          write=deit_log, num=4, train_loss=None),
    Shape(trainer="Swin", version="2021", log="log_rank0.txt", source="MzeroMiko/VMamba#273",
          name="log_rank0.txt", write=swin_log),
    Shape(trainer="torchvision references", version="0.9", log="console",
          source="fangwei123456/Spike-Element-Wise-ResNet#10", name="out.txt",
          write=torchvision_console),
    Shape(trainer="PyTorch examples", version="imagenet", log="console",
          source="yjh0410/pytorch-imagenet#1", name="out.txt", write=imagenet_example),
    Shape(trainer="PyTorch examples", version="mnist", log="console",
          source="wangkuiyi/gotorch#265", name="out.txt", write=mnist_example),
    Shape(trainer="PyTorch examples", version="mnist", log="lines of the test only",
          source="pytorch/examples#658", name="out.txt", write=mnist_tests_only, best_epoch=None,
          train_loss=None),
    Shape(trainer="PaddleClas", version="2.5", log="train.log",
          source="PaddlePaddle/PaddleClas#3203", name="train.log", write=paddleclas_text),
    Shape(trainer="PaddleClas", version="2.0", log="console", source="PaddlePaddle/PaddleClas#525",
          name="out.txt", write=paddleclas_static),
    Shape(trainer="own script", version="", log="sections for training and evaluation",
          source="MartinXM/GAP#3", name="log.txt", write=skeleton_log),
    Shape(trainer="Hugging Face", version="4 (PaddleNLP)", log="console",
          source="PaddlePaddle/PaddleNLP#1761", name="out.txt", write=hf_console),
    Shape(trainer="Hugging Face", version="4", log="console, with a metric of one's own",
          source="huggingface/sentence-transformers#2449", name="out.txt", write=hf_own_metrics,
          metric="eval_spearman_cosine", best=0.794),
    Shape(trainer="Hugging Face", version="4", log="table of a model card",
          source="huggingface/transformers: src/transformers/modelcard.py", name="README.md",
          write=model_card),
    Shape(trainer="fairseq", version="0.6", log="log format `simple`",
          source="facebookresearch/fairseq#514", name="out.txt", write=fairseq_text,
          metric="val_loss", best=0.66),
    Shape(trainer="fairseq", version="0.6", log="log format `json`",
          source="facebookresearch/fairseq#233", name="out.txt", write=fairseq_json,
          metric="val_loss", best=0.66),
    Shape(trainer="nanoGPT", version="2023", log="console", source="karpathy/nanoGPT#215",
          name="out.txt", write=nanogpt, metric="val_loss", best=0.66, best_epoch=None, best_step=1250),
    Shape(trainer="own script", version="", log="`Train loss: … Val accuracy: …`",
          source="skorch-dev/skorch#591", name="out.txt", write=printed_names),
    Shape(trainer="own script", version="", log="`Loss: …, ValLoss: …`",
          source="MattRosenLab/AUTOMAP#4", name="out.txt", write=printed_camel, metric="val_loss",
          best=0.66),
    Shape(trainer="own script", version="", log="`Train loss: …; Dev loss: …`",
          source="sld/supervised-embedding-model#1", name="out.txt", write=printed_dev,
          metric="val_loss", best=0.66),
    Shape(trainer="own script", version="", log="`[Training] Acc: …`, `[Validation] Acc: …`",
          source="LeeJunHyun/Image_Segmentation#45", name="out.txt", write=unet_brackets),
    Shape(trainer="PyTorch tutorial", version="transfer learning",
          log="`val Loss: … Acc: …`, with bars of tqdm", source="pytorch/pytorch#60718",
          name="train.log", write=pytorch_tutorial),
    Shape(trainer="Catalyst", version="19", log="text log", source="catalyst-team/catalyst#290",
          name="log.txt", write=catalyst_text),
    Shape(trainer="Ignite", version="0.4", log="`Validation Results - Epoch[…]`",
          source="pytorch-ignite/examples#2", name="out.txt", write=ignite_text),
    Shape(trainer="nnU-Net", version="2", log="training_log.txt", source="MIC-DKFZ/nnUNet#2140",
          name="training_log.txt", write=nnunet_2, metric="Pseudo dice", train_loss=-0.52),
    Shape(trainer="nnU-Net", version="1", log="training_log.txt", source="MIC-DKFZ/nnUNet#938",
          name="training_log.txt", write=nnunet_1,
          metric="Average global foreground Dice", train_loss=-0.52),
    Shape(trainer="Flair", version="0.4", log="training.log", source="flairNLP/flair#517",
          name="training.log", write=flair_text),
    Shape(trainer="Lightning", version="1", log="progress bar in a file",
          source="aws-samples/sagemaker-distributed-training-workshop#6", name="out.txt",
          write=lightning_bar),
    Shape(trainer="Lightning", version="2", log="metrics.csv with learning rates and a test",
          source="open-edge-platform/geti#5359", name="version_0", write=lightning_rates),
    Shape(trainer="Lightning", version="2", log="metrics.csv that begins at epoch 35",
          source="roboflow/rf-detr#1325", name="version_0", write=lightning_after_resume,
          best_epoch=41),
    Shape(trainer="PyTorch", version="torchrun", log="lines of each rank: those of rank 0",
          source="pytorch/pytorch#14628", name="out.txt", write=torchrun_console),
    Shape(trainer="Caffe", version="1", log="console", source="BVLC/caffe#5144", name="caffe.INFO",
          write=caffe_console, best_epoch=None, best_step=5000),
    Shape(trainer="XGBoost", version="0.8", log="`[0] test-merror:…`", source="dmlc/xgboost#4252",
          name="out.txt", write=xgboost_text, best_epoch=None, best_step=5, train_loss=None),
    Shape(trainer="LightGBM", version="2", log="console", source="lightgbm-org/LightGBM#886",
          name="out.txt", write=lightgbm_text, metric="valid_1 auc", best_epoch=None),
    Shape(trainer="XGBoost", version="2", log="`[0] validation_0-auc:…`, two sets: the last one",
          source="dmlc/xgboost#4252", name="out.txt", write=xgboost_sets, metric="val_auc",
          best_epoch=None, best_step=5, train_loss=None),
    Shape(trainer="XGBoost", version="2", log="`[0] train-rmse:… eval-rmse:…`",
          source="dmlc/xgboost#4252", name="out.txt", write=xgboost_rmse, metric="val_rmse",
          best=0.66, best_epoch=None, best_step=5, train_loss=None),
    Shape(trainer="LightGBM", version="4", log="`[1] training's auc: … valid_1's auc: …`",
          source="lightgbm-org/LightGBM#886", name="out.txt", write=lightgbm_callback,
          metric="val_auc", best_epoch=None, best_step=6, train_loss=None),
    Shape(trainer="LightGBM", version="4", log="`[1] valid_1's binary_logloss: …`",
          source="lightgbm-org/LightGBM#886", name="out.txt", write=lightgbm_loss,
          metric="val_loss", best=0.66, best_epoch=None, best_step=6),
    Shape(trainer="scikit-learn", version="1", log="HistGradientBoosting, `verbose=1`",
          source="scikit-learn: ensemble/_hist_gradient_boosting/gradient_boosting.py",
          name="out.txt", write=sklearn_boosting, metric="val_loss", best=0.66, best_epoch=None,
          best_step=6),
    Shape(trainer="CatBoost", version="1", log="console, more is better", source="catboost/catboost#1028",
          name="out.txt", write=catboost_auc, metric="test", best_epoch=None, best_step=5,
          train_loss=None),
    Shape(trainer="CatBoost", version="1", log="console, less is better", source="catboost/catboost#1028",
          name="out.txt", write=catboost_loss, metric="val_loss", best=0.66, best_epoch=None,
          best_step=5),
    Shape(trainer="Composer", version="0.12", log="console", source="mosaicml/composer#1884",
          name="out.txt", write=composer_console),
    Shape(trainer=YOLO, version="YOLOv5", log="results.csv", source="ultralytics/yolov5#7538",
          name="results.csv", write=yolov5_csv, metric="metrics/mAP_0.5:0.95", train_loss=None),
    Shape(trainer=YOLO, version="YOLOv8", log="results.csv", source="ultralytics/ultralytics#3632",
          name="results.csv", write=yolov8_csv, metric="metrics/mAP50-95(B)", train_loss=None),
    Shape(trainer=YOLO, version="YOLOv5, 2020", log="results.txt, which has no column names",
          source="ultralytics/yolov5#785", name="results.txt", write=yolov5_text,
          metric="metrics/mAP_0.5:0.95", train_loss=None),
    Shape(trainer=YOLO, version="YOLOv8", log="console of a classification",
          source="ultralytics/ultralytics#2024", name="out.txt", write=yolov8_classify_console),
    Shape(trainer=YOLO, version="YOLOv8", log="console of a detection",
          source="ultralytics/ultralytics#7653", name="out.txt", write=yolov8_detect_console,
          metric="val/mAP50-95", train_loss=None),
    Shape(trainer=YOLO, version="YOLOv5", log="console of a detection",
          source="ultralytics/yolov5#8401", name="out.txt", write=yolov5_console,
          metric="val/mAP_0.5:0.95", train_loss=None),
    Shape(trainer=YOLO, version="YOLOv5", log="console of a classification",
          source="ultralytics/yolov5: classify/train.py", name="out.txt", write=yolov5_classify_console),
    Shape(trainer="Detectron2", version="0.5", log="metrics.json",
          source="facebookresearch/detectron2#3180", name="metrics.json", write=detectron2_json, metric="bbox/AP", best_epoch=None, best_step=599),
    Shape(trainer="Detectron2", version="0.6", log="log.txt", source="facebookresearch/detectron2#676",
          name="log.txt", write=detectron2_text, metric="bbox/AP", best_epoch=None, best_step=599),
    Shape(trainer="Detectron2", version="0.1", log="log.txt without the lines `copypaste`",
          source="facebookresearch/detectron2#1615", name="log.txt", write=detectron2_table,
          metric="bbox/AP", best_epoch=None, best_step=599),
    Shape(trainer="torchvision references", version="0.9", log="console of a detection",
          source="pytorch/vision: references/detection/engine.py", name="out.txt",
          write=torchvision_detection, metric="bbox AP"),
    Shape(trainer="YOLOX", version="0.1", log="train_log.txt",
          source="Megvii-BaseDetection/YOLOX: yolox/core/trainer.py", name="train_log.txt",
          write=yolox_console, metric="bbox AP"),
    Shape(trainer="DETR", version="2020", log="log.txt", source="facebookresearch/detr#376",
          name="log.txt", write=detr_log, metric="test_coco_eval_bbox"),
    Shape(trainer="AllenNLP", version="1", log="folder of metrics_epoch_*.json",
          source="himkt/allennlp-NER#3", name="serialization", write=allennlp_folder),
    Shape(trainer="TensorBoard", version="add_scalars", log="sub-folders by split",
          source="pytorch/pytorch#32651", name="runs", write=tensorboard_scalars, best_epoch=None),
    Shape(trainer="TensorBoard", version="add_scalars", log="sub-folders by metric",
          source="pytorch/pytorch#21100", name="runs", write=tensorboard_scalars_named,
          best_epoch=None),
    Shape(trainer="TensorBoard", version="", log="a training that resumed twice",
          source="tensorflow/tensorboard#3732", name="runs", write=tensorboard_resumed,
          best_epoch=None, best_step=6),
    Shape(trainer="TensorBoard", version="", log="two trainings in one folder",
          source="tensorflow/tensorflow#2399", name="runs", write=tensorboard_two, best_epoch=None,
          num_trainings=2),
)  # fmt: skip


# -- not read -----------------------------------------------------------------------------


def record(data: bytes) -> bytes:
    """Return a record of TFRecord, with sums that nobody checks."""
    return len(data).to_bytes(8, "little") + bytes(4) + data + bytes(4)


def put(folder: Path, files: dict[str, bytes | str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


WANDB = b":W&B\xe1\xbe\x00" + bytes((17, 34, 51, 68, 16, 0, 1)) + b"\x0a\x0e" * 9


def wandb_file(_: Path) -> bytes:
    return WANDB


def wandb_folder(folder: Path) -> None:
    run = "run-20240101_120000-ab12cd34"
    summary = json.dumps({"epoch": 8, "val_accuracy": ACC[-1], "_step": 8})
    put(folder, {
        f"{run}/run-ab12cd34.wandb": WANDB,
        f"{run}/files/wandb-summary.json": summary,
        f"{run}/files/output.log": each(lambda k: f"epoch {k + 1} val acc {ACC[k]}\n"),
    })  # fmt: skip


def aim_folder(folder: Path) -> None:
    put(folder, {
        ".aim/VERSION": "4",
        ".aim/run_metadata.sqlite": b"SQLite format 3\x00" + bytes(80),
        ".aim/seqs/chunks/a1b2c3/LOG": "2024/01/01-12:00:00.1 7f RocksDB version: 6.29.3\n",
    })  # fmt: skip


def neptune_folder(folder: Path) -> None:
    put(folder, {".neptune/offline/run__1/exec-0/data-1.log": b'{"obj": {}}\x00\x1e'})


def comet_folder(folder: Path) -> None:
    put(folder, {".cometml-runs/ab12.zip": b"PK\x03\x04" + bytes(30)})


def visualdl_folder(folder: Path) -> None:
    put(folder, {"vdlrecords.1700000000.log": record(b"\x0a\x0bval/acc\x00\x01") * 4})


def visualdl_file(_: Path) -> bytes:
    return record(b"\x0a\x0bval/acc\x00\x01") * 4


def dvclive_folder(folder: Path) -> None:
    tables = {"val/acc": ACC, "train/loss": TRAIN}
    put(folder, {
        "metrics.json": json.dumps({"val": {"acc": ACC[-1]}, "step": 7}),
        **{
            f"plots/metrics/{name}.tsv": f"step\t{name}\n"
            + each(lambda k, values=values: f"{k}\t{values[k]}\n")
            for name, values in tables.items()
        },
    })  # fmt: skip


def recordio(_: Path) -> bytes:
    return b"\x0a\x23\xd7\xce\x10\x00\x00\x00" + bytes(16)


def tfrecord(_: Path) -> bytes:
    return record(b"\x0a\x05hello") * 4


def sacred_folder(folder: Path) -> None:
    times = ["2024-01-01T00:00:00"] * len(HITS)
    metrics = {
        name: {"steps": list(EPOCHS), "timestamps": times, "values": list(values)}
        for name, values in (("train_loss", TRAIN), ("val_accuracy", ACC))
    }
    put(folder, {
        "run.json": json.dumps({"status": "COMPLETED", "result": ACC[-1]}),
        "config.json": json.dumps({"lr": 0.1}),
        "metrics.json": json.dumps(metrics),
    })  # fmt: skip


TRACKED = (
    Shape(trainer="Sacred", version="0.8", log="folder of FileStorageObserver",
          source="IDSIA/sacred: sacred/observers/file_storage.py", name="1", write=sacred_folder,
          best_epoch=None, best_step=5),
    Shape(trainer="W&B", version="0.16", log="binary run file (.wandb)",
          source="wandb/wandb: wandb/sdk/internal/datastore.py", name="run-ab12cd34.wandb",
          write=wandb_file, metric=None, says="binary run file of Weights & Biases",
          why_not="the error says where to export CSV"),
    Shape(trainer="W&B", version="0.16", log="folder `wandb`, with a binary run file",
          source="wandb/wandb: wandb/sdk/internal/datastore.py", name="wandb", write=wandb_folder,
          metric=None, says="binary run file of Weights & Biases",
          why_not="the error names the printed output beside it"),
    Shape(trainer="Aim", version="3", log="folder with a store (.aim)",
          source="aimhubio/aim: aim/sdk/repo.py", name="project", write=aim_folder, metric=None,
          says="a store of Aim", why_not="the error says where to export CSV"),
    Shape(trainer="Neptune", version="1", log="folder of offline runs (.neptune)",
          source="neptune-ai/neptune-client: src/neptune/internal/disk_queue.py", name="project",
          write=neptune_folder, metric=None, says="offline runs of Neptune",
          why_not="the error says where to export CSV"),
    Shape(trainer="Comet", version="3", log="folder of offline runs (.cometml-runs)",
          source="comet-ml: OfflineExperiment", name="project", write=comet_folder, metric=None,
          says="offline runs of Comet", why_not="the error says where to export CSV"),
    Shape(trainer="VisualDL", version="2", log="folder with vdlrecords.*.log",
          source="PaddlePaddle/VisualDL: visualdl/writer/record_writer.py", name="vdl",
          write=visualdl_folder, metric=None, says="a folder of VisualDL",
          why_not="the error says where to export CSV"),
    Shape(trainer="VisualDL", version="2", log="vdlrecords.*.log",
          source="PaddlePaddle/VisualDL: visualdl/writer/record_writer.py",
          name="vdlrecords.1700000000.log", write=visualdl_file, metric=None,
          says="a binary file of VisualDL", why_not="the error says where to export CSV"),
    Shape(trainer="DVCLive", version="3", log="folder with a table for each metric",
          source="iterative/dvclive: src/dvclive/plots/metric.py", name="dvclive",
          write=dvclive_folder, metric=None, says="one table for each metric",
          why_not="the error has the command that joins them"),
    Shape(trainer="MXNet", version="1", log="RecordIO file", source="apache/mxnet: recordio.py",
          name="train.rec", write=recordio, metric=None, says="a RecordIO file",
          why_not="it has examples"),
    Shape(trainer="TensorFlow", version="2", log="TFRecord file",
          source="tensorflow/tensorflow: record_writer.cc", name="train.tfrecord", write=tfrecord,
          metric=None, says="a TFRecord file", why_not="it has examples"),
)  # fmt: skip
SHAPES = (*SHAPES, *TRACKED)


def write_shape(shape: Shape, folder: Path) -> Path:
    """Write a log of a shape into a folder; return its path."""
    path = folder / shape.name
    if shape.write.__annotations__["return"] == "None":
        path.mkdir()
        shape.write(path)
    elif isinstance(content := shape.write(path), bytes):
        path.write_bytes(content)
    else:
        path.write_text(str(content), encoding="utf-8")
    return path


def table() -> str:
    """Return the table of docs/audit.md."""
    rows = ["| trainer | version | log | read | judged by |", "|---|---|---|---|---|"]
    for shape in sorted(SHAPES, key=lambda shape: shape.trainer.lower()):
        is_read = f"no: {shape.why_not}" if shape.metric is None else "yes"
        if shape.num_trainings > 1:
            is_read = f"yes, as {shape.num_trainings} trainings"
        metric = f"`{shape.metric}`" if shape.metric else ""
        rows.append(f"| {shape.trainer} | {shape.version} | {shape.log} | {is_read} | {metric} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())

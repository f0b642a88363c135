"""What programs print beside their evaluations: other processes, steps announced, errors."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.errors import DataError
from stepladder.records.audit import AuditedRun
from stepladder.records.findings import Outcome

ACC = (0.61, 0.70, 0.76, 0.80, 0.83, 0.82, 0.81, 0.815)
OTHER = (0.60, 0.72, 0.75, 0.81, 0.82, 0.86, 0.80, 0.81)  # of other ranks: another best epoch
LOSS = (1.6, 1.1, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2)
BEST, BEST_EPOCH = 0.83, 5


def runs_of(folder: Path, text: str, name: str = "out.log") -> tuple[AuditedRun, ...]:
    (folder / name).write_text(text, encoding="utf-8")
    return audit([str(folder / name)]).runs


def line(k: int, acc: float) -> str:
    return f"Epoch {k + 1}/8 train loss: {LOSS[k]:.4f}, val acc: {acc:.4f}\n"


def of_ranks(write: Callable[[int, str], str], num: int = 4) -> str:
    """Return the lines of all ranks, each epoch in another order."""
    return "".join(
        write(rank, line(k, ACC[k] if rank == 0 else OTHER[k] + rank / 1000))
        for k in range(8)
        for rank in [(k + i) % num for i in range(num)]
    )


@pytest.mark.parametrize(
    "write",
    [
        lambda rank, text: f"[GPU{rank}] {text}",
        lambda rank, text: f"[rank{rank}]: {text}",
        lambda rank, text: f"[default{rank}]:{text}",
        lambda rank, text: f"2024-03-02 10:11:12,123 [rank: {rank}] INFO {text}",
        lambda rank, text: f"Rank {rank}: {text}",
        lambda rank, text: f"rank={rank} {text}",
        lambda rank, text: f"GPU {rank} | {text}",
        lambda rank, text: f"cuda:{rank} {text}",
        lambda rank, text: f"(RayTrainWorker pid={4150 + rank}) {text}",
        lambda rank, text: f"(RayTrainWorker pid={4150 + rank}, ip=10.0.0.{rank}) {text}",
        lambda rank, text: f"[1,{rank}]<stdout>:{text}",
        lambda rank, text: f"{rank}: {text}",
    ],
)
def test_of_several_ranks_that_print_the_first_one_is_read(
    write: Callable[[int, str], str], tmp_path: Path
) -> None:
    (run,) = runs_of(tmp_path, of_ranks(write))
    assert len(run.log.rows) == 8
    assert (run.result, run.best_epoch) == (BEST, BEST_EPOCH)
    assert any("4 processes wrote this log" in note for note in run.log.notes)


def test_ranks_of_keras_are_read_as_one(tmp_path: Path) -> None:
    text = "".join(
        f"[1,{rank}]<stdout>:Epoch {k + 1}/8\n"
        f"[1,{rank}]<stdout>:50/50 - 2s - loss: {LOSS[k]:.4f} - val_accuracy: {acc[k]:.4f}\n"
        for k in range(8)
        for rank, acc in ((1, OTHER), (0, ACC))
    )
    (run,) = runs_of(tmp_path, text)
    assert (len(run.log.rows), run.result, run.best_epoch) == (8, BEST, BEST_EPOCH)


def test_a_rank_that_prints_no_evaluation_is_not_the_one_that_is_read(tmp_path: Path) -> None:
    text = "[rank1]: loss 1.5 before\n" + "".join(f"[rank0]: {line(k, ACC[k])}" for k in range(8))
    (run,) = runs_of(tmp_path, text)
    assert (len(run.log.rows), run.result) == (8, BEST)


def test_trials_of_ray_tune_are_trainings_of_their_own(tmp_path: Path) -> None:
    text = "".join(
        f"(train_cifar pid={pid}) {line(k, acc[k])}"
        for k in range(8)
        for pid, acc in ((311, ACC), (312, OTHER))
    )
    runs = runs_of(tmp_path, text)
    assert [run.log.name for run in runs] == ["out train_cifar 311", "out train_cifar 312"]
    assert [(run.result, run.best_epoch) for run in runs] == [(0.83, 5), (0.86, 6)]


def test_ranks_of_a_retrieval_metric_are_no_processes(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {k + 1} val loss: {LOSS[k]:.3f}\nmAP: {ACC[k]:.1%}\nRank-1  : {ACC[k]:.1%}\n"
        "Rank-5  : 95.2%\nRank-10 : 97.1%\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.log.rows[3].val_loss == LOSS[3]
    assert not any("processes" in note for note in run.log.notes)


def caffe(announce: str, output: str, train: str) -> str:
    text = ""
    for k in range(8):
        text += f"I0914 08:00:09.349800  6584 solver.cpp:337] Iteration {1000 * k}, {announce}\n"
        text += f"I0914 08:00:19.901799  6584 solver.cpp:404]     {output.format(ACC[k])}\n"
        text += f"I0914 08:00:19.901799  6584 solver.cpp:404]     Test net output #1: loss = {LOSS[k]} (* 1 = {LOSS[k]} loss)\n"
        for step in (1000 * k, 1000 * k + 500):
            text += (
                f"I0914 08:00:23.549799  6584 solver.cpp:228] Iteration {step}{train}, loss = 1.5\n"
                "I0914 08:00:23.549799  6584 solver.cpp:244]     Train net output #0: loss = 1.5 (* 1 = 1.5 loss)\n"
                f"I0914 08:00:23.549799  6584 sgd_solver.cpp:106] Iteration {step}, lr = 0.001\n"
            )
    return text


@pytest.mark.parametrize(
    ("announce", "output", "train"),
    [
        ("Testing net (#0)", "Test net output #0: accuracy = {}", ""),
        ("Testing net (#0)", "Test net output #0: accuracy/top1 = {}", " (2.5 iter/s, 100s/250 iters)"),
    ],
)  # fmt: skip
def test_a_line_that_announces_an_evaluation_has_its_step(
    announce: str, output: str, train: str, tmp_path: Path
) -> None:
    (run,) = runs_of(tmp_path, caffe(announce, output, train))
    assert [row.step for row in run.log.rows if row.val_accuracy] == list(range(0, 8000, 1000))
    assert (run.result, run.best_step) == (BEST, 4000)
    assert [row.val_loss for row in run.log.rows if row.val_loss] == list(LOSS)


def test_a_step_that_a_script_announces_holds_for_its_results(tmp_path: Path) -> None:
    text = "".join(
        f"step {500 * k + 490} loss: {LOSS[k]}\nEvaluating at step {500 * k + 500}\nval acc: {ACC[k]}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert (run.result, run.best_step) == (BEST, 2500)


TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
)


@pytest.mark.parametrize(
    "error",
    [
        TRACEBACK + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB",
        TRACEBACK + "KeyboardInterrupt",
        TRACEBACK + "tensorflow.errors.Unavailable: Socket closed",
        "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"a.py\", line 3\n[rank0]: ValueError: bad split",
        "./run.sh: line 3: 4711 Killed                  python train.py",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.batch",
        "Segmentation fault (core dumped)",
    ],
)  # fmt: skip
def test_a_program_that_stopped_before_an_evaluation_is_refused_with_its_error(
    error: str, tmp_path: Path
) -> None:
    said = error.splitlines()[-1].removeprefix("[rank0]: ")[:40]
    start = "Namespace(batch_size=512, epochs=30, lr=0.1)\nEpoch 1/30:   0%|          | 0/5 [00:00<?, ?it/s]\n"
    with pytest.raises(DataError, match="contains no evaluation") as raised:
        runs_of(tmp_path, start + error + "\n")
    assert said in str(raised.value)


def test_an_error_after_the_last_evaluation_is_a_note(tmp_path: Path) -> None:
    text = "".join(line(k, ACC[k]) for k in range(8))
    (run,) = runs_of(tmp_path, text + TRACEBACK + "RuntimeError: CUDA error: device lost\n")
    assert run.log.ended_by == "RuntimeError: CUDA error: device lost"
    (run,) = runs_of(
        tmp_path, TRACEBACK + "ImportError: no module named apex\nuses no apex\n" + text
    )
    assert not any("ended" in note for note in run.log.notes)


def test_catboost_has_the_best_iteration_between_printed_ones_and_its_time(tmp_path: Path) -> None:
    text = "".join(
        f"{k}:\tlearn: 0.9\ttest: {0.7 + k / 1e4:.7f}\tbest: {best} ({at})\ttotal: {k // 60}m {k % 60}s"
        "\tremaining: 2m\n"
        for k, best, at in ((0, 0.7, 0), (100, 0.8, 57), (200, 0.8, 57))
    )
    (run,) = runs_of(tmp_path, text)
    assert (run.metric, run.result, run.best_step) == ("test", 0.8, 57)
    assert run.log.total_s == 200
    assert any("more is better" in note for note in run.log.notes)
    fit = next(finding for finding in run.findings if finding.check == "fit")
    assert "no validation data" not in fit.evidence


def test_catboost_without_a_held_out_set_has_no_result(tmp_path: Path) -> None:
    text = "".join(f"{k}:\tlearn: {LOSS[k]}\ttotal: 1s\tremaining: 2m\n" for k in range(8))
    (run,) = runs_of(tmp_path, text)
    assert (run.metric, run.log.rows[3].train_loss) == (None, LOSS[3])


def test_the_name_of_a_file_is_no_split(tmp_path: Path) -> None:
    text = "".join(
        f"{line(k, ACC[k])}Loaded 250 images from data/test.json\nstep {k} loss: {LOSS[k]}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert [row.val_loss for row in run.log.rows] == [None] * 8
    assert run.log.test_loss is None


def test_thresholds_of_a_summary_are_no_metrics(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {k + 1} loss: {LOSS[k]}\n Average Recall     (AR) @[ IoU=0.50:0.95 | area=   all | maxDets=100 ] = 0.5\n"
        f" Average Precision  (AP) @[ IoU=0.75      | area=   all | maxDets=100 ] = 0.{k}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.metric is None


VAL = (-15.03, -16.742, -17.625, -17.904, -15.51, -12.2, -8.3, -6.1, -5.52)


def solver(k: int) -> str:
    return (
        f"Train | Epoch {k + 1} | 5000/20000 | 1.3 it/sec | Loss {VAL[k] + 9}\n"
        f"Train Summary | End of Epoch {k + 1} | Train Loss {VAL[k] + 10}\n"
        f"Valid Summary | End of Epoch {k + 1} | Valid Loss {VAL[k]}\n"
    )


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("begun", ["", "Train | Epoch 5 | 5000/20000 | 1.3 it/sec | Loss -6.5\n"])
@pytest.mark.parametrize(
    "listed",
    [
        "Epoch {epoch}: train={train} valid={value} best={value}\n",
        "epoch {epoch} | Valid Loss {value}\n",
    ],
)
def test_results_that_a_resumed_training_lists_again_are_no_epochs(
    first: int, begun: str, listed: str, tmp_path: Path
) -> None:
    again = "".join(
        listed.format(epoch=k + first, train=VAL[k] + 10, value=VAL[k]) for k in range(4)
    )
    text = "".join(map(solver, range(4))) + begun + "Replaying metrics\n" + again
    (run,) = runs_of(tmp_path, text + "".join(map(solver, range(4, 9))))
    assert [row.epoch for row in run.log.rows] == list(range(1, 10))
    assert [row.val_loss for row in run.log.rows] == list(VAL)
    assert (run.result, run.best_epoch, run.log.epochs) == (-17.904, 4, 9)
    assert any(note.startswith("it was resumed at epoch 5") for note in run.log.notes)
    (resumption,) = (f for f in run.findings if f.check == "resumption")
    assert "val_loss rose from -17.9 to -15.51 (after epoch 5)" in resumption.evidence


def test_a_second_training_with_other_results_is_not_listed_again(tmp_path: Path) -> None:
    text = "".join(line(k, ACC[k]) for k in range(8)) + "".join(line(k, OTHER[k]) for k in range(8))
    assert [run.result for run in runs_of(tmp_path, text)] == [0.83, 0.86]


def test_a_resumed_training_that_comes_back_has_no_finding(tmp_path: Path) -> None:
    course = (1.0, 0.8, 0.7, 0.65, 0.9, 0.7, 0.6, 0.55)
    text = "".join(
        f"Epoch {k + 1} train loss: 0.5 val loss: {course[k]}\n"
        for k in (0, 1, 2, 3, 4, 3, 4, 5, 6, 7)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.log.resumed_at == (4.0,)
    assert "resumption" not in {finding.check for finding in run.findings}


@pytest.mark.parametrize("num", [2, 4])
@pytest.mark.parametrize("heads", [("", ""), ("2024-01-01 10:00:01,123 ", "INFO:root:")])
def test_lines_that_are_printed_several_times_are_read_once(
    num: int, heads: tuple[str, str], tmp_path: Path
) -> None:
    text = "".join(heads[i % 2] + line(k, ACC[k]) for k in range(8) for i in range(num))
    (run,) = runs_of(tmp_path, text)
    assert (len(run.log.rows), run.best_epoch) == (8, BEST_EPOCH)
    assert any(f"printed {num} times" in note for note in run.log.notes)


def test_several_evaluations_of_an_epoch_are_all_read(tmp_path: Path) -> None:
    text = "".join(line(k, ACC[k]) + line(k, OTHER[k]) for k in range(8))
    (run,) = runs_of(tmp_path, text)
    assert len(run.log.rows) == 16


@pytest.mark.parametrize(("train", "val"), [(0, 1), (1, 0), (0, 0), (1, 1)])
def test_training_and_evaluations_may_count_epochs_from_different_numbers(
    train: int, val: int, tmp_path: Path
) -> None:
    text = "".join(
        f"Epoch [{k + train}] train loss: {LOSS[k]}\nEpoch {k + val} val acc: {ACC[k]}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert [row.epoch for row in run.log.rows] == list(range(1, 9))
    assert [row.train_loss for row in run.log.rows] == list(LOSS)
    assert run.best_epoch == BEST_EPOCH


def test_training_after_a_headed_evaluation_is_training(tmp_path: Path) -> None:
    text = "".join(
        f"iter {500 * k + 490} loss {LOSS[k]}\n=== Eval at step {500 * k + 500} ===\naccuracy: {ACC[k]}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert [(row.step, row.train_loss) for row in run.log.rows] == [
        (500 * k + 500, LOSS[k]) for k in range(8)
    ]
    assert (run.result, run.best_step) == (BEST, 2500)


METER = "Test: [  12/12]  Time: 0.011 (0.329)  Loss:  0.4756 (0.5000)  "


@pytest.mark.parametrize("head", ["", "Val: [  12/12]  Loss: 0.5 (0.5000)  Acc@1: 80.00 (80.00)\n"])
def test_a_progress_meter_named_test_is_validation_where_nothing_else_is(
    head: str, tmp_path: Path
) -> None:
    text = "".join(
        f"Train: {k} [ 134/135 (100%)]  Loss: {LOSS[k]} ({LOSS[k]:.3f})  LR: 3.229e-02\n"
        f"{head}{METER}Acc@1: 78.9474 ({100 * acc:.4f})\n"
        for k, acc in enumerate(ACC)
    )
    (run,) = runs_of(tmp_path, text)
    said = [finding.evidence for finding in run.findings if finding.check == "selection"]
    has_note = any("is read as validation" in note for note in run.log.notes)
    assert has_note == (not head)
    assert not any("the test set was evaluated" in text for text in said)
    assert run.result == (0.8 if head else BEST)


def cifar_bar(values: str, num_batches: int) -> str:
    return "".join(
        f" [{'=' * k}>{'.' * (9 - k)}]  Step: 8{k}ms | Tot: 1{k}s | {values} {of}/{num_batches} \r"
        for k, of in ((1, 1), (5, num_batches // 2), (9, num_batches))
    )


def tqdm_bar(values: str, num_batches: int) -> str:
    return "".join(
        f"{k}%|{'#' * 9}| {of}/{num_batches} [00:0{k % 10}<00:05, 25.1it/s, {values}]\r"
        for k, of in ((1, 1), (50, num_batches // 2), (100, num_batches))
    )


@pytest.mark.parametrize("end", ["", "cut"])
def test_of_two_bars_without_names_the_second_is_the_validation(end: str, tmp_path: Path) -> None:
    text = ""
    for k in range(8):
        right = round(10_000 * ACC[k])
        trained, held_out = (
            f"Loss: {LOSS[k]:.3f} | Acc: {95 + k / 10:.3f}% (47500/50000)",
            f"Loss: 0.314 | Acc: {right / 100:.3f}% ({right}/10000)",
        )
        text += f"\nEpoch: {k}\n{cifar_bar(trained, 391)}\n{cifar_bar(held_out, 100)}\nSaving..\n"
    text += (
        f"\nEpoch: 8\n{cifar_bar('Loss: 0.1 | Acc: 99.000% (49500/50000)', 391)}\n" if end else ""
    )
    (run,) = runs_of(tmp_path, text)
    assert (run.result, run.best_epoch, run.num_val) == (BEST, BEST_EPOCH, 10_000)
    assert run.log.rows[7].train_accuracy == pytest.approx(0.957)
    assert any("two progress bars without a name" in note for note in run.log.notes)


def test_bars_of_tqdm_without_names_are_read_alike(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {k + 1}/8\n{tqdm_bar(f'loss={LOSS[k]}, acc=0.99', 391)}\n"
        f"{tqdm_bar(f'loss=0.4, acc={ACC[k]}', 79)}\n"
        for k in range(8)
    )
    (run,) = runs_of(tmp_path, text)
    assert (run.result, run.best_epoch) == (BEST, BEST_EPOCH)
    assert [row.train_loss for row in run.log.rows] == list(LOSS)


def test_one_bar_per_epoch_is_not_read_as_two(tmp_path: Path) -> None:
    text = "".join(f"Epoch {k + 1}\n{tqdm_bar(f'loss={LOSS[k]}', 391)}\n" for k in range(8))
    (run,) = runs_of(tmp_path, text)
    assert run.result is None
    assert [row.train_loss for row in run.log.rows] == list(LOSS)


def sklearn_lines(scores: list[float]) -> str:
    return "".join(
        f"Iteration {k}, loss = {2 / k:.8f}\nValidation score: {score:.6f}\n"
        for k, score in enumerate(scores, start=1)
    )


def test_the_score_of_an_mlp_classifier_is_its_accuracy(tmp_path: Path) -> None:
    right = [372, 404, 431, 453, 473, 490, 581, 579, 578]
    text = sklearn_lines([hits / 600 for hits in right])
    text += "Validation score did not improve more than tol=0.000100 for 10 consecutive epochs. Stopping.\n"
    text += "Training set score: 0.997000\nTest set score: 0.957000\n"
    (run,) = runs_of(tmp_path, text)
    assert run.metric == "val_accuracy"
    assert run.result == pytest.approx(581 / 600, abs=1e-6)
    assert (run.best_step, run.num_val) == (7, 600)
    assert [row.train_loss for row in run.log.rows] == [float(f"{2 / k:.8f}") for k in range(1, 10)]
    assert all(row.val_loss is None for row in run.log.rows)
    assert run.log.test_accuracy == 0.957


def test_the_score_of_an_mlp_regressor_is_not(tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, sklearn_lines([0.9 - 1.3 / k for k in range(1, 31)]))
    assert run.metric == "Validation r2"
    assert all(row.val_accuracy is None and row.val_loss is None for row in run.log.rows)


def test_a_number_of_the_validation_with_an_unknown_name_leaves_the_next_line_to_training(
    tmp_path: Path,
) -> None:
    text = "".join(f"step {k} loss {LOSS[k]}\nValidation surprise: {ACC[k]}\n" for k in range(8))
    (run,) = runs_of(tmp_path, text)
    assert run.result is None
    assert [row.train_loss for row in run.log.rows] == list(LOSS)


def test_the_decimals_of_a_running_average_are_not_those_of_the_result(tmp_path: Path) -> None:
    """torchvision's references: `acc1: 26.5790 (30.7669)` of batches, then `Acc@1 19.674`."""
    right = (773, 1000, 1266, 1737, 1998, 2311, 2601, 2913)
    text = "".join(
        f"Epoch: [{k}]  [  0/283]  eta: 0:00:56  lr: 0.1  loss: 1.9 (2.0)  acc1: 17.2072 (17.0000)\n"
        f"Test:   [  0/123]  eta: 0:00:40  loss: 2.1 (2.1)  acc1: 26.5790 ({30.7669 + k / 7:.4f})\n"
        f"Test:  Acc@1 {100 * hits / 3929:.3f} Acc@5 91.698\n"
        for k, hits in enumerate(right)
    )
    (run,) = runs_of(tmp_path, text)
    assert run.log.digits == 5
    assert run.num_val == 3929


@pytest.mark.parametrize(
    "head",
    [
        "train: 5216 images, val: 1000 images, 7 classes\n",
        "Classes: ['a'] | train: 225 | test: 1000\n",
    ],
)
def test_sizes_that_one_line_states_are_used_if_the_accuracies_are_possible(
    head: str, tmp_path: Path
) -> None:
    text = "".join(line(k, ACC[k]) for k in range(8))
    (run,) = runs_of(tmp_path, head + text)
    assert (run.num_val, run.num_val_from) == (1000, "logged")
    (run,) = runs_of(tmp_path, head.replace("1000", "77") + text)
    assert run.num_val != 77


COUNTED = {  # epoch, training loss and accuracy, validation loss and accuracy
    "brackets": "[{0:02d}/04] lr 0.05 | train loss {1:.4f} acc {2:.2f} | val loss {3:.4f} acc {4:.2f} | 9s",
    "time before": "2024-02-11 15:47:2{0},123 - INFO - [{0}/4] train loss: {1:.4f} train acc: {2:.2f} val loss: {3:.4f} val acc: {4:.2f}",
    "no brackets": "{0}/4: train_loss={1:.4f}, train_acc={2:.2f}, val_loss={3:.4f}, val_acc={4:.2f}",
    "no total": "{0:03d} | train_loss {1:.4f} | train_acc {2:.2f} | val_loss {3:.4f} | val_acc {4:.2f}",
    "no total, brackets": "[{0}] train loss {1:.4f} acc {2:.2f} val loss {3:.4f} acc {4:.2f}",
    "letter": "E{0}/4 train: loss {1:.4f} acc {2:.2f} | val: loss {3:.4f} acc {4:.2f}",
    "two lines": "({0}/4) train loss {1:.4f} acc {2:.2f}\n({0}/4) val loss {3:.4f} acc {4:.2f}",
}


@pytest.mark.parametrize("form", COUNTED.values(), ids=COUNTED)
def test_the_number_at_the_start_of_a_line_is_its_epoch(form: str, tmp_path: Path) -> None:
    """It counts pairs of training and validation, and the word epoch is only about checkpoints."""
    lines = [form.format(k, 1 / k, 50 + k, 1.5 / k, 48 + k) for k in range(1, 5)]
    loaded = "=> loaded checkpoint 'last.pth' (epoch 2)"
    (run,) = runs_of(tmp_path, "\n".join([*lines[:3], loaded, *lines[2:]]))
    assert [row.epoch for row in run.log.rows] == [1, 2, 3, 4]
    assert [row.train_accuracy for row in run.log.rows] == pytest.approx([0.51, 0.52, 0.53, 0.54])
    assert [row.val_accuracy for row in run.log.rows] == pytest.approx([0.49, 0.5, 0.51, 0.52])
    assert (run.log.epochs, run.log.resumed_at) == (4, (3,))
    assert any("begins each line" in note for note in run.log.notes)


def test_numbers_at_the_start_of_lines_that_rise_by_more_are_steps(tmp_path: Path) -> None:
    lines = [f"[{k}00/400] train loss {1 / k:.4f} val acc 0.{50 + k}" for k in range(1, 5)]
    (run,) = runs_of(tmp_path, "\n".join(lines))
    assert [(row.epoch, row.step) for row in run.log.rows] == [(None, 100 * k) for k in range(1, 5)]


@pytest.mark.parametrize("values", ["loss 0.{0}", "val loss 0.{0} val acc 0.{0}"])
def test_the_numbers_of_batches_are_no_epochs(values: str, tmp_path: Path) -> None:
    text = "\n".join(f"[{k}/40] " + values.format(50 + k) for k in range(1, 5))
    (run,) = runs_of(tmp_path, text)
    assert run.log.epochs is None


@pytest.mark.parametrize("done", [2, 3, 4])
def test_a_training_is_resumed_where_a_checkpoint_was_loaded(done: int, tmp_path: Path) -> None:
    """Also if that repeats only the last epoch, or none."""
    lines = [f"Epoch {k}/4 train loss {1 / k:.4f} val acc 0.{50 + k}" for k in range(1, 5)]
    loaded = "Resuming from last.pth (epoch 2)"
    (run,) = runs_of(tmp_path, "\n".join([*lines[:done], loaded, *lines[2:]]))
    assert [row.epoch for row in run.log.rows] == [1, 2, 3, 4]
    assert run.log.resumed_at == (3,)


def test_the_epoch_of_a_checkpoint_is_not_that_of_lines_without_one(tmp_path: Path) -> None:
    lines = [f"train loss {1 / k:.4f} val acc 0.{50 + k}" for k in range(1, 5)]
    loaded = "=> loaded checkpoint 'last.pth' (epoch 2)"
    (run,) = runs_of(tmp_path, "\n".join([*lines[:2], loaded, *lines[2:]]))
    assert {row.epoch for row in run.log.rows} == {None}


def test_weights_that_are_loaded_to_be_tested_resume_nothing(tmp_path: Path) -> None:
    lines = [f"Epoch {k}/4 train loss {1 / k:.4f} val acc 0.{50 + k}" for k in range(1, 5)]
    end = "=> loaded checkpoint 'last.pth' (epoch 4)\nTest acc: 0.51"
    (run,) = runs_of(tmp_path, "\n".join([*lines, end]))
    assert (len(run.log.rows), run.log.resumed_at) == (4, ())
    assert run.log.test_accuracy == pytest.approx(0.51)


def test_a_time_at_the_end_of_a_line_of_both_sets_is_that_of_its_epoch(tmp_path: Path) -> None:
    lines = [f"Epoch {k} train loss {1 / k:.4f} val acc 0.{50 + k} | 12.5s" for k in range(1, 5)]
    (run,) = runs_of(tmp_path, "\n".join(lines))
    assert run.log.total_s == pytest.approx(50)


HELD = {  # header or nothing, form of a line, name of the file
    "yolov5": (
        "     Epoch   GPU_mem  train_loss   test_loss    top1_acc    top5_acc\n",
        "      {0}/4    0.508G  {1:.2f}  {2:.2f}  {3:.3f}  0.9: 100%|████| 80/80 [00:05<00:00, 15.63it/s]\n",
        "out.log",
    ),
    "yolov5's table": (
        "epoch,train/loss,test/loss,metrics/accuracy_top1,metrics/accuracy_top5,lr/0\n",
        "{0},{1:.2f},{2:.2f},{3:.3f},0.9,0.1\n",
        "results.csv",
    ),
    "lines": ("", "Epoch {0} train_loss {1:.2f} test_loss {2:.2f} acc {3:.3f}\n", "out.log"),
}


@pytest.mark.parametrize("held", ["test", "val"])
@pytest.mark.parametrize("form", HELD.values(), ids=HELD)
def test_an_accuracy_without_a_set_is_of_the_one_with_the_held_out_loss(
    form: tuple[str, str, str], held: str, tmp_path: Path
) -> None:
    """Of a test set that was evaluated at each epoch, there is no other test result."""
    head, line, name = form
    text = head + "".join(line.format(k, 2 / k, 3 / k, 0.2 + k / 9) for k in range(1, 5))
    (run,) = runs_of(tmp_path, text.replace("test", held), name)
    assert [row.val_loss for row in run.log.rows] == pytest.approx([3, 1.5, 1, 0.75])
    assert run.result == pytest.approx(0.644)
    assert (run.log.test_loss, run.log.test_accuracy) == (None, None) or run.log.is_val_test
    assert run.log.is_val_test is (held == "test")
    (selection,) = (found for found in run.findings if found.check == "selection")
    assert selection.outcome is Outcome.WARNED


def test_a_score_beside_a_test_loss_is_judged(tmp_path: Path) -> None:
    line = "Epoch {0} train_loss {1:.2f} test_loss {2:.2f} f1 {3:.3f}\n"
    text = "".join(line.format(k, 2 / k, 3 / k, 0.2 + k / 9) for k in range(1, 5))
    (run,) = runs_of(tmp_path, text)
    assert (run.metric, run.log.is_val_test) == ("f1", True)


def test_a_single_test_loss_leaves_the_accuracy_to_training(tmp_path: Path) -> None:
    lines = [f"Epoch {k} train_loss {1 / k:.2f} acc {0.5 + k / 10:.2f}" for k in range(1, 5)]
    (run,) = runs_of(tmp_path, "\n".join([*lines, "test_loss 0.6"]))
    assert [row.train_accuracy for row in run.log.rows][:4] == pytest.approx([0.6, 0.7, 0.8, 0.9])
    assert run.log.test_loss == 0.6


EPOCHS = "".join(f"Epoch {k} train loss {2 / k:.2f} val acc 0.{90 + k}\n" for k in range(1, 5))


@pytest.mark.parametrize(
    "end",
    [
        "INFO:tensorflow:Final test accuracy = 91.2% (N=329)",
        "Final Test Acc: 0.912",
        "FINAL TESTING ACCURACY 91.2 %",
        "Final Test Loss: 0.3, Final Test Accuracy: 0.912",
        "final_test_acc: 0.912",
        "Final accuracy on the test set: 91.2%",
        "Accuracy on test data: 91.2%",
        "Test set accuracy: 91.2%",
        "Best model test accuracy: 0.912",
        "Test accuracy (best model): 0.912",
        "Evaluating on the test set\nFinal accuracy: 0.912",
    ],
)
def test_a_test_result_after_the_training_is_read(end: str, tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, f"{EPOCHS}{end}\n")
    assert run.log.test_accuracy == pytest.approx(0.912)
    assert len(run.log.rows) == 4
    (selection,) = (found for found in run.findings if found.check == "selection")
    assert selection.outcome is Outcome.PASSED
    assert "accuracy 91.2 %, 2.8 points below the best val_accuracy" in selection.evidence


@pytest.mark.parametrize("end", ["Final val acc: 0.94", "Best test acc: 0.95"])
def test_what_repeats_an_earlier_result_is_no_evaluation(end: str, tmp_path: Path) -> None:
    (run,) = runs_of(tmp_path, f"{EPOCHS}{end}\n")
    assert (len(run.log.rows), run.log.test_accuracy) == (4, None)


@pytest.mark.parametrize("name", ["Accuracy on the validation set", "val set accuracy"])
def test_an_accuracy_on_a_set_is_that_of_the_set(name: str, tmp_path: Path) -> None:
    lines = [f"Epoch {k} loss {2 / k:.2f}\n{name}: {50 + k}.00 %\n" for k in range(1, 5)]
    (run,) = runs_of(tmp_path, "".join(lines))
    assert [row.val_accuracy for row in run.log.rows] == pytest.approx([0.51, 0.52, 0.53, 0.54])


@pytest.mark.parametrize("number", ["97.0% (N=100)", "97/100"])
def test_a_number_of_examples_beside_an_accuracy_is_that_of_its_set(
    number: str, tmp_path: Path
) -> None:
    lines = [
        f"Step {k}: Validation accuracy = {number.replace('97', f'9{k % 3}')}\n" for k in range(9)
    ]
    (run,) = runs_of(tmp_path, "".join([*lines, "Test accuracy = 91.2% (N=329)"]))
    assert (run.num_val, run.num_val_from) == (100, "logged")
    assert run.log.num_test == 329
    (run,) = runs_of(tmp_path, "".join(lines))
    (selection,) = (found for found in run.findings if found.check == "selection")
    assert "the best of 9 evaluations" in selection.evidence


@pytest.mark.parametrize(
    "head",
    [
        "2024-03-01 10:22:13,480 - INFO - Train samples: 210, Val samples: 1000, Classes: ['mild']",
        "Number of training examples: 210\nNumber of validation examples: 1000",
        "train_size=210\nval_size=1000",
        "Val dataset size: 1000",
        "210 training samples and 1000 validation samples",
        "Start training, 13500 train images, 1000 val images, 12 classes",
        "Loading dataset... 3260 train / 1000 val images, 10 folders",
        "Training on 210 samples, validating on 1000 samples",
        "Found 3260 images in the train set and 1000 images in the val set",
    ],
)
def test_a_size_that_is_stated_with_the_name_of_its_set_is_used(head: str, tmp_path: Path) -> None:
    text = "".join(line(k, ACC[k]) for k in range(8))
    (run,) = runs_of(tmp_path, f"{head}\n{text}")
    assert (run.num_val, run.num_val_from) == (1000, "logged")


@pytest.mark.parametrize(
    "head",
    [
        "Val samples: 1000\nVal samples: 1200",
        "1000 validation images/s",
        "100 train / 1000 val steps",
        "Val acc: 1000",
    ],
)
def test_a_number_that_is_not_the_size_of_a_set_is_not_used(head: str, tmp_path: Path) -> None:
    text = "".join(line(k, ACC[k]) for k in range(8))
    (run,) = runs_of(tmp_path, f"{head}\n{text}")
    assert run.num_val_from != "logged"

"""Printed output of programs that stopped before they evaluated anything."""

# ruff: noqa: E501

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.errors import DataError
from stepladder.records.findings import Outcome

FRAMES = (
    'Traceback (most recent call last):\n  File "train.py", line 141, in <module>\n    main()\n'
)
OUT_OF_MEMORY = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 148.00 MiB."
ENDS = {
    "memory": (FRAMES + OUT_OF_MEMORY, OUT_OF_MEMORY, "smaller batch size"),
    "interrupt": (f"{FRAMES}KeyboardInterrupt", "KeyboardInterrupt", "Correct that error"),
    "killed": ("Killed", "Killed", "Correct that error"),
    "shell": (
        "run.sh: line 3:  4021 Killed                  python train.py",
        "run.sh: line 3:  4021 Killed",
        "Correct that error",
    ),
    "nccl": (
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "terminate called after throwing an instance of",
        "Correct that error",
    ),
}
BAR = "".join(
    f"Epoch 1/30:   {idx}%|      | {idx}/185 [00:0{idx}<07:21,  2.40s/it, loss=3.{9 - idx}412]\n"
    for idx in range(1, 5)
)
BATCHES = "".join(f"Epoch: [0][{idx}/185] Loss 3.{9 - idx}412 lr 0.1\n" for idx in range(0, 40, 10))
KERAS = (
    "Epoch 1/30\n185/185 [======] - 20s 90ms/step - loss: 3.1 - accuracy: 0.2\n"
    "Epoch 2/30\n 60/185 [==>...] - ETA: 10s - loss: 2.8 - accuracy: 0.3\n"
)
SECOND = "Epoch 1 train loss 3.1\nEpoch 2 [20/185] train loss 2.9\n"
BEGUN = {"bar": BAR, "batches": BATCHES, "keras, second epoch": KERAS, "second epoch": SECOND}


@pytest.mark.parametrize("order", ["error last", "error first", "error within"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("begun", BEGUN)
def test_a_training_that_stopped_before_its_first_evaluation_is_refused_with_its_error(
    begun: str, end: str, order: str, tmp_path: Path
) -> None:
    stopped, said, fix = ENDS[end]
    head, printed = "Model: vit_base_patch16_224, 85.83 M parameters\n", BEGUN[begun]
    text = {
        "error last": f"{head}{printed}{stopped}\n",
        "error first": f"{stopped}\n{head}{printed}",
        "error within": f"{head}{stopped}\n{printed}Saved to log\n",
    }[order]
    (tmp_path / "train.log").write_text(text)
    with pytest.raises(DataError, match="no evaluation") as caught:
        read_logs(str(tmp_path / "train.log"))
    assert said in str(caught.value)
    assert fix in str(caught.value.fix)


@pytest.mark.parametrize("end", ENDS)
def test_what_was_evaluated_before_an_error_is_read(end: str, tmp_path: Path) -> None:
    text = f"Epoch 1 train loss 3.1 val acc 0.31\nEpoch 2 train loss 2.9\n{ENDS[end][0]}\n"
    (tmp_path / "train.log").write_text(text)
    (log,) = read_logs(str(tmp_path / "train.log"))
    assert log.rows[0].val_accuracy == 0.31
    assert log.ended_by is not None
    assert log.ended_by.startswith(ENDS[end][1])


def test_the_column_that_was_asked_for_is_read_whatever_stopped_the_training(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.log").write_text(f"{SECOND}Killed\n")
    (log,) = read_logs(str(tmp_path / "train.log"), metric="train loss")
    assert [row.score for row in log.rows] == [3.1, 2.9]


@pytest.mark.parametrize("begun", ["bar", "batches"])
def test_a_part_of_the_first_epoch_is_no_fit(begun: str, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(BEGUN[begun])
    (run,) = audit([str(tmp_path / "train.log")]).runs
    assert [finding.check for finding in run.findings] == ["held_out"]


EPOCHS = "".join(
    f"Epoch {k}/30 train loss {2 / k:.4f} train acc {0.5 + k / 20:.4f} val acc {0.48 + k / 20:.4f}\n"
    for k in range(1, 7)
)
IMPORT = FRAMES + "ModuleNotFoundError: No module named 'apex'\n"
LAUNCHER = "srun: error: gpu-c12: task 0: Exited with exit code 1\n"
OTHER_RANK = "".join(f"[rank1]: {line}\n" for line in (*FRAMES.splitlines(), "RuntimeError: NCCL"))
CHAINED = f"{FRAMES}KeyError: 'x'\n\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSES = {
    "launcher": (f"{FRAMES}{OUT_OF_MEMORY}\n{LAUNCHER}", OUT_OF_MEMORY, "smaller batch size"),
    "torchrun": (
        f"{FRAMES}ValueError: bad label\n{FRAMES}"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
        "ValueError: bad label",
        "Correct that error",
    ),
    "other rank": (
        f"{OTHER_RANK}{FRAMES}{OUT_OF_MEMORY}\n{LAUNCHER}", OUT_OF_MEMORY, "smaller batch size",
    ),
    "host memory": (
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n" + LAUNCHER,
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.",
        "smaller batch size",
    ),
    "chained": (f"{CHAINED}{FRAMES}ValueError: no x\n", "ValueError: no x", "Correct that error"),
    "earlier": (f"{FRAMES}ValueError: late\n{LAUNCHER}", "ValueError: late", "Correct that error"),
    "launcher only": (LAUNCHER, LAUNCHER.strip(), "Correct that error"),
    "time limit": (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-05T10:00:00 DUE TO TIME LIMIT ***\n"
        + LAUNCHER,
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-05T10:00:00 DUE TO TIME LIMIT ***",
        "Resume from the last checkpoint",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", CAUSES)
def test_a_crash_is_a_finding_with_its_first_cause_and_no_advice_to_train_longer(
    cause: str, tmp_path: Path
) -> None:
    end, said, fix = CAUSES[cause]
    start = IMPORT if cause == "earlier" else ""
    (tmp_path / "train.log").write_text(start + EPOCHS + end)
    (run,) = audit([str(tmp_path / "train.log")]).runs
    findings = {found.check: found for found in run.findings}
    ended = findings["ended"]
    assert said in ended.evidence
    assert "after 6 of 30 epochs" in ended.evidence
    assert fix in ended.fix
    is_stopped = cause == "time limit"
    assert ended.outcome is (Outcome.WARNED if is_stopped else Outcome.FAILED)
    assert findings["length"].outcome is Outcome.NOT_APPLICABLE
    assert not any("more epochs" in found.fix for found in run.findings)
    assert findings["fit"].numbers["kind"] == "not_yet_known"


def test_a_training_that_ended_without_an_error_has_no_such_finding(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(IMPORT + EPOCHS)
    (run,) = audit([str(tmp_path / "train.log")]).runs
    assert run.log.ended_by is None
    assert "ended" not in {found.check for found in run.findings}


def test_a_trial_of_ray_tune_that_failed_says_why(tmp_path: Path) -> None:
    rows = "".join(f"{k},{k},t1,{0.5 + k / 20}\n" for k in range(1, 7))
    header = "training_iteration,time_this_iter_s,trial_id,val_accuracy\n"
    (tmp_path / "progress.csv").write_text(header + rows)
    (tmp_path / "error.txt").write_text(FRAMES + OUT_OF_MEMORY + "\n")
    (run,) = audit([str(tmp_path / "progress.csv")]).runs
    (ended,) = (found for found in run.findings if found.check == "ended")
    assert OUT_OF_MEMORY in ended.evidence


ASSERT = "../aten/src/ATen/native/cuda/{}: block: [0,0,0], thread: [3,0,0] Assertion `{}` failed.\n"
LABEL = ASSERT.format("Loss.cu:250: nll_loss_forward", "t >= 0 && t < n_classes")
HIDDEN = {  # what is printed, what is said, what to do
    "label": (
        f"num_classes=9\n{LABEL}{FRAMES}RuntimeError: CUDA error: device-side assert triggered\n",
        "`t >= 0 && t < n_classes` failed (Loss.cu:250); the log has num_classes=9",
        "one output for each class",
    ),
    "label on the cpu": (
        f"{FRAMES}IndexError: Target 9 is out of bounds.\n", "Target 9", "one output for each class"
    ),
    "label in tensorflow": (
        f"{FRAMES}tensorflow.errors_impl.InvalidArgumentError: Graph execution error:\n\n"
        "Detected at node 'sparse' defined at\nReceived a label value of 10 which is outside the "
        "valid range of [0, 10).  Label values: 3 4 10\n",
        "Graph execution error: Received a label value of 10",
        "one output for each class",
    ),
    "embedding": (
        ASSERT.format("Indexing.cu:1236: index", "srcIndex < srcSelectDimSize")
        + f"{FRAMES}RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `x`\n",
        "`srcIndex < srcSelectDimSize` failed (Indexing.cu:1236)",
        "as large as the highest index",
    ),
    "probabilities": (
        ASSERT.format("Loss.cu:111: operator()", "input_val >= zero && input_val <= one")
        + f"{FRAMES}RuntimeError: CUDA error: device-side assert triggered\n",
        "input_val >= zero",
        "binary_cross_entropy_with_logits",
    ),
    "shared memory": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        f"shared memory (shm).\n{FRAMES}RuntimeError: DataLoader worker (pid 4) exited "
        "unexpectedly\n",
        "insufficient shared memory",
        "--shm-size",
    ),
    "unknown": (
        f"{FRAMES}RuntimeError: CUDA error: device-side assert triggered\n",
        "device-side assert triggered",
        "CUDA_LAUNCH_BLOCKING=1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cause", HIDDEN)
def test_an_error_that_does_not_say_its_cause_is_explained_by_the_lines_beside_it(
    cause: str, tmp_path: Path
) -> None:
    end, said, fix = HIDDEN[cause]
    path = tmp_path / "train.log"
    path.write_text(f"Epoch 1/30\n{end}")
    with pytest.raises(DataError) as caught:
        read_logs(str(path))
    assert said in str(caught.value)
    assert fix in str(caught.value)
    path.write_text(EPOCHS + end)
    (run,) = audit([str(path)]).runs
    (ended,) = (found for found in run.findings if found.check == "ended")
    assert said in ended.evidence
    assert fix in ended.fix
    assert "resume from the last checkpoint" in ended.fix


def test_other_errors_are_not_explained_by_an_earlier_assertion(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(f"{LABEL}{EPOCHS}{FRAMES}ValueError: no x\n")
    (run,) = audit([str(path)]).runs
    assert run.log.ended_by == "ValueError: no x"

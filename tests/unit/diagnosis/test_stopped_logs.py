"""Printed output of programs that stopped before they evaluated anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.errors import DataError

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
    assert any("it ended with" in note for note in log.notes)


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

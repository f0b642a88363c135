"""Notebooks are read as the logs that their cells printed or showed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepladder.diagnosis.logs.reader import read_logs
from stepladder.records.audit import RunLog

LINES = [
    f"Epoch {idx}/5\n----------\ntrain Loss: {0.9 - idx / 10:.4f} Acc: 0.7\n"
    f"val Loss: {0.8 - idx / 10:.4f} Acc: {0.8 + idx / 50:.4f}\n\n"
    for idx in range(6)
]
CURVE = [0.8 + idx / 50 for idx in range(6)]


def stream(*lines: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": list(lines)}


def html(names: str, rows: list[str]) -> dict[str, Any]:
    """A table as a trainer shows it."""
    head = "".join(f"<th>{name}</th>" for name in names.split(","))
    body = "".join(
        "<tr>" + "".join(f"<td>{cell}</td>" for cell in row.split(",")) + "</tr>" for row in rows
    )
    table = f"<div><table border='1'><thead><tr style='x'>{head}</tr></thead>{body}</table></div>"
    plain = ["<IPython.core.display.HTML object>"]
    return {"output_type": "display_data", "data": {"text/html": [table], "text/plain": plain}}


def read(tmp_path: Path, *outputs: dict[str, Any], is_old: bool = False) -> list[RunLog]:
    """Read a notebook with one code cell for each output, between others."""
    cells = [
        {"cell_type": "markdown", "source": ["Epoch 9/9\n", "val Loss: 7.0 Acc: 0.1"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": []},
        *({"cell_type": "code", "source": [], "outputs": [output]} for output in outputs),
    ]
    content = {"worksheets": [{"cells": cells}]} if is_old else {"cells": cells}
    path = tmp_path / "tutorial.ipynb"
    path.write_text(json.dumps({**content, "metadata": {}, "nbformat": 3 if is_old else 4}))
    return read_logs(str(path))


@pytest.mark.parametrize("is_old", [False, True])
def test_printed_lines_are_read_in_order_over_cells(tmp_path: Path, is_old: bool) -> None:
    frame = {"output_type": "execute_result", "data": {"text/plain": ["tensor([1, 2])"]}}
    (log,) = read(tmp_path, frame, stream(*LINES[:4]), stream(*LINES[4:]), is_old=is_old)
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)
    assert [row.epoch for row in log.rows] == [1, 2, 3, 4, 5, 6]


def test_returned_text_is_read(tmp_path: Path) -> None:
    output = {"output_type": "execute_result", "data": {"text/plain": LINES}}
    (log,) = read(tmp_path, output)
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)


def test_keras_output_is_read(tmp_path: Path) -> None:
    lines = [
        f"Epoch {idx + 1}/6\n9/9 [====] - 1s 9ms/step - loss: 0.5 - accuracy: 0.8 - "
        f"val_loss: 0.4 - val_accuracy: {value:.4f}\n"
        for idx, value in enumerate(CURVE)
    ]
    (log,) = read(tmp_path, stream(*lines))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)


def test_tables_of_trainers_are_read(tmp_path: Path) -> None:
    """Those of Hugging Face's Trainer and of fastai's Learner; other tables are left out."""
    other = html("name,age", ["Ada,36", "Max,40"])
    rows = [
        f"{k + 1},{'No log' if k < 2 else 0.5},0.4,{value:.4f}" for k, value in enumerate(CURVE)
    ]
    (log,) = read(tmp_path, other, html("Epoch,Training Loss,Validation Loss,Accuracy", rows))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)
    assert [row.train_loss for row in log.rows] == [None, None, 0.5, 0.5, 0.5, 0.5]
    rows = [f"{k},0.5,0.4,{1 - value:.4f},00:12" for k, value in enumerate(CURVE)]
    learner = html("epoch,train_loss,valid_loss,error_rate,time", rows)
    logs = read(tmp_path, learner, learner)
    assert [log.name for log in logs] == ["tutorial#1", "tutorial#2"]
    for log in logs:
        assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)


TABLE = html(
    "Epoch,Training Loss,Validation Loss,Accuracy",
    [f"{k + 1},{'No log' if k < 2 else 0.5},0.4,{value:.4f}" for k, value in enumerate(CURVE)],
)
AFTER = {
    "TrainOutput": "TrainOutput(global_step=2000, training_loss=0.20875, metrics={'train_runtime': "
    "861.4, 'train_steps_per_second': 2.32, 'train_loss': 0.20875, 'epoch': 6.0})",
    "evaluate": "{'eval_loss': 0.4, 'eval_accuracy': 0.9, 'eval_runtime': 4.1, 'epoch': 6.0}",
    "report": "           precision  recall  support\n\n      cat       0.90    0.91      200\n\n"
    " accuracy                 0.90      400",
    "sentence": "Accuracy on the validation set: 0.9000",
}


@pytest.mark.parametrize("names", [[name] for name in AFTER] + [["TrainOutput", "evaluate"]])
def test_what_a_cell_returned_does_not_replace_the_table_of_its_epochs(
    names: list[str], tmp_path: Path
) -> None:
    returned = [
        {"output_type": "execute_result", "data": {"text/plain": [AFTER[name]]}} for name in names
    ]
    (log,) = read(tmp_path, TABLE, *returned)
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)
    assert (log.epochs, log.test_accuracy) == (6, None)


def test_a_test_result_that_was_printed_belongs_to_the_table(tmp_path: Path) -> None:
    (log,) = read(tmp_path, TABLE, stream("Test accuracy: 0.8725\n"))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)
    assert log.test_accuracy == pytest.approx(0.8725)


def test_a_table_of_training_losses_is_not_replaced_by_their_mean(tmp_path: Path) -> None:
    losses = [0.9, 0.6, 0.4]
    table = html("Step,Training Loss", [f"{500 * k + 500},{x}" for k, x in enumerate(losses)])
    mean = {"output_type": "execute_result", "data": {"text/plain": [AFTER["TrainOutput"]]}}
    (log,) = read(tmp_path, table, mean)
    assert [row.train_loss for row in log.rows] == losses


def test_a_shorter_table_leaves_the_printed_lines(tmp_path: Path) -> None:
    """As that of the last rows of a history."""
    tail = html("epoch,val_loss,val_accuracy", ["5,0.3,0.1", "6,0.2,0.1"])
    (log,) = read(tmp_path, stream(*LINES), tail)
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)


def test_a_table_that_cannot_be_read_leaves_the_printed_lines(tmp_path: Path) -> None:
    settings = html("epoch,epoch", ["a,b"])
    (log,) = read(tmp_path, stream(*LINES), settings)
    assert [row.val_accuracy for row in log.rows] == pytest.approx(CURVE)

"""Third-party logs: each format gives the same training, and a truncated log gives its part."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.logs.files.json_log import read_json_log
from stepladder.diagnosis.logs.meaning.column_names import Meaning, digits_of, meaning, read_number
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.errors import DataError, UsageError
from stepladder.records.audit import LogFormat, RunLog


def _load_texts() -> ModuleType:
    path = Path(__file__).parent / "log_texts.py"
    spec = importlib.util.spec_from_file_location("log_texts", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["log_texts"] = module
    spec.loader.exec_module(module)
    return module


texts = _load_texts()
SHARES = [hits / texts.NUM_VAL for hits in texts.RIGHT]
FILES: dict[str, tuple[str, Callable[[], str], LogFormat]] = {
    "keras2": ("out.txt", texts.keras2, LogFormat.KERAS_OUTPUT),
    "keras3": ("out.txt", texts.keras3, LogFormat.KERAS_OUTPUT),
    "lightning": ("metrics.csv", texts.lightning_csv, LogFormat.LIGHTNING_CSV),
    "csv_logger": ("training.log", texts.csv_logger, LogFormat.CSV),
    "history": ("history.json", texts.keras_history, LogFormat.KERAS_HISTORY),
    "trainer_state": ("trainer_state.json", texts.trainer_state, LogFormat.TRAINER_STATE),
}


def read(folder: Path, text: str, name: str = "log.csv", **options: str) -> list[RunLog]:
    (folder / name).write_text(text, encoding="utf-8")
    return read_logs(str(folder / name), **options)


def check_curves(log: RunLog, *, tolerance: float = 1e-6) -> None:
    assert [row.epoch for row in log.rows] == list(range(1, 12))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(SHARES, abs=tolerance)
    assert [row.val_loss for row in log.rows] == pytest.approx(texts.LOSSES, abs=tolerance)
    assert [row.train_loss for row in log.rows] == pytest.approx(texts.TRAIN, abs=tolerance)
    assert log.epochs == 11


@pytest.mark.parametrize("kind", FILES)
def test_every_format_of_a_file_gives_the_same_training(kind: str, tmp_path: Path) -> None:
    name, write, wanted = FILES[kind]
    (log,) = read(tmp_path, write(), name)
    assert log.format is wanted
    check_curves(log, tolerance=6e-5 if wanted is LogFormat.KERAS_OUTPUT else 1e-9)


def test_a_training_in_a_folder_of_mlflow_is_read_with_its_times_and_options(
    tmp_path: Path,
) -> None:
    run = texts.write_mlflow_run(tmp_path)
    for place in (run, tmp_path):
        (log,) = read_logs(str(place))
        assert (log.format, log.name) == (LogFormat.MLFLOW, "quick-fox")
        assert [row.val_loss for row in log.rows] == list(texts.LOSSES)
        assert log.total_s == 220
        assert log.settings == {"lr": "0.001"}


@pytest.mark.parametrize(
    ("status", "said"), [("3", None), ("4", "status FAILED"), ("5", "status KILLED")]
)
def test_a_run_of_mlflow_that_failed_says_so(status: str, said: str | None, tmp_path: Path) -> None:
    run = texts.write_mlflow_run(tmp_path)
    (run / "meta.yaml").write_text(f"run_name: fox\nstart_time: 1000000\nstatus: {status}\n")
    (run / "params" / "epochs").write_text("40")
    (audited,) = audit([str(run)]).runs
    assert audited.log.ended_by == said
    ended = [found for found in audited.findings if found.check == "ended"]
    assert len(ended) == (said is not None)
    if said is not None:
        assert said in ended[0].evidence
        assert "40 epochs were planned" in ended[0].evidence


@pytest.mark.parametrize("num_batches", [1, 10])
def test_values_that_mlflow_stored_at_step_0_are_counted_in_the_order_of_time(
    num_batches: int, tmp_path: Path
) -> None:
    run = texts.write_mlflow_run(tmp_path)
    for file in (run / "metrics").iterdir():
        lines = [line.split()[:2] for line in file.read_text().splitlines()]
        if file.name == "loss":
            lines = [[at, value] for at, value in lines for _ in range(num_batches)]
        file.write_text("".join(f"{at} {value} 0\n" for at, value in lines))
    (run / "metrics" / "test_accuracy").write_text("2000000 0.7 0\n")
    (log,) = read_logs(str(run))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(SHARES)
    assert [row.train_loss for row in log.rows] == list(texts.TRAIN)
    assert log.test_accuracy == 0.7
    assert "have step 0, so they are counted" in log.notes[0]


def test_values_of_mlflow_without_steps_belong_to_the_last_step_of_others(tmp_path: Path) -> None:
    run = texts.write_mlflow_run(tmp_path)
    for name in ("val_loss", "val_accuracy"):
        file = run / "metrics" / name
        lines = [line.split()[:2] for line in file.read_text().splitlines()]
        file.write_text("".join(f"{int(at) + 1} {value} 0\n" for at, value in lines))
    (log,) = read_logs(str(run))
    assert [row.step for row in log.rows] == list(range(11))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(SHARES)
    assert "the last step of the other metrics" in log.notes[0]


@pytest.mark.parametrize("column", ["step", "epoch"])
def test_evaluations_that_all_have_one_step_or_epoch_are_counted(
    column: str, tmp_path: Path
) -> None:
    lines = [f"0,{loss},{share}" for loss, share in zip(texts.TRAIN, SHARES, strict=True)]
    (log,) = read(tmp_path, "\n".join([f"{column},loss,val_accuracy", *lines]) + "\n")
    assert [row.step for row in log.rows] == list(range(1, 12))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(SHARES)
    assert log.epochs is None
    assert "so they are counted, in the order of the log" in log.notes[0]


def test_values_of_tensorboard_without_steps_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for idx, share in enumerate(SHARES):
            writer.add_scalar("train/loss", texts.TRAIN[idx], walltime=2 * idx)
            writer.add_scalar("val/acc", share, walltime=2 * idx + 1)
    (log,) = read_logs(str(tmp_path))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(SHARES)
    assert [row.train_loss for row in log.rows] == pytest.approx(texts.TRAIN)


def test_a_run_is_read_through_the_client_of_mlflow(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from stepladder.training.output.sinks import MlflowSink

    uri = f"file://{tmp_path / 'mlruns'}"
    (tmp_path / "run").mkdir()
    sink = MlflowSink(uri, run_folder=tmp_path / "run", params={"lr": 0.1})
    for step, loss in enumerate((2.0, 1.0)):
        event = {"event": "validation", "step": step, "epoch": step, "val_loss": loss}
        sink.write({**event, "attempt": 1, "elapsed_s": 1.0})
    sink.close("finished")
    run_id = json.loads((tmp_path / "run" / "mlflow.json").read_text())["run_id"]
    (log,) = read_logs(f"{uri}#{run_id}")
    assert [row.val_loss for row in log.rows] == [2.0, 1.0]
    assert log.settings == {"lr": "0.1"}
    with pytest.raises(UsageError, match="RUN_ID"):
        read_logs(uri)


def test_train_and_validation_files_of_tensorboard_are_one_training(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (log,) = read_logs(str(texts.write_keras_tensorboard(tmp_path / "logs")))
    assert log.format is LogFormat.TENSORBOARD
    check_curves(log)


def test_times_of_keras_add_up_and_sizes_of_old_versions_are_read(tmp_path: Path) -> None:
    (log,) = read(tmp_path, texts.keras2(), "out.txt")
    assert (log.total_s, log.max_epochs) == (220, 60)
    old = (
        "Train on 2430 samples, validate on 270 samples\nEpoch 1/2\n"
        "2430/2430 [====] - 1:05 8ms/sample - loss: 2.0 - acc: 0.4 - val_loss: 1.9 - val_acc: 0.5\n"
    )
    (log,) = read(tmp_path, old, "old.txt")
    assert (log.num_train, log.num_val, log.total_s) == (2430, 270, 65)


def test_lines_about_early_stopping_and_evaluate_are_understood(tmp_path: Path) -> None:
    text = texts.keras2() + "Epoch 11: early stopping\n"
    text += "54/54 [======] - 1s 16ms/step - loss: 1.1000 - accuracy: 0.7500\n"
    (log,) = read(tmp_path, text, "out.txt")
    assert log.stop_reason == "early_stopping"
    assert (log.test_loss, log.test_accuracy) == (1.1, 0.75)
    check_curves(log, tolerance=6e-5)


@pytest.mark.parametrize("keep", [0.999, 0.97, 0.8])
def test_a_log_that_is_cut_gives_its_whole_epochs_and_says_so(keep: float, tmp_path: Path) -> None:
    text = texts.keras2()
    (log,) = read(tmp_path, text[: int(keep * len(text))], "out.txt")
    if keep < 0.999:
        assert any("the log ends within epoch" in note for note in log.notes)
        assert len(log.rows) < 11
    values = [row.val_accuracy for row in log.rows]
    assert values[:8] == pytest.approx(SHARES[: len(values)][:8], abs=6e-5)


def test_half_a_line_of_a_csv_is_left_out_and_reported(tmp_path: Path) -> None:
    (log,) = read(tmp_path, texts.csv_logger()[:-30])
    assert len(log.rows) == 10
    assert log.notes == (
        "epochs are counted from 1 here: epoch 0 of the log is 1",
        "the last line is incomplete and is ignored",
    )


@pytest.mark.parametrize("kind", ["keras2", "csv_logger"])
def test_two_runs_in_one_file_are_two_trainings(kind: str, tmp_path: Path) -> None:
    name, write, _ = FILES[kind]
    logs = read(tmp_path, write() + write(), name)
    assert [len(log.rows) for log in logs] == [11, 11]
    assert logs[0].name.endswith("#1")
    assert logs[1].name.endswith("#2")


def test_commas_as_decimals_and_percent_signs_are_numbers(tmp_path: Path) -> None:
    text = "epoch;loss;val_loss;val_acc\n1;2,5;2,0;45,5 %\n2;1,5;1,0;55,5 %\n"
    (log,) = read(tmp_path, text)
    assert [row.val_accuracy for row in log.rows] == pytest.approx([0.455, 0.555])
    assert [row.train_loss for row in log.rows] == [2.5, 1.5]
    assert log.digits == 3


def test_accuracies_in_percent_become_shares(tmp_path: Path) -> None:
    (log,) = read(tmp_path, "epoch,val_loss,val_acc\n1,2.0,78.5\n2,1.0,78.1\n")
    assert [row.val_accuracy for row in log.rows] == pytest.approx([0.785, 0.781])
    assert log.digits == 3


def test_the_share_of_waiting_is_read_in_percent_or_from_two_times(tmp_path: Path) -> None:
    for text in (
        "epoch,val_loss,data_loading(%)\n1,2.0,25\n",
        "epoch,val_loss,data_time,batch_time\n1,2.0,0.05,0.2\n",
    ):
        (log,) = read(tmp_path, text)
        assert log.rows[0].data_wait_frac == 0.25


@pytest.mark.parametrize("has_loss", [True, False])
def test_times_of_evaluations_are_no_waits_of_training(has_loss: bool, tmp_path: Path) -> None:
    """MMEngine's scalars.json has `data_time` and `time` in its rows of validation, too."""
    lines = []
    for k in range(1, 4):
        for data_s in (0.01, 0.03):
            train = {"lr": 0.1, "loss": 1 / k, "data_time": data_s, "time": 0.2, "step": 20 * k}
            lines.append(json.dumps({**train, "epoch": k}))
        loss = {"val_loss": 1 / k} if has_loss else {}
        held_out = {"acc/top1": 0.5 + k / 100, **loss, "data_time": 0.05, "time": 0.09, "step": k}
        lines.append(json.dumps(held_out))
    (log,) = read(tmp_path, "\n".join(lines), name="scalars.json")
    assert [row.data_wait_frac for row in log.rows] == pytest.approx([0.1] * 3)
    assert [row.val_accuracy for row in log.rows] == pytest.approx([0.51, 0.52, 0.53])


def test_a_metric_of_any_name_is_read_when_asked_for(tmp_path: Path) -> None:
    (log,) = read(tmp_path, "epoch,val_f1\n1,0.5\n2,0.6\n", metric="val_f1")
    assert [row.score for row in log.rows] == [0.5, 0.6]
    assert log.score_name == "val_f1"
    assert not log.is_score_share


def test_json_that_was_cut_gives_its_whole_entries_and_says_so(tmp_path: Path) -> None:
    text = texts.trainer_state()
    (log,) = read(tmp_path, text[: text.index('"epoch": 8.0')], "trainer_state.json")
    assert [row.epoch for row in log.rows][:7] == list(range(1, 8))
    assert [row.val_loss for row in log.rows][:7] == pytest.approx(texts.LOSSES[:7])
    assert "is truncated" in log.notes[0]
    history = texts.keras_history()
    (log,) = read(tmp_path, history[: history.index("val_accuracy")], "history.json")
    assert [row.val_loss for row in log.rows] == list(texts.LOSSES)
    rows = '[{"epoch": 1, "val_loss": 2.0, "name": "a]}"}, {"epoch": 2, "val_loss": 1.5}, {"ep'
    (log,) = read(tmp_path, rows, "log.json")
    assert [row.val_loss for row in log.rows] == [2.0, 1.5]


def test_a_test_set_that_was_read_at_each_epoch_takes_the_place_of_validation(
    tmp_path: Path,
) -> None:
    text = "epoch,loss,test_loss,test_acc,num_test\n1,2.0,1.5,60,50\n2,1.0,1.2,70,50\n"
    (log,) = read(tmp_path, text)
    assert log.is_val_test
    assert [row.val_accuracy for row in log.rows] == [0.6, 0.7]
    assert [row.val_loss for row in log.rows] == [1.5, 1.2]
    assert (log.num_val, log.test_accuracy, log.test_loss) == (50, None, None)
    assert "so test_loss, test_acc is judged instead" in log.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        "epoch,loss,val_loss,test_loss\n1,2.0,1.5,1.6\n2,1.0,1.2,1.3\n",
        "epoch,loss,test_loss\n1,2.0,\n2,1.0,1.3\n",
    ],
)
def test_test_next_to_validation_or_read_once_stays_test(text: str, tmp_path: Path) -> None:
    (log,) = read(tmp_path, text)
    assert not log.is_val_test
    assert log.test_loss == 1.3


def test_accuracies_that_are_no_shares_are_left_out_and_reported(tmp_path: Path) -> None:
    (log,) = read(
        tmp_path, "epoch,val_loss,val_acc,test_acc\n1,2,0.5,0.7\n2,1,-1,nan\n3,1,1.2,inf\n"
    )
    assert [row.val_accuracy for row in log.rows] == [0.5, None, None]
    assert log.test_accuracy == 0.7
    assert "2 accuracies are not in [0, 1] and are ignored" in log.notes


def test_a_size_that_is_not_a_number_is_not_known(tmp_path: Path) -> None:
    (log,) = read(tmp_path, "epoch,val_loss,num_val,num_train\n1,2.0,inf,nan\n2,1.0,inf,nan\n")
    assert (log.num_val, log.num_train) == (None, None)


BROKEN = {
    "empty": ("", "this log is an empty file"),
    "header only": ("epoch,loss,val_loss\n", "no row"),
    "no names": ("1,2,3\n4,5,6\n", "numbers instead of column names"),
    "unknown names": (
        "a,b\n1,2\n",
        "none of the columns is known to be a loss or an accuracy: a, b",
    ),
    "comma decimals": ("epoch,loss\n1,0,5\n2,0,4\n", "decimal comma"),
    "half of JSON": ('{"epoch": 3.0, "log_history": [{"epoch": 1.0, "lo', "not valid JSON"),
    "wrong JSON": ('[{"epoch": 1, "val_loss": 2.0}, {"epoch": 2]}', "not valid JSON"),
    "other JSON": ('{"a": 1}', "this JSON file is not a training log"),
    "prose": ("Dear diary, today I trained a network.\nIt went well.\n", "none of the columns"),
    "bytes": ("\x00\x01\x02", "not text"),
    "drawing": ('<?xml version="1.0"?>\n<svg width="9"></svg>', r"is a picture \(SVG\)"),
    "notebook": (
        '{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": ["val loss: 0.5"]}, '
        '{"cell_type": "code", "outputs": [{"output_type": "stream", "text": ["done"]}]}]}',
        "this is a notebook without training output",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_not_a_log_is_refused_in_a_clear_sentence(kind: str, tmp_path: Path) -> None:
    text, said = BROKEN[kind]
    with pytest.raises(DataError, match=said) as caught:
        read(tmp_path, text)
    assert caught.value.where


def test_a_folder_without_a_log_and_a_missing_path_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("nothing")
    with pytest.raises(
        DataError, match=r"contains no training log of a known format, only notes\.md"
    ):
        read_logs(str(tmp_path))
    with pytest.raises(DataError, match="no such file"):
        read_logs(str(tmp_path / "gone"))


def test_the_newest_checkpoint_of_a_folder_has_the_whole_training(tmp_path: Path) -> None:
    for step, num in ((900, 9), (1100, 11)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(texts.trainer_state(texts.RIGHT[:num]))
    (log,) = read_logs(str(tmp_path))
    check_curves(log)
    assert (log.num_val, log.total_s) == (270, 220)


def test_names_of_many_tools_mean_the_same() -> None:
    for name in ("val_acc", "Val/Accuracy", "eval_accuracy", "valid_acc@1", "accuracy/val"):
        assert meaning(name) is Meaning.VAL_ACCURACY, name
    for name in ("loss", "train_loss", "train/loss_epoch", "Loss/train", "epoch_loss"):
        assert meaning(name) is Meaning.TRAIN_LOSS, name
    assert meaning("lr-Adam") is Meaning.LEARNING_RATE
    assert meaning("val_f1") is None


def test_numbers_and_their_decimals() -> None:
    assert read_number("0,785") == 0.785
    assert read_number("78.5 %") == pytest.approx(0.785)
    assert read_number("tensor(0.5000, device='cuda:0')") == 0.5
    assert read_number("n/a") is None
    assert [digits_of(text) for text in ("0.785", "78.5%", "1e-3", "0.78518518518")] == [3, 3, 3, 7]


@pytest.mark.parametrize(
    "start",
    ["mrpc_en_eval_", "default/eval_", "model.val_", "student-valid_", "eval_mrpc_", "task1/dev/"],
)
def test_a_named_set_is_held_out_data(start: str, tmp_path: Path) -> None:
    history: list[dict[str, float]] = []
    for k in range(1, 6):
        history.append({"epoch": k, "step": 10 * k, "loss": 1 / k, "learning_rate": 0.1})
        held_out = {"loss": 2 / k, "accuracy": 0.5 + k / 50, "f1": 0.3, "runtime": 2.6}
        named = {f"{start}{name}": value for name, value in held_out.items()}
        history.append({"epoch": k, "step": 10 * k, **named, "eval_average_metrics": 37.8})
    (log,) = read(tmp_path, json.dumps({"log_history": history}), name="trainer_state.json")
    assert [row.val_loss for row in log.rows] == pytest.approx([2 / k for k in range(1, 6)])
    assert [row.train_loss for row in log.rows] == pytest.approx([1 / k for k in range(1, 6)])
    assert [row.val_accuracy for row in log.rows] == pytest.approx(
        [0.5 + k / 50 for k in range(1, 6)]
    )


def test_of_two_named_sets_the_first_is_used_and_parts_of_a_loss_are_no_sets(
    tmp_path: Path,
) -> None:
    head = "epoch,loss,a_eval_loss,a_eval_acc,b_eval_loss,b_eval_acc\n"
    (log,) = read(tmp_path, head + "1,3,2,0.5,1,0.7\n2,2,1.5,0.6,0.9,0.8\n")
    assert [(row.val_loss, row.val_accuracy) for row in log.rows] == [(2, 0.5), (1.5, 0.6)]
    head = "epoch,loss,best_val_loss,last_val_loss,val_box_loss,val_loss\n"
    (log,) = read(tmp_path, head + "1,3,2,2,1,2.5\n2,2,1.5,2,1,2.4\n")
    assert [row.val_loss for row in log.rows] == [2.5, 2.4]
    (log,) = read(tmp_path, "epoch,train/loss,val/box_loss,val/map\n1,3,2,0.1\n2,2,1,0.2\n")
    assert [row.val_loss for row in log.rows] == [None, None]


def test_the_size_of_a_named_set_follows_from_its_rate() -> None:
    item = {"mrpc_en_eval_runtime": 2.6183, "mrpc_en_eval_samples_per_second": 77.913}
    text = json.dumps({"log_history": [{"epoch": 1, "mrpc_en_eval_loss": 0.5, **item}]})
    (table,) = read_json_log(text, name="a", path="a")
    assert table.known["num_val"] == 204


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF"])
def test_a_picture_of_curves_is_refused_as_a_picture(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "loss_curves"
    Image.new("RGB", (64, 48), "white").save(path, kind)
    with pytest.raises(DataError, match=rf"this file is a picture \({kind}\)") as caught:
        read_logs(str(path))
    assert caught.value.fix is not None
    assert "Pass the log that the picture was drawn from" in caught.value.fix


def test_a_log_that_begins_as_a_text_bitmap_does_is_read(tmp_path: Path) -> None:
    lines = [f"P1 epoch {idx} train loss {2 / idx} val acc 0.{50 + idx}\n" for idx in range(1, 9)]
    (log,) = read(tmp_path, "".join(lines))
    assert len(log.rows) == 8


def test_a_header_between_two_epochs_is_a_resumption_but_not_one_every_few_rows(
    tmp_path: Path,
) -> None:
    header = "epoch,loss,val_loss,val_accuracy\n"
    rows = [f"{idx},{1 / idx},{1.2 / idx},{0.5 + idx / 50}\n" for idx in range(1, 13)]
    (log,) = read(tmp_path, header + "".join(rows[:7]) + header + "".join(rows[7:]))
    assert log.resumed_at == (8,)
    assert "it was resumed at epoch 8" in log.notes
    assert len(log.rows) == 12
    every_4 = "".join(header + "".join(rows[at : at + 4]) for at in (0, 4, 8))
    (log,) = read(tmp_path, every_4)
    assert (log.resumed_at, log.notes, len(log.rows)) == ((), (), 12)

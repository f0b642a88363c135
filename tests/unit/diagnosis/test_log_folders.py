"""Folders of trainings: which file is the log, and which folders are trainings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepladder.diagnosis.audit.audit import audit
from stepladder.diagnosis.logs.reader import logs_in, read_logs
from stepladder.errors import DataError
from stepladder.records.audit import Audit


def write_mmengine(folder: Path, first: int, last: int, *, has_scalars: bool = True) -> None:
    """Write the folder of one start of MMEngine: named after its time, with `vis_data` in it."""
    inner = folder / "vis_data"
    inner.mkdir(parents=True)
    lines = []
    for epoch in range(first, last + 1):
        lines.append({"lr": 0.01, "loss": 2 / epoch, "epoch": epoch, "iter": 30 * epoch})
        lines.append({"accuracy/top1": 40 + 2.5 * epoch, "step": epoch})
    text = "\n".join(map(json.dumps, lines)) + "\n"
    (inner / f"{folder.name}.json").write_text(text)
    (inner / "scalars.json").write_text(text if has_scalars else "")
    (inner / "config.py").write_text("lr = 0.01\n")
    (folder / f"{folder.name}.log").write_text("2024/03/10 09:30:11 - mmengine - INFO - start\n")


def counted(found: Audit) -> list[tuple[str, float | None, float | None]]:
    return [(run.log.name, run.log.num_epochs, run.result) for run in found.runs]


@pytest.mark.parametrize("has_scalars", [True, False])
def test_the_starts_of_mmengine_in_a_work_dir_are_trainings_each_read_once(
    has_scalars: bool, tmp_path: Path
) -> None:
    write_mmengine(tmp_path / "20240310_093011", 1, 8, has_scalars=has_scalars)
    write_mmengine(tmp_path / "20240310_141522", 9, 15, has_scalars=has_scalars)
    (tmp_path / "last_checkpoint").write_text("epoch_15.pth")
    found = audit([str(tmp_path)])
    assert counted(found) == [("20240310_093011", 8, 0.6), ("20240310_141522", 7, 0.775)]
    assert not found.unreadable


def test_a_start_without_a_single_value_is_listed_and_the_others_read(tmp_path: Path) -> None:
    write_mmengine(tmp_path / "20240310_093011", 1, 0)
    write_mmengine(tmp_path / "20240310_141522", 1, 4)
    found = audit([str(tmp_path)])
    assert counted(found) == [("20240310_141522", 4, 0.5)]
    assert len(found.unreadable) == 1
    assert "20240310_093011" in found.unreadable[0]


def test_one_start_alone_is_named_after_its_folder(tmp_path: Path) -> None:
    write_mmengine(tmp_path / "work" / "20240310_093011", 1, 8)
    for word in (tmp_path / "work", tmp_path / "work" / "20240310_093011"):
        assert counted(audit([str(word)])) == [("20240310_093011", 8, 0.6)]


def test_a_start_that_continues_the_one_before_is_called_so_and_not_compared(
    tmp_path: Path,
) -> None:
    write_mmengine(tmp_path / "20240310_093011", 1, 8)
    write_mmengine(tmp_path / "20240310_141522", 9, 15)
    write_mmengine(tmp_path / "20240311_101112", 1, 15)
    found = audit([str(tmp_path)])
    notes = [note for run in found.runs for note in run.log.notes if "resumed" in note]
    assert [note.partition(":")[0] for note in notes] == [
        "it begins at epoch 9, after the last epoch of 20240310_093011"
    ]
    assert [(one.first, one.second) for one in found.differences] == [
        ("20240310_141522", "20240311_101112")
    ]


@pytest.mark.parametrize("name", ["train.log", "log.txt", "progress.csv", "metrics.jsonl"])
def test_usual_names_of_logs_make_a_folder_that_of_a_training(name: str, tmp_path: Path) -> None:
    for number in (2, 10, 1):
        folder = tmp_path / f"exp{number}"
        folder.mkdir()
        rows = [{"epoch": idx + 1, "val_accuracy": 0.5 + 0.1 * idx} for idx in range(4)]
        if name.endswith(".jsonl"):
            text = "\n".join(map(json.dumps, rows))
        elif name.endswith(".csv"):
            text = "\n".join(
                ["epoch,val_accuracy", *(",".join(map(str, r.values())) for r in rows)]
            )
        else:
            text = "\n".join(f"Epoch {r['epoch']}: val accuracy {r['val_accuracy']}" for r in rows)
        (folder / name).write_text(text + "\n")
    (tmp_path / "latest").symlink_to(tmp_path / "exp10")
    assert [name for name, *_ in counted(audit([str(tmp_path)]))] == ["exp1", "exp2", "exp10"]


def test_logs_of_other_names_in_inner_folders_are_suggested_and_settings_are_not(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("out_17.txt", "params.json", "config.json", "tokenizer_config.json"):
            (tmp_path / name / file).write_text("Epoch 1: val accuracy 0.5\n")
    (tmp_path / "experiment_state-2024-05-01_10-11-12.json").write_text("{}")
    assert logs_in(str(tmp_path)) == [str(tmp_path)]
    with pytest.raises(DataError) as caught:
        read_logs(str(tmp_path))
    assert caught.value.fix == (
        f"Did you mean one of {tmp_path}/a/out_17.txt, {tmp_path}/b/out_17.txt? Pass one file."
    )
    assert read_logs(f"{tmp_path}/b/out_17.txt")


def write_trial(folder: Path, reports: list[dict[str, float]], *, files: str = "both") -> None:
    """Write the folder of a trial of Ray Tune: the same rows as CSV and as JSON lines."""
    folder.mkdir(parents=True)
    rows = [
        {
            **report,
            "timestamp": 1714558300 + 60 * idx,
            "done": idx == len(reports) - 1,
            "training_iteration": idx + 1,
            "trial_id": "b3f1c_00000",
            "time_this_iter_s": 39.5,
            "time_total_s": 40.0 * (idx + 1),
            "pid": 4021,
            "iterations_since_restore": idx + 1,
        }
        for idx, report in enumerate(reports)
    ]
    csv = [",".join([*row, "config/lr"]) for row in rows[:1]]
    csv += [",".join(map(str, [*row.values(), 0.01])) for row in rows]
    (folder / "params.json").write_text('{"lr": 0.01}')
    if files != "json":
        (folder / "progress.csv").write_text("\n".join(csv) + "\n" if rows else "")
    if files != "csv":
        lines = [json.dumps({**row, "config": {"lr": 0.01}}) for row in rows]
        (folder / "result.json").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("files", ["both", "csv", "json"])
@pytest.mark.parametrize("metric", ["accuracy", "mean_accuracy"])
def test_each_trial_of_ray_tune_is_one_training(metric: str, files: str, tmp_path: Path) -> None:
    for idx, values in enumerate(([0.26, 0.37, 0.59, 0.55], [0.1, 0.13], [0.5])):
        folder = f"train_b3f1c_0000{idx}_{idx}_batch_size=8,lr=0.0{idx}_2024-05-01_10-11-12"
        reports = [{"loss": 2 - value, metric: value} for value in values]
        write_trial(tmp_path / folder, reports, files=files)
    (tmp_path / "experiment_state-2024-05-01_10-11-12.json").write_text("{}")
    found = audit([str(tmp_path)])
    assert counted(found) == [
        ("train_b3f1c_00000", 4, 0.59),
        ("train_b3f1c_00001", 2, 0.13),
        ("train_b3f1c_00002", 1, 0.5),
    ]
    assert [run.best_epoch for run in found.runs] == [3, 2, 1]
    for run in found.runs:
        assert (run.metric, run.log.accuracy_column) == ("val_accuracy", metric)
        assert run.log.settings == {"lr": "0.01"}
        assert run.log.total_s == 40 * run.log.num_epochs
        assert any(note.startswith("Ray Tune does not say") for note in run.log.notes)


def test_a_trial_that_reported_splits_and_epochs_is_read_by_them(tmp_path: Path) -> None:
    reports = [
        {"epoch": 2 * idx, "train_loss": 1 / idx, "accuracy": 0.9, "val_accuracy": 0.1 * idx}
        for idx in range(1, 6)
    ]
    write_trial(tmp_path / "trial", reports)
    for file in ("", "progress.csv", "result.json"):
        (log,) = read_logs(str(tmp_path / "trial" / file))
        assert log.name == "trial"
        assert [row.epoch for row in log.rows] == [2, 4, 6, 8, 10]
        assert [row.val_accuracy for row in log.rows] == [0.1 * idx for idx in range(1, 6)]
        assert [row.train_loss for row in log.rows] == [1 / idx for idx in range(1, 6)]
        assert not log.notes


def test_a_trial_that_failed_before_its_first_report_is_listed_with_its_error(
    tmp_path: Path,
) -> None:
    write_trial(tmp_path / "a", [{"accuracy": 0.5}, {"accuracy": 0.6}])
    write_trial(tmp_path / "b", [])
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nValueError: no data\n'
    (tmp_path / "b" / "error.txt").write_text(trace)
    found = audit([str(tmp_path)])
    assert counted(found) == [("a", 2, 0.6)]
    (said,) = found.unreadable
    assert "stopped with 'ValueError: no data'" in said


TRAINED = {"epoch": 5.0, "train_loss": 0.198, "train_runtime": 122.3, "total_flos": 4e17}
EVALUATED = {
    "epoch": 5.0,
    "eval_accuracy": 130 / 133,
    "eval_loss": 0.072,
    "eval_runtime": 1.4127,
    "eval_samples_per_second": 94.146,
}
PREDICTED = {"predict_accuracy": 0.91, "predict_loss": 0.3, "predict_runtime": 1.4}


def write_results(folder: Path, **files: dict[str, float]) -> None:
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=4))
    for name in ("config", "preprocessor_config", "tokenizer_config", "generation_config"):
        (folder / f"{name}.json").write_text('{"hidden_size": 768}')


@pytest.mark.parametrize("names", [["all_results", "eval_results"], ["eval_results"]])
def test_end_results_of_hugging_face_are_one_evaluation_at_their_epoch(
    names: list[str], tmp_path: Path
) -> None:
    written = {"all_results": TRAINED | EVALUATED, "eval_results": EVALUATED}
    write_results(tmp_path, train_results=TRAINED, **{name: written[name] for name in names})
    for word in (tmp_path, tmp_path / f"{names[0]}.json"):
        (log,) = read_logs(str(word))
        (row,) = log.rows
        assert (log.name, log.num_val, log.epochs) == (tmp_path.name, 133, 5)
        assert (row.epoch, row.val_accuracy, row.val_loss) == (5, 130 / 133, 0.072)
        assert row.train_loss is None
        assert "trainer_state.json" in log.notes[0]


def test_the_course_in_a_checkpoint_goes_before_the_end_results(tmp_path: Path) -> None:
    write_results(tmp_path, all_results=TRAINED | EVALUATED)
    history = [{"epoch": idx, "eval_accuracy": 0.1 * idx, "step": 10 * idx} for idx in range(1, 6)]
    for num in (2, 5):
        folder = tmp_path / f"checkpoint-{10 * num}"
        folder.mkdir()
        state = json.dumps({"log_history": history[:num]})
        (folder / "trainer_state.json").write_text(state)
    (log,) = read_logs(str(tmp_path))
    assert len(log.rows) == 5


def test_results_of_predict_are_a_test_and_those_of_training_alone_are_refused(
    tmp_path: Path,
) -> None:
    write_results(tmp_path, train_results=TRAINED)
    with pytest.raises(DataError, match="nothing was evaluated") as caught:
        read_logs(str(tmp_path))
    assert "trainer_state.json" in str(caught.value.fix)
    write_results(tmp_path, predict_results=PREDICTED)
    (log,) = read_logs(str(tmp_path))
    assert (log.test_accuracy, log.test_loss) == (0.91, 0.3)


def test_files_of_a_model_are_not_suggested_as_logs(tmp_path: Path) -> None:
    write_results(tmp_path)
    with pytest.raises(DataError, match="no training log") as caught:
        read_logs(str(tmp_path))
    assert "Did you mean" not in str(caught.value.fix)


def test_event_files_of_trials_are_not_read_beside_their_logs(tmp_path: Path) -> None:
    write_trial(tmp_path / "ray" / "a", [{"accuracy": 0.5}, {"accuracy": 0.6}])
    write_trial(tmp_path / "ray" / "b", [{"accuracy": 0.5}, {"accuracy": 0.7}])
    write_mmengine(tmp_path / "work" / "a", 1, 8)
    write_mmengine(tmp_path / "work" / "b", 1, 12)
    for folder in ("ray/a", "ray/b", "work/a/vis_data", "work/b/vis_data"):
        (tmp_path / folder / "events.out.tfevents.1714558300.node1").write_bytes(b"")
    assert counted(audit([str(tmp_path / "ray")])) == [("a", 2, 0.6), ("b", 2, 0.7)]
    assert counted(audit([str(tmp_path / "work")])) == [("a", 8, 0.6), ("b", 12, 0.7)]


@pytest.mark.parametrize("name", ["train.log", "all_results.json"])
def test_output_beside_folders_with_a_course_is_not_read_instead_of_them(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(EVALUATED))
    for number in (0, 1):
        (tmp_path / f"version_{number}").mkdir()
        text = "epoch,step,val_acc\n0,9,0.5\n1,19,0.6\n"
        (tmp_path / f"version_{number}" / "metrics.csv").write_text(text)
    found = audit([str(tmp_path)])
    assert counted(found) == [("version_0", 2, 0.6), ("version_1", 2, 0.6)]

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

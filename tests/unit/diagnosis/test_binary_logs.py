"""Files of arrays are read, pickles are named with a command that converts them."""

from __future__ import annotations

import bz2
import gzip
import json
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepladder.diagnosis.logs.files import binary_log
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.errors import DataError

HISTORY = {
    "loss": [0.9, 0.7, 0.6, 0.5],
    "val_loss": [0.8, 0.75, 0.7, 0.72],
    "val_accuracy": [0.5, 0.6, 0.75, 0.7],
}


def write_npz(path: Path, **arrays: Any) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def write_pickle(path: Path, value: Any) -> None:
    path.write_bytes(pickle.dumps(value))


def write_npy(path: Path, value: Any) -> None:
    np.save(path, np.array(value, dtype=object), allow_pickle=True)


SCALARS = {key: [np.float32(item) for item in items] for key, items in HISTORY.items()}
PICKLED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "npy": ("my history.npy", lambda path: write_npy(path, SCALARS), "NumPy file"),
    "npz, one object": (
        "history.npz",
        lambda path: write_npz(path, history=np.array(HISTORY, dtype=object)),
        "NumPy archive",
    ),
    "npz, without a name": (
        "history.npz",
        lambda path: write_npz(path, arr_0=np.array(HISTORY, dtype=object)),
        "NumPy archive",
    ),
    "pickle": ("history.pkl", lambda path: write_pickle(path, SCALARS), "pickle"),
    "pickle, no ending": ("trainHistoryDict", lambda path: write_pickle(path, HISTORY), "pickle"),
    "pickle, old": (
        "history.pickle",
        lambda path: path.write_bytes(pickle.dumps(HISTORY, protocol=0)),
        "pickle",
    ),
    "torch": (
        "it's.pt",
        lambda path: torch.save(
            {"model": {"w": torch.zeros(2)}, "epoch": 4, "history": SCALARS}, path
        ),
        "PyTorch file",
    ),
    "torch, old": (
        "log.pth",
        lambda path: torch.save(
            {"w": torch.zeros(2), **HISTORY}, path, _use_new_zipfile_serialization=False
        ),
        "PyTorch file",
    ),
}


@pytest.mark.parametrize("kind", PICKLED)
def test_a_pickle_is_not_loaded_and_the_printed_command_converts_it(
    kind: str, tmp_path: Path
) -> None:
    name, write, said = PICKLED[kind]
    path = tmp_path / name
    write(path)
    with pytest.raises(DataError, match=f"this file is an? {said}") as caught:
        read_logs(str(path))
    assert caught.value.why == "Unpickling runs the code in a file."
    fix = str(caught.value.fix)
    assert "\n" not in fix
    command = fix.partition("JSON: python ")[2].partition(" && ")[0]
    subprocess.run(f"{sys.executable} {command}", shell=True, check=True)
    (log,) = read_logs(str(path.with_suffix(".json")))
    assert [row.val_accuracy for row in log.rows] == pytest.approx(HISTORY["val_accuracy"])
    assert [row.train_loss for row in log.rows] == pytest.approx(HISTORY["loss"])


def test_the_command_overwrites_no_file(tmp_path: Path) -> None:
    write_pickle(tmp_path / "history.pkl", HISTORY)
    (tmp_path / "history.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        read_logs(str(tmp_path / "history.pkl"))
    assert str(caught.value.fix).endswith("/history_history.json")


def test_joblib_is_named_with_its_own_function(tmp_path: Path) -> None:
    write_pickle(tmp_path / "history.joblib", HISTORY)
    with pytest.raises(DataError, match="file of joblib") as caught:
        read_logs(str(tmp_path / "history.joblib"))
    assert "joblib.load(sys.argv[1])" in str(caught.value.fix)


@pytest.mark.parametrize("is_column", [False, True])
def test_arrays_of_an_npz_are_read(is_column: bool, tmp_path: Path) -> None:
    arrays = {key: np.array(items) for key, items in HISTORY.items()}
    if is_column:
        arrays = {key: array[:, None] for key, array in arrays.items()}
    write_npz(tmp_path / "history.npz", **arrays, weights=np.zeros((3, 4)), by=np.array(["adam"]))
    (log,) = read_logs(str(tmp_path / "history.npz"))
    assert [row.val_accuracy for row in log.rows] == HISTORY["val_accuracy"]
    assert [row.epoch for row in log.rows] == [1, 2, 3, 4]


def test_an_npy_with_names_or_a_name_of_its_own_is_read_and_any_other_one_refused(
    tmp_path: Path,
) -> None:
    rows = list(zip(*HISTORY.values(), strict=True))
    np.save(tmp_path / "log.npy", np.array(rows, dtype=[(name, "f8") for name in HISTORY]))
    np.save(tmp_path / "val_accuracy.npy", np.array(HISTORY["val_accuracy"]))
    for name in ("log", "val_accuracy"):
        (log,) = read_logs(str(tmp_path / f"{name}.npy"))
        assert [row.val_accuracy for row in log.rows] == HISTORY["val_accuracy"]
    np.save(tmp_path / "values.npy", np.array(HISTORY["val_accuracy"]))
    with pytest.raises(DataError, match=r"shape \(4,\) without names") as caught:
        read_logs(str(tmp_path / "values.npy"))
    assert "val_accuracy.npy" in str(caught.value.fix)


def test_a_damaged_file_of_numpy_is_called_so(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", **{key: np.array(items) for key, items in HISTORY.items()})
    np.save(tmp_path / "b.npy", np.array(HISTORY["loss"]))
    for name in ("a.npz", "b.npy"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: len(data) - 20])
        with pytest.raises(DataError, match="is damaged"):
            read_logs(str(tmp_path / name))


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "big.npz"
    np.savez_compressed(path, loss=np.zeros(100_000))
    with pytest.raises(DataError, match="NumPy archive of 1 MB"):
        binary_log.read_arrays(path, path.read_bytes(), max_bytes=700_000)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), "an HDF5 file"),
        ("log.mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64" + bytes(64), "a MATLAB file"),
        ("log.parquet", b"PAR1" + bytes(64), "a Parquet file"),
    ],
)
def test_other_binary_files_are_named(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=f"this file is {said}, not a training log"):
        read_logs(str(tmp_path / name))


def test_a_spreadsheet_and_a_zip_are_named(tmp_path: Path) -> None:
    for name, inner, said in (
        ("log.xlsx", "xl/workbook.xml", "a spreadsheet"),
        ("logs.zip", "run/log.csv", "a zip archive"),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(inner, "epoch,val_accuracy\n1,0.5\n")
        with pytest.raises(DataError, match=f"this file is {said}"):
            read_logs(str(tmp_path / name))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_the_command_for_a_compressed_log_unpacks_it(
    pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    (tmp_path / "history.json.z").write_bytes(pack(json.dumps(HISTORY).encode()))
    with pytest.raises(DataError, match="compressed with") as caught:
        read_logs(str(tmp_path / "history.json.z"))
    subprocess.run(str(caught.value.fix).rpartition(": ")[2], shell=True, check=True)
    (log,) = read_logs(str(tmp_path / "history.json"))
    assert len(log.rows) == 4

"""Tables in binary files are refused by the name of their format; the command writes a CSV."""

from __future__ import annotations

import pickle
import shlex
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError

LABELS = [1, 77, 102, 1, 1, 77, 102, 1, 1, 77, 102, 102]  # of image_1.jpg to image_12.jpg
NAMES = [f"image_{at}.jpg" for at in range(1, 13)]


def refused(path: Path, **options: str) -> DataError:
    for name in NAMES:
        (path.parent / "jpg").mkdir(exist_ok=True)
        (path.parent / "jpg" / name).write_bytes(b"x")
    with pytest.raises(DataError, match="this file is ") as caught:
        list_pictures(PrepareConfig(source=path, **options))
    return caught.value


def typed_listing(fix: str | None) -> Listing:
    """Run the command of a remedy without its installation, and list what its last part reads."""
    edit, _, last = str(fix).rpartition(" && stepladder prepare ")
    edit = f"python {edit.partition('python ')[2]}".replace("python", sys.executable, 1)
    subprocess.run(["bash", "-c", edit], check=True)
    source, *flags = shlex.split(last)
    options = {
        flag.removeprefix("--").replace("-", "_"): value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    return list_pictures(PrepareConfig(source=Path(source), **options))


def _save_mat(path: Path, values: dict[str, Any]) -> None:
    pytest.importorskip("scipy.io").savemat(path, values)


def _flowers(path: Path) -> None:
    _save_mat(path, {"labels": np.array([LABELS], dtype="uint8"), "other": np.zeros((3, 4))})


def _cars(path: Path) -> None:
    fields = [(name, "O") for name in ("bbox_x1", "class", "test", "relative_im_path")]
    cars = np.zeros((1, len(LABELS)), dtype=fields)
    for at, (label, name) in enumerate(zip(LABELS, NAMES, strict=True)):
        cars[0, at] = (30 + at, label, 0, f"jpg/{name}")
    names = np.array([["AM Hummer", "Audi"]], dtype=object)
    _save_mat(path, {"annotations": cars, "class_names": names})


def _hdf5(path: Path) -> None:
    with pytest.importorskip("h5py").File(path, "w") as file:
        file["set/names"] = [f"jpg/{name}".encode() for name in NAMES]
        file["set/labels"] = LABELS
        file["features"] = np.zeros((12, 4))


def _pickled(value: Callable[[], Any]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(pickle.dumps(value()))  # type: ignore[return-value]


def _frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"image": NAMES, "label": LABELS, "size": range(12)})


@pytest.mark.parametrize(
    ("name", "write", "what", "package"),
    [
        ("imagelabels.mat", _flowers, "a MATLAB file (.mat)", "scipy"),
        ("cars_annos.mat", _cars, "a MATLAB file (.mat)", "scipy"),
        ("my labels.h5", _hdf5, "an HDF5 file", "h5py"),
        ("labels.npy", lambda path: np.save(path, LABELS), "a NumPy array", ""),
        ("labels.pkl", _pickled(_frame), "a Python pickle", "pandas"),
        (
            "labels.pickle",
            _pickled(lambda: dict(zip(NAMES, LABELS, strict=True))),
            "a Python pickle",
            "pandas",
        ),
        ("l.pkl", _pickled(lambda: list(zip(NAMES, LABELS, strict=True))), "a Python pickle", ""),
        ("l.pkl", _pickled(lambda: {"f": NAMES, "labels": LABELS}), "a Python pickle", ""),
    ],
)
def test_lists_of_labels_become_a_table(
    tmp_path: Path, name: str, write: Callable[[Path], None], what: str, package: str
) -> None:
    write(tmp_path / name)
    error = refused(tmp_path / name)
    assert error.what == f"this file is {what}, not a table of text"
    assert (f"pip install {package} && " if package else "python -c") in str(error.fix)
    assert ("runs the code in it" in str(error.why)) == ("pickle" in what)
    found = typed_listing(error.fix)
    assert {p.path: p.label for p in found.pictures} == {
        f"jpg/{name}": str(label) for name, label in zip(NAMES, LABELS, strict=True)
    }


def test_options_of_the_table_are_kept_and_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "annos.csv").write_text("mine")
    _cars(tmp_path / "annos.mat")
    found = typed_listing(refused(tmp_path / "annos.mat", label_column="class").fix)
    assert Counter(p.label for p in found.pictures) == {"1": 5, "77": 3, "102": 4}
    assert (tmp_path / "annos.csv").read_text() == "mine"


def test_lists_of_another_length_are_named(tmp_path: Path) -> None:
    _save_mat(tmp_path / "setid.mat", {"trnid": np.array([[1, 2]]), "tstid": np.array([[3, 4, 5]])})
    edit = str(refused(tmp_path / "setid.mat").fix).partition("pip install scipy && python ")[2]
    edit = f"{sys.executable} {edit.rpartition(' && stepladder')[0]}"
    done = subprocess.run(["bash", "-c", edit], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "each of the 12 pictures in its folder: trnid has 2, tstid has 3" in done.stderr


def test_matlab_7_3_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(
        b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF"
    )
    error = refused(tmp_path / "a.mat")
    assert "a MATLAB 7.3 file (.mat)" in error.what
    assert "pip install mat73 && " in str(error.fix)


@pytest.mark.parametrize("name", ["labels.bin", "labels.csv"])
def test_another_binary_file_is_no_table(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"RDX3\nA\n\x00\x00\x00\x02labels, and more\n" * 9)
    assert "this file is binary" in refused(tmp_path / name).what


@pytest.mark.parametrize("sheets", [["Sheet1"], ["it's A", "B"]])
def test_a_workbook_is_written_by_the_command(tmp_path: Path, sheets: list[str]) -> None:
    workbook = pytest.importorskip("openpyxl").Workbook()
    workbook.active.title = sheets[0]
    for name, label in zip(["name", *NAMES], ["grade", *LABELS], strict=True):
        workbook.active.append([name, "NA", label])
    for other in sheets[1:]:
        workbook.create_sheet(other)
    workbook.save(tmp_path / "a b.xlsx")
    error = refused(tmp_path / "a b.xlsx", label_column="grade")
    assert "pip install pandas openpyxl && python -c" in str(error.fix)
    assert ("2 sheets" in error.what) == (len(sheets) > 1)
    found = typed_listing(error.fix)
    assert Counter(p.label for p in found.pictures) == {"1": 5, "77": 3, "102": 4}


def test_the_sheets_of_a_workbook_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        text = '<sheets><sheet name="A" sheetId="1"/><x:sheet r="2" name="B"/></sheets>'
        archive.writestr("xl/workbook.xml", text)
    error = refused(tmp_path / "a.xlsx")
    assert "with 2 sheets: 'A', 'B'" in error.what
    assert 'sheet_name="A"' in str(error.fix)

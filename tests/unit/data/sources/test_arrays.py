"""Pictures in arrays are named, and the typed command writes them as class folders."""

from __future__ import annotations

import gzip
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.containers.opening import open_pictures
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError, StepladderError

LABELS = np.array([0, 2, 1, 0, 2, 1, 0, 2], dtype=np.uint8)
PIXELS = np.random.default_rng(0).integers(0, 255, size=(8, 9, 7), dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """Return an array in MNIST's format."""
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}i", *array.shape)
        + array.tobytes()
    )


def follow(source: Path) -> dict[str, np.ndarray]:
    """Run the command that the error types; return the pictures by the path that it wrote."""
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=source))
    command, _, prepare = str(caught.value.fix).rpartition(" && stepladder prepare ")
    made = Path(shlex.split(prepare)[0])
    script = command.partition(": python")[2]
    script = f"{sys.executable}{script}"
    subprocess.run(script, shell=True, check=True)
    listing = list_pictures(PrepareConfig(source=made))
    return {one.path: np.asarray(Image.open(made / one.path)) for one in listing.pictures}


def is_right(
    found: dict[str, np.ndarray], pixels: np.ndarray = PIXELS, split: str = "train/"
) -> bool:
    return all(
        np.array_equal(found[f"{split}{label}/{idx}.png"], picture)
        for idx, (label, picture) in enumerate(zip(LABELS, pixels, strict=True))
    )


@pytest.mark.parametrize(
    ("images", "labels"),
    [("train_images", "train_labels"), ("x_train", "y_train"), ("trainX", "trainY")],
)
def test_an_npz_is_named_with_its_arrays_and_converted(
    images: str, labels: str, tmp_path: Path
) -> None:
    path = tmp_path / "my digits.npz"
    test = [name.replace("train", "test") for name in (images, labels)]
    arrays = {images: PIXELS, labels: LABELS, test[0]: PIXELS[:3], test[1]: LABELS[:3]}
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(DataError, match=f"(?s)NumPy arrays .*{images} 8x9x7"):
        open_pictures(PrepareConfig(source=path))
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=path))
    assert "range of values" not in str(caught.value.fix), "bytes stay as they are"
    found = follow(path)
    assert len(found) == 11
    assert is_right(found)


@pytest.mark.parametrize(
    ("pixels", "labels"),
    [
        (PIXELS, LABELS[:, None]),
        (PIXELS, np.eye(3)[LABELS]),
        (PIXELS[..., None], LABELS.astype(np.int64)),
        (PIXELS / 255.0, LABELS),
        (PIXELS.astype(np.float32), LABELS),
        (np.stack([PIXELS] * 3, axis=1), LABELS),
    ],
    ids=["column", "one hot", "gray channel", "shares", "floats", "channels first"],
)
def test_arrays_of_any_usual_shape_and_range_become_the_same_pictures(
    pixels: np.ndarray, labels: np.ndarray, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    found = follow(tmp_path / "a.npz")
    wanted = np.stack([PIXELS] * 3, axis=-1) if pixels.shape[1] == 3 else PIXELS
    near = {path: picture.astype(int) for path, picture in found.items()}
    for number, (label, picture) in enumerate(zip(LABELS, wanted, strict=True)):
        assert np.abs(near[f"{label}/{number}.png"] - picture).max() <= 1


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_one_file", [True, False])
def test_files_of_mnist_are_named_and_converted(
    is_packed: bool, is_one_file: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "mnist"
    folder.mkdir()
    end = ".gz" if is_packed else ""
    for split, num in (("train", 8), ("t10k", 3)):
        for name, array in (("images-idx3", PIXELS), ("labels-idx1", LABELS)):
            data = idx(array[:num])
            (folder / f"{split}-{name}-ubyte{end}").write_bytes(
                gzip.compress(data) if is_packed else data
            )
    found = follow(folder / f"train-images-idx3-ubyte{end}" if is_one_file else folder)
    assert len(found) == 11
    assert is_right(found)


@pytest.mark.parametrize("is_one_file", [True, False])
def test_arrays_of_pictures_and_of_labels_in_npy_files_are_converted(
    is_one_file: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "X_train.npy", PIXELS)
    np.save(folder / "y_train.npy", LABELS)
    found = follow(folder / "X_train.npy" if is_one_file else folder)
    assert is_right(found)


def test_npy_files_in_class_folders_are_converted_beside_the_files(tmp_path: Path) -> None:
    for number, label in enumerate(LABELS):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        np.save(tmp_path / str(label) / f"{number}.npy", PIXELS[number][None] / 255.0)
    with pytest.raises(DataError, match="8 NumPy array file") as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    command = str(caught.value.fix).partition(" && ")[2]
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    listing = list_pictures(PrepareConfig(source=tmp_path))
    assert sorted(one.label for one in listing.pictures) == sorted(map(str, LABELS))
    assert "Convert" not in " ".join(listing.warnings), "beside pictures they may be masks"
    first = np.asarray(Image.open(tmp_path / "0" / "0.npy.png")).astype(int)
    assert np.abs(first - PIXELS[0]).max() <= 1


def converted(root: Path, *bounds: str) -> dict[str, np.ndarray]:
    """Type the command for .npy files in class folders; return the pictures by their stem."""
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=root))
    command = str(caught.value.fix).partition(" && ")[2]
    if bounds:
        *words, last = shlex.split(command)
        assert Path(last) == root, "the bounds are to be added at the end"
        command = shlex.join([*words, last, *bounds])
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True)
    return {
        file.name.partition(".")[0]: np.asarray(Image.open(file)) for file in root.glob("*/*.png")
    }


def save_slices(root: Path, *slices: np.ndarray) -> Path:
    for number, array in enumerate(slices):
        (root / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        np.save(root / "ab"[number % 2] / f"{number}.npy", array)
    return root


@pytest.mark.parametrize("dtype", ["<i2", ">i2", "f4"])
def test_a_value_is_the_same_grey_in_all_slices(dtype: str, tmp_path: Path) -> None:
    root = save_slices(
        tmp_path / "slices",
        np.array([[-100, 0], [50, 400]], dtype),
        np.array([[0, 50], [50, 1900]], dtype),
        np.array([[50, 50], [50, 51]], dtype),
    )
    found = converted(root)
    assert found["0"][0, 1] == found["1"][0, 0] == round(100 * 255 / 2000)
    assert found["0"][1, 0] == found["1"][0, 1] == found["2"][0, 0] == round(150 * 255 / 2000)
    assert found["0"][0, 0] == 0
    assert found["1"][1, 1] == 255


def test_the_message_says_that_all_slices_have_one_range_and_takes_another(tmp_path: Path) -> None:
    root = save_slices(
        tmp_path / "slices", np.array([[-100, 0], [100, 400]]), np.array([[0, 0], [0, 900]])
    )
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=root))
    assert "one range of values is used for all pictures" in str(caught.value.fix)
    assert "write its bounds at the end of the command, such as -1000 400" in str(caught.value.fix)
    found = converted(root, "0", "200")
    assert found["0"].tolist() == [[0, 0], [128, 255]]
    assert found["1"].tolist() == [[0, 0], [0, 255]]


def test_hounsfield_units_get_a_window_that_the_message_names(tmp_path: Path) -> None:
    air, tissue = np.array([[-1000, -300], [40, 3000]], "i2"), np.array([[-300, 40], [40, 40]])
    root = save_slices(tmp_path / "ct", air, tissue)
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=root))
    fix = str(caught.value.fix)
    assert "values such as -1000 to 3000 are probably Hounsfield units" in fix
    assert "-1000 to 400" in fix
    assert fix.endswith(f"{root} -1000 400")
    found = converted(root)
    assert found["0"].tolist() == [[0, 128], [189, 255]]  # 255 * (700, 1040) / 1400
    assert found["1"].tolist() == [[128, 189], [189, 189]]


def test_numbers_below_zero_that_are_no_integers_are_not_taken_for_ct(tmp_path: Path) -> None:
    root = save_slices(tmp_path / "a", np.array([[-800.5, 3.25]]), np.array([[0.5, 2.5]]))
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=root))
    assert "Hounsfield" not in str(caught.value.fix)


@pytest.mark.parametrize("white", [1.0, 255.0])
def test_a_dark_picture_of_floats_stays_dark_beside_a_bright_one(
    white: float, tmp_path: Path
) -> None:
    dark, bright = np.full((2, 2), white / 255), np.full((2, 2), white)
    found = converted(save_slices(tmp_path / "a", dark, bright))
    assert found["0"].tolist() == [[1, 1], [1, 1]]
    assert found["1"].tolist() == [[255, 255], [255, 255]]


def test_values_that_are_not_finite_do_not_change_the_range(tmp_path: Path) -> None:
    root = save_slices(
        tmp_path / "a",
        np.array([[np.nan, 0.0], [1000.0, 0.0]]),
        np.array([[500.0, np.inf], [-np.inf, 0.0]]),
    )
    found = converted(root)
    assert found["0"].tolist() == [[0, 0], [255, 0]]
    assert found["1"].tolist() == [[128, 255], [0, 0]]


def saved(folder: Path, is_npz: bool, **arrays: np.ndarray) -> Path:
    """Save arrays as one .npz, or as a folder with an .npy each."""
    if is_npz:
        np.savez(folder / "set.npz", **arrays)
        return folder / "set.npz"
    (folder / "set").mkdir()
    for name, array in arrays.items():
        np.save(folder / "set" / f"{name}.npy", array)
    return folder / "set"


@pytest.mark.parametrize("is_npz", [True, False])
def test_all_pictures_of_an_array_get_one_range(is_npz: bool, tmp_path: Path) -> None:
    rows = np.array([[[-100, 0]], [[0, 900]], [[0, 0]], [[0, 400]]], "i4")
    pixels = rows.repeat(2, axis=1)
    labels = np.array([0, 1, 0, 1])
    source = saved(tmp_path, is_npz, x_train=pixels, y_train=labels)
    with pytest.raises(DataError, match="one range of values is used for all pictures"):
        list_pictures(PrepareConfig(source=source))
    found = follow(source)
    greys = {path.rpartition("/")[2]: picture.tolist() for path, picture in found.items()}
    zero = round(100 * 255 / 1000)
    assert greys["0.png"] == [[0, zero]] * 2
    assert greys["1.png"] == [[zero, 255]] * 2
    assert greys["2.png"] == [[zero, zero]] * 2


@pytest.mark.parametrize("is_npz", [True, False])
def test_hounsfield_units_of_an_array_get_a_window(is_npz: bool, tmp_path: Path) -> None:
    pixels, labels = np.full((4, 2, 2), -1000, "i2"), np.array([0, 1, 0, 1])
    pixels[:, 0, 1] = [40, 400, 3000, -300]
    source = saved(tmp_path, is_npz, x=pixels, y=labels)
    with pytest.raises(DataError, match="Hounsfield units"):
        list_pictures(PrepareConfig(source=source))
    found = follow(source)
    assert {path[-5]: picture[0, 1] for path, picture in found.items()} == {
        "0": 189,
        "1": 255,
        "2": 255,
        "3": 128,
    }


def test_arrays_without_labels_are_named_without_a_command_that_cannot_work(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", embeddings=PIXELS, names=LABELS)
    with pytest.raises(DataError, match="embeddings 8x9x7, names 8") as caught:
        list_pictures(PrepareConfig(source=tmp_path / "a.npz"))
    assert str(caught.value.fix) == "Save the pictures as PNG files, in one folder for each class."


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=LABELS)
    data = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(StepladderError, match=r"zip archive|NumPy"):
        list_pictures(PrepareConfig(source=tmp_path / "a.npz"))


def test_a_folder_with_an_archive_of_arrays_is_converted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pictures, labels = np.zeros((4, 8, 8, 3), np.uint8), np.arange(4) % 2
    np.savez(tmp_path / "data/set.npz", x=pictures, y=labels)
    with pytest.raises(StepladderError) as caught:
        list_pictures(PrepareConfig(source=tmp_path / "data"))
    assert "set.npz" in str(caught.value)
    assert "stepladder prepare " in str(caught.value.fix)

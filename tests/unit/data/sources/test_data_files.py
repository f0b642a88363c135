"""Files of many pictures are named, and the printed command writes their pictures as files."""

from __future__ import annotations

import gzip
import importlib.util
import pickle
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.sources.listing import Listing
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError

PLANES = np.arange(6 * 3072, dtype=np.int64).reshape(6, 3072).astype(np.uint8)
LABELS = [0, 1, 1, 0, 1, 1]
IN_BATCHES = {("cat", Split.TRAIN): 4, ("dog", Split.TRAIN): 8}
IN_TEST = {("cat", Split.TEST): 2, ("dog", Split.TEST): 4}


def listed(source: Path) -> Listing:
    return list_pictures(PrepareConfig(source=source))


def refused(source: Path) -> DataError:
    with pytest.raises(DataError) as caught:
        listed(source)
    return caught.value


def converted(error: DataError, prepared: str) -> Listing:
    """Run the printed command, and list the folder that it writes."""
    command, _, source = str(error.fix).rpartition(" && stepladder prepare ")
    assert source == prepared
    python, flag, *words = shlex.split(command[command.index("python -c") :])
    assert (python, flag) == ("python", "-c")
    subprocess.run([sys.executable, flag, *words], check=True)
    return listed(Path(*shlex.split(source)))


def counts(listing: Listing) -> dict[tuple[str, Split | None], int]:
    return dict(Counter((one.label, one.split) for one in listing.pictures))


def pickled(path: Path, value: object, *, protocol: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol=protocol))


def cifar10(folder: Path) -> None:
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        pickled(folder / name, {"data": PLANES, "labels": LABELS, "batch_label": "one"})
    pickled(folder / "batches.meta", {"label_names": ["cat", "dog"], "num_vis": 3072})
    (folder / "readme.html").write_text("<html>")


def cifar10_of_bytes(folder: Path) -> None:
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        pickled(folder / name, {b"data": PLANES, b"labels": LABELS}, protocol=4)
    pickled(folder / "batches.meta", {b"label_names": [b"cat", b"dog"]}, protocol=4)


def cifar100(folder: Path) -> None:
    for name in ("train", "test"):
        labels = {"fine_labels": LABELS, "coarse_labels": [0] * 6}
        pickled(folder / name, {"data": PLANES, **labels})
    names = {"fine_label_names": ["cat", "dog"], "coarse_label_names": ["animals"]}
    pickled(folder / "meta", names)
    (folder / "file.txt~").touch()


def cifar10_binary(folder: Path) -> None:
    folder.mkdir()
    records = np.concatenate([np.array(LABELS, np.uint8)[:, None], PLANES], axis=1)
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        records.tofile(folder / f"{name}.bin")
    (folder / "batches.meta.txt").write_text("cat\ndog\n\n")


def cifar100_binary(folder: Path) -> None:
    folder.mkdir()
    labels = np.array([[9, label] for label in LABELS], np.uint8)
    for name in ("train", "test"):
        np.concatenate([labels, PLANES], axis=1).tofile(folder / f"{name}.bin")
    (folder / "fine_label_names.txt").write_text("cat\ndog\n")


def stl10(folder: Path) -> None:
    folder.mkdir()
    for name in ("train", "test"):
        whole = np.tile(PLANES.reshape(6, 3, 32, 32), (1, 1, 3, 3))  # as (n, c, w, h)
        whole.transpose(0, 1, 3, 2).tofile(folder / f"{name}_X.bin")
        (np.array(LABELS, np.uint8) + 1).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("cat\ndog\n")
    (folder / "fold_indices.txt").write_text("0 1 2\n")


BATCHES = {**IN_BATCHES, **IN_TEST}
ONE_EACH = {("cat", Split.TRAIN): 2, ("dog", Split.TRAIN): 4, **IN_TEST}


@pytest.mark.parametrize(
    ("write", "what", "expected"),
    [
        (cifar10, "pickles of CIFAR", BATCHES),
        (cifar10_of_bytes, "pickles of CIFAR", BATCHES),
        (cifar100, "pickles of CIFAR", ONE_EACH),
        (cifar10_binary, "records of CIFAR's binary version", BATCHES),
        (cifar100_binary, "records of CIFAR's binary version", ONE_EACH),
        (stl10, "arrays of STL-10", ONE_EACH),
    ],
)
@pytest.mark.parametrize("depth", ["", "/downloads"])
def test_files_of_a_known_data_set_are_converted_by_the_printed_command(
    write: Callable[[Path], None],
    what: str,
    expected: dict[tuple[str, Split], int],
    depth: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    folder = Path(f"all{depth}/my set")
    folder.parent.mkdir(exist_ok=True)
    write(folder)
    error = refused(Path("all") if depth else folder)
    assert error.what == f"the folder has no picture files, but {what}, which cannot be read"
    assert ("only if you trust" in str(error.fix)) == ("pickle" in what)
    listing = converted(error, f"'{folder}-pictures'")
    assert counts(listing) == expected
    first = next(one for one in listing.pictures if one.path.endswith("-0.png"))
    with Image.open(listing.file(first)) as picture:
        pixels = np.asarray(picture)[:32, :32]
    assert (pixels == PLANES[0].reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_batches_without_names_and_without_a_test_set_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pickled(Path("imagenet32/train_data_batch_1"), {"data": PLANES, "labels": LABELS})
    listing = converted(refused(Path("imagenet32")), "imagenet32-pictures")
    assert Counter(one.label for one in listing.pictures) == {"0": 2, "1": 4}


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs scipy")
def test_svhn_is_converted_by_the_printed_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scipy.io import savemat

    monkeypatch.chdir(tmp_path)
    Path("svhn").mkdir()
    pixels = PLANES.reshape(6, 32, 32, 3).transpose(1, 2, 3, 0)
    for name in ("train", "test"):
        digits = np.array([[10], [1], [1], [10], [1], [1]])
        savemat(f"svhn/{name}_32x32.mat", {"X": pixels, "y": digits})
    error = refused(Path("svhn"))
    assert "Write the pictures as PNG files: pip install scipy && python -c" in str(error.fix)
    listing = converted(error, "svhn-pictures")
    assert counts(listing)["0", Split.TRAIN] == 2
    assert counts(listing)["1", Split.TEST] == 4


@pytest.mark.parametrize(
    ("name", "kind", "how"),
    [
        ("photos.pkl", "Python pickle", "runs code"),
        ("photos", "Python pickle", "runs code"),
        ("camelyon_x.h5", "HDF5", "pip install h5py && python -c"),
        ("imagelabels.mat", "MATLAB", "pip install scipy && python -c"),
        ("processed.pt", "PyTorch", "weights_only=True"),
        ("train.tfrecord", "TFRecord", "TensorFlow"),
        ("train-00000-of-01024", "TFRecord", "TensorFlow"),
        ("data.mdb", "LMDB", "lmdb"),
        ("train.rec", "RecordIO", "mxnet"),
    ],
)
@pytest.mark.parametrize("depth", ["", "one/two/"])
def test_files_of_many_pictures_are_named(
    name: str, kind: str, how: str, depth: str, tmp_path: Path
) -> None:
    pickled(tmp_path / f"{depth}{name}", [1, 2])
    error = refused(tmp_path)
    assert f"no picture files, but {kind} files" in error.what
    assert name in str(error.why)
    assert how in str(error.fix)
    for label in "ab":
        path = tmp_path / "pictures" / label / "1.jpg"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
        pickled(path.with_name(name), [1, 2])
    listing = listed(tmp_path / "pictures")
    assert len(listing.pictures) == 2
    assert f"2 {kind} file(s), which cannot be read" in listing.warnings[0]


def test_idx_files_in_folders_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("downloads/raw").mkdir(parents=True)
    heads = {"images-idx3": (3, 6, 32, 32), "labels-idx1": (1, 6)}
    bodies = {"images-idx3": PLANES[:, :1024], "labels-idx1": np.array(LABELS, np.uint8)}
    for split in ("train", "t10k"):
        for what, (num_dims, *sizes) in heads.items():
            data = bytes((0, 0, 8, num_dims)) + np.array(sizes, ">i4").tobytes()
            packed = gzip.compress(data + bodies[what].tobytes())
            Path(f"downloads/raw/{split}-{what}-ubyte.gz").write_bytes(packed)
    command, _, source = str(refused(Path("downloads")).fix).rpartition(" && stepladder prepare ")
    subprocess.run([sys.executable, *shlex.split(command[command.index("-c") :])], check=True)
    listing = listed(Path(*shlex.split(source)))
    assert counts(listing) == {
        (label, split): num
        for split in (Split.TRAIN, Split.TEST)
        for label, num in (("0", 2), ("1", 4))
    }


def test_a_pickle_is_never_opened_as_a_table(tmp_path: Path) -> None:
    cifar10(tmp_path / "cifar")
    assert "pickles of CIFAR" in str(refused(tmp_path / "cifar" / "data_batch_1"))
    pickled(tmp_path / "one" / "labels.p", [1])
    assert "Python pickle" in str(refused(tmp_path / "one" / "labels.p"))


def test_files_without_an_extension_are_pictures_by_their_content(tmp_path: Path) -> None:
    for label, shade in (("a", 10), ("b", 90)):
        (tmp_path / label).mkdir()
        for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"):
            Image.new("RGB", (9, 9), (shade, 0, 0)).save(tmp_path / label / kind, format=kind)
        (tmp_path / label / "checksums").write_bytes(bytes(range(128, 256)))
        (tmp_path / label / "README").write_text("Pictures of a shop.")
        (tmp_path / label / "_SUCCESS").touch()
    listing = listed(tmp_path)
    assert len(listing.pictures) == 14
    (warning,) = listing.warnings
    for told in (
        "2 file(s) without an extension, no pictures ('a/checksums', …)",
        "2 file(s) of text ('a/README', …)",
        "2 empty file(s) without an extension ('a/_SUCCESS', …)",
    ):
        assert told in warning

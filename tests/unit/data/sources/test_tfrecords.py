"""TFRecord files are named with their keys, and the command writes their pictures as files."""

from __future__ import annotations

import gzip
import io
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.sources.pictures import list_pictures
from stepladder.errors import DataError

Value = bytes | int


def varint(value: int) -> bytes:
    some = bytearray()
    while value > 127:
        some.append(value & 127 | 128)
        value >>= 7
    return bytes([*some, value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(values: dict[str, Value]) -> bytes:
    entries = b""
    for key, value in values.items():
        if isinstance(value, bytes):
            feature = message(1, message(1, value))
        else:
            feature = message(3, message(1, varint(value % (1 << 64))))
        entries += message(1, message(1, key.encode()) + message(2, feature))
    return message(1, entries)


def write(path: Path, *examples: dict[str, Value]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = (gzip.compress if path.name.endswith(".gz") else bytes)(
        b"".join(
            len(one).to_bytes(8, "little") + bytes(4) + one + bytes(4)
            for one in map(example, examples)
        )
    )
    path.write_bytes(packed)


def picture(kind: str = "JPEG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "red").save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    "name", ["00-16.tfrec", "a.tfrecord", "a.tfrecords", "flowers-00000-of-00001", "a.tfrecord.gz"]
)
@pytest.mark.parametrize(
    ("image", "label", "labels", "classes"),
    [
        ("image", "class", (3, 141), ("3", "141")),
        ("image/encoded", "image/class/text", (b"owl", b"sea/gull"), ("owl", "sea_gull")),
    ],
)
def test_the_command_writes_the_pictures(
    tmp_path: Path,
    name: str,
    image: str,
    label: str,
    labels: tuple[Value, Value],
    classes: tuple[str, str],
) -> None:
    root = tmp_path / "my data"
    for split, num in (("train", 3), ("val", 2)):
        some: list[dict[str, Value]] = [
            {"id": b"x", image: picture(kind), label: one}
            for kind in ("JPEG", "PNG")
            for one in labels
        ]
        write(root / split / name, *some * num)
    write(root / "test" / name, {"id": b"x", image: picture()}, {image: picture(), "class": -1})
    with pytest.raises(DataError, match="TFRecord files") as caught:
        list_pictures(PrepareConfig(source=root))
    command, _, out = str(caught.value.fix).partition(": ")[2].rpartition(" && stepladder prepare ")
    python, *words = shlex.split(command)
    assert python == "python"
    subprocess.run([sys.executable, *words], check=True)
    (place,) = shlex.split(out)
    listing = list_pictures(PrepareConfig(source=Path(place)))
    assert Counter((one.split, one.label) for one in listing.pictures) == {
        (split, one): num for one in classes for split, num in (("train", 6), ("val", 4))
    }
    for one in listing.pictures:
        with Image.open(listing.file(one)) as opened:
            assert opened.size == (40, 30)


def test_unknown_keys_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.tfrec", {"pixels": b"\0" * 99, "digit": 4})
    with pytest.raises(DataError) as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert "digit, pixels. They can be read with the package tfrecord" in str(caught.value.fix)


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\1\0\0\0\0\0\0\0", bytes(range(200))])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tfrec").write_bytes(content)
    with pytest.raises(DataError, match="TFRecord files"):
        list_pictures(PrepareConfig(source=tmp_path))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("train.rec", "RecordIO"), ("train.beton", "FFCV"), ("data.mdb", "LMDB"), ("a.h5", "HDF5")],
)
def test_other_formats_are_named(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x" * 100)
    with pytest.raises(DataError, match=f"{kind} files, which cannot be read") as caught:
        list_pictures(PrepareConfig(source=tmp_path))
    assert "one folder for each class" in str(caught.value.fix)

"""TIFFs with many bands are refused once, with a command that makes RGB pictures of them."""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.quarantine import Bad, check_share
from stepladder.errors import DataError

TIFFFILE = """
import struct
import numpy

def imwrite(path, samples, photometric="minisblack"):
    height, width, bands = samples.shape
    size = samples.dtype.itemsize
    shorts = lambda values: struct.pack(f"<{len(values)}H", *values)
    entries = {256: width, 257: height, 259: 1, 262: 2 if photometric == "rgb" else 1,
               273: 4096, 277: bands, 278: height, 279: samples.nbytes, 284: 1}
    lists = {258: [8 * size] * bands, 339: [3 if samples.dtype.kind == "f" else 1] * bands}
    tags, extra, at = b"", b"", 1024
    for tag in sorted({**entries, **lists}):
        if tag in entries:
            tags += struct.pack("<HHII", tag, 4, 1, entries[tag])
        else:
            tags += struct.pack("<HHII", tag, 3, bands, at + len(extra))
            extra += shorts(lists[tag])
    head = b"II*\\0" + struct.pack("<IH", 8, len(entries) + 2) + tags + bytes(4)
    head = head.ljust(1024, b"\\0") + extra
    with open(path, "wb") as file:
        file.write(head.ljust(4096, b"\\0") + numpy.ascontiguousarray(samples).tobytes())

def imread(path):
    with open(path, "rb") as file:
        data = file.read()
    (count,) = struct.unpack_from("<H", data, 8)
    tags = dict(struct.unpack_from("<H6xI", data, 10 + 12 * i) for i in range(count))
    size = tags[279] // (tags[256] * tags[257] * tags[277])
    return numpy.frombuffer(data, "f4" if size == 4 else f"u{size}", offset=4096).reshape(
        tags[257], tags[256], tags[277])
"""
"""A stand-in for the package of this name: uncompressed TIFFs."""
tifffile: dict[str, object] = {}
exec(TIFFFILE, tifffile)


def save(path: Path, samples: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile["imwrite"](path, samples)  # type: ignore[operator]


def scenes(tmp_path: Path, num_bands: int, dtype: str) -> Path:
    rng = np.random.default_rng(0)
    for row in range(12):
        samples = rng.integers(0, 3000, (16, 20, num_bands))
        scaled = samples * {"float32": 1 / 3000, "uint8": 0.08, "uint16": 1}[dtype]
        save(tmp_path / "my scenes" / "ab"[row % 2] / f"{row}.tif", scaled.astype(dtype))
    (tmp_path / "my scenes" / "readme.txt").write_text("13 bands")
    return tmp_path / "my scenes"


@pytest.mark.parametrize(
    ("num_bands", "dtype", "bands"),
    [
        (13, "uint16", [3, 2, 1]),
        (13, "float32", [3, 2, 1]),
        (10, "uint8", [3, 2, 1]),
        (4, "uint16", [2, 1, 0]),
        (3, "float32", [0, 1, 2]),
    ],
)
def test_many_bands_are_told_once_and_the_command_makes_pictures(
    num_bands: int,
    dtype: str,
    bands: list[int],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source = scenes(tmp_path, num_bands, dtype)
    config = PrepareConfig(source=source, out=tmp_path / "store", size=32, workers=1)
    with pytest.raises(DataError) as caught:
        prepare(config)
    assert capfd.readouterr() == ("", "")
    error = caught.value
    assert error.why == f"12 pictures are TIFFs of {num_bands} bands, such as 'a/0.tif'"
    assert error.fix is not None
    assert "Replace or remove" not in error.fix
    installing, python, preparing = error.fix[error.fix.index("pip install") :].split(" && ")
    assert installing == "pip install tifffile imagecodecs"
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "tifffile.py").write_text(TIFFFILE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "packages")}
    words = [sys.executable, *shlex.split(python)[1:]]
    subprocess.run(words, check=True, env=environment)
    copy = Path(shlex.split(preparing)[-1])
    assert (copy / "readme.txt").is_file()
    wanted = tifffile["imread"](source / "a" / "0.tif")[..., bands]  # type: ignore[operator]
    found = tifffile["imread"](copy / "a" / "0.tif")  # type: ignore[operator]
    if dtype == "float32":
        wanted = (wanted * 65535).astype("uint16")
    assert np.array_equal(found, wanted)
    result = prepare(PrepareConfig(source=copy, out=tmp_path / "store", size=32, workers=1))
    assert sum(map(sum, result.manifest.class_counts.values())) == 12


def test_many_bands_are_told_from_damage_in_a_large_source(tmp_path: Path) -> None:
    """A run on many files ends after the first hundred."""
    bad = [Bad(f"a/{idx}.tif", "is a TIFF of 13 bands") for idx in range(100)]
    with pytest.raises(DataError) as caught:
        check_share(bad, num_pictures=5000, max_bad=0.01, source=tmp_path, are_all_known=False)
    assert caught.value.fix is not None
    assert "tifffile" in caught.value.fix
    assert "--max-bad 1" in caught.value.fix
    table = tmp_path / "labels.csv"
    table.touch()
    with pytest.raises(DataError) as caught:
        check_share(
            [*bad, Bad("b", "is empty (0 bytes)")], num_pictures=200, max_bad=0, source=table
        )
    assert caught.value.why == (
        "100 pictures are TIFFs of 13 bands, such as 'a/0.tif'; 'b': is empty (0 bytes)"
    )
    assert "tifffile.imread(old)[..., [3,2,1]]" in (caught.value.fix or "")


def test_a_damaged_tiff_is_no_picture_of_many_bands(tmp_path: Path) -> None:
    path = tmp_path / "photos" / "a" / "0.tif"
    save(path, np.zeros((16, 20, 13), dtype=np.uint16))
    save(path.with_name("1.tif"), np.zeros((16, 20, 13), dtype=np.uint16))
    path.write_bytes(path.read_bytes()[:100] + struct.pack("<I", 0xFFFFFFFF) * 10)
    save(tmp_path / "photos" / "b" / "2.tif", np.zeros((16, 20, 13), dtype=np.uint16))
    with pytest.raises(DataError) as caught:
        prepare(PrepareConfig(source=tmp_path / "photos", out=tmp_path / "store", workers=1))
    assert "2 pictures are TIFFs of 13 bands" in (caught.value.why or "")
    assert "'a/0.tif': cannot be decoded as TIFF" in (caught.value.why or "")

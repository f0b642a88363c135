"""NPY files are pictures like JPEG and PNG: raw pixels, whose headers are not trusted."""

from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest

from stepladder.config.choices import Fit
from stepladder.data.decoding.decode import decode_picture
from stepladder.data.decoding.formats import NPY_MAGIC, BadPictureError, read_npy_header, read_size
from stepladder.data.sources.containers.batch_pictures import from_array_file, from_flat, npy_bytes


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("shape", [(7, 9), (7, 9, 1), (7, 9, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_that_numpy_saved_are_pictures(shape: tuple[int, ...], order: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    data = saved(np.asarray(pixels, order=order))  # type: ignore[call-overload]
    assert read_size(data, "NPY") == (7, 9)
    wanted = np.broadcast_to(pixels.reshape(7, 9, -1), (7, 9, 3))
    found = decode_picture(data, size=9, fit=Fit.PAD)
    np.testing.assert_array_equal(found[1:8], wanted)


def test_what_we_write_is_what_numpy_writes() -> None:
    for shape in ((30, 36, 3), (1, 1), (4096, 5)):
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        assert npy_bytes(pixels) == saved(pixels)


def with_header(text: str, body: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return NPY_MAGIC + b"\x01\x00" + size.to_bytes(2, "little") + text.encode() + body


FINE = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2), }"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (NPY_MAGIC, "its header is incomplete"),
        (with_header(FINE, b"1234", length=60_000), "its header is incomplete"),
        (with_header("(" * 500), "invalid NPY header"),
        (with_header("__import__('os').system('true')"), "invalid NPY header"),
        (with_header("{'descr': '|u1'}"), "invalid NPY header"),
        (with_header(FINE.replace("(2, 2)", "(2,)"), b"12"), "shape"),
        (with_header(FINE.replace("(2, 2)", "(2, 2, 7)"), b"1" * 28), "shape"),
        (with_header(FINE.replace("(2, 2)", "(True, 2)"), b"12"), "shape"),
        (with_header(FINE.replace("(2, 2)", "(0, 2)")), "size of 2x0"),
        (with_header(FINE.replace("(2, 2)", "(-2, -2)"), b"1234"), "size of -2x-2"),
        (with_header(FINE, b"123"), "with a wrong length"),
        (with_header(FINE.replace("(2, 2)", "(99999, 99999)"), b"1234"), "with a wrong length"),
        (saved(np.zeros((2, 2), np.uint16)), "not uint8"),
        (saved(np.array([{}, 1], dtype=object)), "not uint8"),
        (saved(np.zeros((9, 9), np.uint8)), "more than the limit of 64"),
        (pickle.dumps({"a": list(range(100))}), "is a Python pickle"),
    ],
)
def test_hostile_arrays_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(BadPictureError, match=words):
        decode_picture(data, size=8, fit=Fit.PAD, max_pixels=64)


def test_a_header_of_version_two_is_read() -> None:
    header = FINE.ljust(116).encode()
    data = NPY_MAGIC + b"\x02\x00" + len(header).to_bytes(4, "little") + header + b"1234"
    assert read_npy_header(data).start == 128


def zipped(*arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, *arrays)
    return file.getvalue()


def test_a_zip_unpacks_to_no_more_than_a_picture() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8)
    assert from_array_file(zipped(pixels), max_pixels=400) == saved(pixels)
    bomb = zipped(np.zeros((20_000, 1000, 3), np.uint8))
    assert len(bomb) < 100_000
    with pytest.raises(BadPictureError, match="unpacks to more than"):
        from_array_file(bomb, max_pixels=10_000)


def test_a_zip_with_false_sizes_is_refused() -> None:
    data = bytearray(zipped(np.zeros((20_000, 1000, 3), np.uint8)))
    entry = data.rindex(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = (100).to_bytes(4, "little")  # the size that it claims
    with pytest.raises(BadPictureError):
        from_array_file(bytes(data), max_pixels=10_000)


@pytest.mark.parametrize("damage", [b"PK\x03\x04", b"PK\x03\x04" + bytes(100)])
def test_a_damaged_zip_is_refused(damage: bytes) -> None:
    with pytest.raises(BadPictureError, match="cannot be decoded"):
        from_array_file(damage, max_pixels=100)


def test_a_zip_of_several_arrays_is_refused() -> None:
    two = zipped(np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8))
    with pytest.raises(BadPictureError, match="with 2 arrays instead of one"):
        from_array_file(two, max_pixels=100)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(BadPictureError):
        from_array_file(file.getvalue(), max_pixels=100)


@pytest.mark.parametrize(
    ("num_values", "sides"),
    [(5, (None, None)), (12, (5, 1)), (12, (0, 3)), (12, (-2, -2)), (8, (2, 2)), (12, (4, None))],
)
def test_values_that_fit_no_sides_are_refused(
    num_values: int, sides: tuple[int | None, int | None]
) -> None:
    with pytest.raises(BadPictureError):
        from_flat(bytes(num_values), height=sides[0], width=sides[1])

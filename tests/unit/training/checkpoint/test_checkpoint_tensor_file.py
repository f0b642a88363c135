"""Tensor files against the safetensors package, and against files made to harm."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from stepladder.errors import DataError
from stepladder.training.checkpoint.tensor_file import DTYPES, read_tensors, serialize


def write(tensors: dict[str, Tensor]) -> bytes:
    return b"".join(bytes(chunk) for chunk in serialize(tensors))


def read(data: bytes) -> dict[str, Tensor]:
    tensors, sha256 = read_tensors(io.BytesIO(data), size=len(data), where="file")
    assert sha256 == hashlib.sha256(data).hexdigest()
    return tensors


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: list[Any], start: Any, end: Any, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert (
            found[name].reshape(-1).view(torch.uint8).tolist()
            == tensor.clone(memory_format=torch.contiguous_format)
            .reshape(-1)
            .view(torch.uint8)
            .tolist()
        ), name


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES.keys())
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (3, 5)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    num_bytes = dtype.itemsize * int(torch.tensor(shape).prod() if shape else 1)
    raw = torch.arange(num_bytes, dtype=torch.int64).mul_(37)
    raw = (raw % 2 if dtype == torch.bool else raw).to(torch.uint8)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).copy_(raw)
    assert_equal(read(write({"x": tensor})), {"x": tensor})


def test_the_safetensors_package_reads_what_we_write_and_writes_what_we_read() -> None:
    tensors = {
        "b": torch.randn(3, 4),
        "a": torch.tensor([True, False]),
        "c": torch.randn(2).to(torch.bfloat16),
        "d": torch.tensor(7, dtype=torch.int64),
        "e": torch.empty(0, 3),
    }
    assert_equal(safetensors.torch.load(write(tensors)), tensors)
    assert_equal(read(safetensors.torch.save(tensors)), tensors)
    assert_equal(read(safetensors.torch.save(tensors, metadata={"format": "pt"})), tensors)


def test_nan_payloads_and_infinities_keep_their_bits() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x800000, -0x80000000], dtype=torch.int32)
    assert read(write({"x": bits.view(torch.float32)}))["x"].view(torch.int32).equal(bits)


def test_views_shared_memory_and_grad_are_written_in_full() -> None:
    base = torch.arange(12.0, requires_grad=True)
    image = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    tensors = {
        "base": base,
        "same": base,
        "every_third": base[::3],
        "transposed": base.reshape(3, 4).t(),
        "one_with_a_stride": base[::3][1:2],
        "none_with_a_stride": base[::3][:0],
        "expanded": base[:1].expand(5),
        "channels_last": image,
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    found = read(write(tensors))
    assert_equal(found, {name: t.detach().resolve_conj() for name, t in tensors.items()})


def test_bytes_do_not_depend_on_the_order_in_which_tensors_are_given() -> None:
    tensors = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.uint8), "c": torch.ones(1)}
    assert write(tensors) == write(dict(reversed(tensors.items())))


def test_tensors_lie_on_multiples_of_their_element_size() -> None:
    data = write({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1, dtype=torch.float64)})
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["b"]["data_offsets"] == [0, 8]


def test_a_header_as_long_as_a_pickle_begins_is_no_pickle() -> None:
    """0x0280 in little endian is the start of a pickle of protocol 2."""
    tensors = {"x" * length: torch.ones(1) for length in range(300, 600)}
    starts = {write({name: tensor})[:2] for name, tensor in tensors.items()}
    assert b"\x80\x02" in starts
    for name, tensor in tensors.items():
        read(write({name: tensor}))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),
        torch.empty(2, device="meta"),
        torch.zeros(1, dtype=torch.complex128),
    ],
    ids=["sparse", "meta", "complex128"],
)
def test_what_the_format_cannot_hold_is_refused_by_name(tensor: Tensor) -> None:
    with pytest.raises(DataError, match="'weight'"):
        write({"weight": tensor})


class Harm:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_is_named_and_never_opened(protocol: int) -> None:
    data = pickle.dumps(Harm(), protocol=protocol)
    with pytest.raises(DataError, match="Python pickle"):
        read(data + b"\0" * 8)


def test_a_torch_file_is_named_and_never_opened() -> None:
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    with pytest.raises(DataError, match="Python pickle"):
        read(file.getvalue())


TINY = json.dumps(entry([1], 0, 1)).encode()
HOSTILE = {
    "empty": b"",
    "short": b"\x08\0\0",
    "header of 2**40 bytes": struct.pack("<Q", 1 << 40) + b"{}",
    "header beyond the file": struct.pack("<Q", 100) + b"{}",
    "not json": file_of(b"{]"),
    "not utf-8": file_of(b'{"\xff\xfe": 1}'),
    "a list": file_of([1, 2]),
    "deep": file_of(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "repeated name": file_of(
        b'{"a":%b,"a":%b}' % ((json.dumps(entry([1], 0, 1)).encode(),) * 2), b"x"
    ),
    "overlap": file_of({"a": entry([2], 0, 2), "b": entry([2], 1, 3)}, b"abc"),
    "same place": file_of({"a": entry([2], 0, 2), "b": entry([2], 0, 2)}, b"ab"),
    "gap": file_of({"a": entry([1], 0, 1), "b": entry([1], 2, 3)}, b"abc"),
    "trailing bytes": file_of({"a": entry([1], 0, 1)}, b"ab"),
    "too few bytes": file_of({"a": entry([2], 0, 2)}, b"a"),
    "false shape": file_of({"a": entry([1 << 40], 0, 1)}, b"a"),
    "negative": file_of({"a": entry([-1, -1], 0, 1)}, b"a"),
    "backwards": file_of({"a": entry([0], 1, 0)}, b""),
    "bool as a size": file_of({"a": entry([True], 0, 1)}, b"a"),
    "float as a size": file_of({"a": entry([1.0], 0, 1)}, b"a"),
    "text as a shape": file_of({"a": entry("1", 0, 1)}, b"a"),  # type: ignore[arg-type]
    "unknown dtype": file_of({"a": entry([1], 0, 1, "PICKLE")}, b"a"),
    "no dtype": file_of({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"a"),
    "entry of text": file_of({"a": "b"}),
    "empty but endless": file_of({"a": entry([0, 1 << 62, 1 << 62], 0, 0)}),
    "a thousand dims": file_of({"a": entry([1] * 1000, 0, 1)}, b"a"),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_cleanly(data: bytes) -> None:
    with pytest.raises(DataError):
        read(data)

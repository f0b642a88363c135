"""Tensor files that we write, read with the safetensors package."""

from __future__ import annotations

import json
import struct

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from stepladder.errors import DataError
from stepladder.training.checkpoint.checkpoint_files import serialize

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.bool),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
]


def write(tensors: dict[str, Tensor]) -> bytes:
    return b"".join(bytes(chunk) for chunk in serialize(tensors))


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (3, 5)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    num_bytes = dtype.itemsize * int(torch.tensor(shape).prod() if shape else 1)
    raw = torch.arange(num_bytes, dtype=torch.int64).mul_(37)
    raw = (raw % 2 if dtype == torch.bool else raw).to(torch.uint8)
    tensor = torch.empty(shape, dtype=dtype)
    tensor.reshape(-1).view(torch.uint8).copy_(raw)
    assert_equal(load(write({"x": tensor})), {"x": tensor})


def test_the_bytes_of_a_model_and_its_optimizer_are_those_that_the_package_writes() -> None:
    tensors = {
        "b": torch.randn(3, 4),
        "a": torch.tensor([True, False]),
        "c": torch.randn(2).to(torch.bfloat16),
        "d": torch.tensor(7, dtype=torch.int64),
        "e": torch.empty(0, 3),
    }
    assert write(tensors) == save(tensors)


def test_nan_payloads_and_infinities_keep_their_bits() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x800000, -0x80000000], dtype=torch.int32)
    assert load(write({"x": bits.view(torch.float32)}))["x"].view(torch.int32).equal(bits)


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
    found = load(write(tensors))
    assert_equal(found, {name: t.detach().resolve_conj() for name, t in tensors.items()})


def test_bytes_do_not_depend_on_the_order_in_which_tensors_are_given() -> None:
    tensors = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.uint8), "c": torch.ones(1)}
    assert write(tensors) == write(dict(reversed(tensors.items())))


def test_tensors_are_on_multiples_of_their_element_size() -> None:
    data = write({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(1, dtype=torch.float64)})
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["b"]["data_offsets"] == [0, 8]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.zeros(1, dtype=torch.complex128),
    ],
    ids=["sparse", "meta", "complex128"],
)
def test_what_the_format_cannot_hold_is_refused_by_name(tensor: Tensor) -> None:
    with pytest.raises(DataError, match="'weight'"):
        write({"weight": tensor})

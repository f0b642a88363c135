"""Tensors as safetensors bytes: the same tensors give the same bytes, and nothing is executed.

The format is that of the `safetensors` package, which opens these files. It is written and read
here because a checkpoint wants what the package does not do: hash while writing and reading, no
second copy of the tensors in memory, and refusal of repeated names.

Layout: 8 bytes, little endian, length of the header; the header, JSON, padded with spaces to a
multiple of 8; the tensors' bytes, without gaps, widest element first and then by name.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, BinaryIO, Final

import torch
from torch import Tensor

from stepladder.errors import DataError

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER_BYTES: Final = 100_000_000  # the limit of the safetensors package
_MAX_DIMS: Final = 64
_PICKLE_STARTS: Final = (*(bytes((0x80, protocol)) for protocol in range(2, 6)), b"PK\x03\x04")


def serialize(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file, one tensor at a time.

    A tensor that shares memory with another, or is a view, is written in full.

    Raises:
        DataError: if a tensor has a number format or a layout that the format cannot hold.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in ordered:
        _require_storable(name, tensor)
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        yield _bytes_of(plain)


def read_tensors(file: BinaryIO, *, size: int, where: str) -> tuple[dict[str, Tensor], str]:
    """Read a safetensors file straight into new tensors, hashing on the way.

    Nothing is allocated that the file's size does not account for.

    Args:
        file: opened at its start.
        size: bytes in the file.
        where: named in errors.

    Returns:
        The tensors by name, and the sha256 of the bytes read.

    Raises:
        DataError: if the file is a pickle, cut, or not exactly one sound safetensors file.
    """
    digest = hashlib.sha256()
    start = file.read(8)
    digest.update(start)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
        raise _not_safetensors(start, where)
    text = file.read(length)
    digest.update(text)
    tensors = {}
    for name, dtype, shape in _read_header(text, num_bytes=size - 8 - length, where=where):
        tensor = tensors[name] = _allocate(dtype, shape, where=where)
        data = _bytes_of(tensor)
        if file.readinto(data) != len(data):  # type: ignore[attr-defined]  # BinaryIO omits it
            raise DataError("the file ends early", where=where)
        digest.update(data)
    return tensors, digest.hexdigest()


def _not_safetensors(start: bytes, where: str) -> DataError:
    if start.startswith(_PICKLE_STARTS):
        why = "Opening a pickle can run code, so it is never opened."
        return DataError("this is a Python pickle, not safetensors", where=where, why=why)
    return DataError("not a safetensors file: its header has no possible length", where=where)


def _require_storable(name: str, tensor: Tensor) -> None:
    is_plain = tensor.layout == torch.strided and not tensor.is_meta
    if tensor.dtype not in _NAMES or not is_plain or name == "__metadata__":
        kind = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise DataError(
            f"the tensor {name!r} ({kind}) cannot be kept in a checkpoint",
            fix="Where it need not be kept: register_buffer(name, tensor, persistent=False).",
        )


def _bytes_of(tensor: Tensor) -> memoryview:
    # contiguous() and reshape() leave any stride on a tensor of one element or none; view does not
    flat = tensor.reshape(-1).as_strided((tensor.numel(),), (1,))
    array: Any = flat.view(torch.uint8).numpy()
    return memoryview(array)


def _allocate(dtype: torch.dtype, shape: list[int], *, where: str) -> Tensor:
    try:
        return torch.empty(shape, dtype=dtype)
    except RuntimeError as error:  # an empty tensor with one dimension beyond 64 bits
        raise DataError(f"no tensor can have the shape {shape}", where=where) from error


def _read_header(
    text: bytes, *, num_bytes: int, where: str
) -> list[tuple[str, torch.dtype, list[int]]]:
    """List (name, dtype, shape) in the order of their bytes; together they cover all of them."""
    try:
        header = json.loads(text, object_pairs_hook=_refuse_repeats)
    except (ValueError, RecursionError) as error:
        raise DataError(f"its header is not valid ({error})", where=where) from None
    if not isinstance(header, dict):
        raise DataError("its header is not an object", where=where)
    header.pop("__metadata__", None)
    entries = sorted(
        (_read_entry(name, entry, where) for name, entry in header.items()),
        key=lambda entry: entry[:2],
    )
    position = 0
    for start, end, name, _, _ in entries:
        if start != position:
            raise DataError(f"its tensors overlap or leave a gap at {name!r}", where=where)
        position = end
    if position != num_bytes:
        found = f"{num_bytes} bytes of tensors where its header says {position}"
        raise DataError(f"it holds {found}", where=where)
    return [(name, dtype, shape) for _, _, name, dtype, shape in entries]


def _read_entry(name: str, entry: Any, where: str) -> tuple[int, int, str, torch.dtype, list[int]]:
    try:
        dtype, shape, (start, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, end]
        is_sound = (
            isinstance(shape, list)
            and len(shape) <= _MAX_DIMS
            and all(type(number) is int and number >= 0 for number in numbers)
            and prod(shape) * dtype.itemsize == end - start
        )
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise DataError(f"its header describes no possible tensor at {name!r}", where=where)
    return start, end, name, dtype, shape


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name is given twice")
    return names

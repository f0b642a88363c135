"""Write tensors as a safetensors file: the same tensors give the same bytes.

Written here and read by the `safetensors` package: its writer wants all tensors contiguous in
memory at once, a second copy where they are channels-last or on a GPU, and cannot hash without
writing.

Layout: 8 bytes, little endian, length of the header; the header, JSON, padded with spaces to a
multiple of 8; the tensors' bytes, without gaps, widest element first and then by name.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError, TensorSpec
from torch import Tensor

from stepladder.errors import DataError


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
        dtype = _dtype(name, tensor)
        start, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in ordered:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        # contiguous() leaves any stride on a tensor of one element or none; view accepts one alone
        flat = plain.reshape(-1).as_strided((plain.numel(),), (1,))
        array: Any = flat.view(torch.uint8).numpy()
        yield memoryview(array)


def _dtype(name: str, tensor: Tensor) -> str:
    """Return the format's name of a tensor's number format."""
    if tensor.layout == torch.strided and not tensor.is_meta and name != "__metadata__":
        kind = str(tensor.dtype).removeprefix("torch.")
        with contextlib.suppress(SafetensorError):  # the format has no such numbers
            return TensorSpec(dtype=kind, shape=[0], data_ptr=0, data_len=0).dtype
    raise DataError(
        f"the tensor {name!r} ({tensor.dtype}, {tensor.layout}, on {tensor.device}) cannot be kept "
        "in a checkpoint",
        fix="Where it need not be kept: register_buffer(name, tensor, persistent=False).",
    )

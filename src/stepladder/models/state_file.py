"""Read tensors from safetensors files, and refuse what does not fit, before anything changes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from safetensors import SafetensorError, safe_open
from torch import Tensor

from stepladder.errors import DataError

_SHOWN = 5
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a safetensors file.

    Raises:
        DataError: if it is missing, is something else (a pickle is never opened), or is damaged.
    """
    try:
        with path.open("rb") as file:
            return read_tensors(file, where=str(path))
    except OSError as error:
        raise DataError(
            f"the weights cannot be read ({error.strerror})",
            where=str(path),
            fix="Give the path of a safetensors file, or packaged, hub or none.",
        ) from None


def read_tensors(file: BinaryIO, *, where: str) -> dict[str, Tensor]:
    """Read every tensor of an open safetensors file into memory of its own.

    Args:
        file: opened at its start, a real file.
        where: named in errors.

    Raises:
        DataError: if it is something else (a pickle is never opened), or is damaged.
    """
    _refuse_other_formats(file.read(9), where)
    try:
        # by its handle: what was opened is read, also where the name was given to another file
        with safe_open(f"/dev/fd/{file.fileno()}", "pt", backend="pread") as opened:
            tensors: dict[str, Tensor] = opened.get_tensors()
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise DataError(
            f"the safetensors file is damaged ({error})",
            where=where,
            fix="Copy or download it again.",
        ) from None
    return tensors


def refuse_misfit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], *, where: str) -> None:
    """Raise DataError with the first differences, unless names and shapes are the same."""
    lines = [f"missing  {name} {_shape(wanted[name])}" for name in wanted if name not in found]
    lines += [f"unknown  {name} {_shape(found[name])}" for name in found if name not in wanted]
    lines += [
        f"shape    {name} is {_shape(found[name])}, the model has {_shape(wanted[name])}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    if not lines:
        return
    more = f"\n    and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    raise DataError(
        f"{len(lines)} tensors do not fit the model; nothing was loaded",
        where=where,
        why="First differences:"
        + "".join(f"\n    {line}" for line in islice(lines, _SHOWN))
        + more,
        fix="Give weights of this very model, or another --model.name.",
    )


def _refuse_other_formats(start: bytes, where: str) -> None:
    """Refuse a file by its first nine bytes: a header's length, and the bracket that opens it."""
    header_bytes = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if 2 <= header_bytes <= _MAX_HEADER_BYTES and start[8:] == b"{":
        return
    if start.startswith(_PICKLE_STARTS):
        raise DataError(
            "this is a Python pickle or a torch.save archive, not a safetensors file",
            where=where,
            why="Opening a pickle can run any code, so stepladder never does.",
            fix="Convert it where you trust it: safetensors.torch.save_file(state_dict, PATH).",
        )
    raise DataError(
        "this is not a safetensors file",
        where=where,
        fix="Give the path of a safetensors file, or packaged, hub or none.",
    )


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"

"""Read tensors from safetensors files, and check that they fit before anything is loaded."""

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
        DataError: if it is missing, damaged, or not a safetensors file (a pickle is never opened).
    """
    try:
        with path.open("rb") as file:
            return read_tensors(file, where=str(path))
    except OSError as error:
        raise DataError(
            f"the weights cannot be read ({error.strerror})",
            where=str(path),
            fix="Set --model.weights to the path of a safetensors file, or to packaged, hub or "
            "none.",
        ) from None


def read_tensors(file: BinaryIO, *, where: str) -> dict[str, Tensor]:
    """Read every tensor of an open safetensors file into new memory.

    Args:
        file: a real file, opened at its start.
        where: for error messages.

    Raises:
        DataError: if it is damaged or not a safetensors file (a pickle is never opened).
    """
    _refuse_other_formats(file.read(9), where)
    try:
        # by its handle, so that the opened file is read even if another has its name now
        with safe_open(f"/dev/fd/{file.fileno()}", "pt", backend="pread") as opened:
            tensors: dict[str, Tensor] = opened.get_tensors()
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise DataError(
            f"the safetensors file is damaged ({error})",
            where=where,
            fix="Copy or download the file again.",
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
        f"{len(lines)} of the weights in this file do not fit the model, so none were loaded",
        where=where,
        why="First differences:"
        + "".join(f"\n    {line}" for line in islice(lines, _SHOWN))
        + more,
        fix="Set --model.weights to a file with weights of this model, or --model.name to the "
        "model that the file is for.",
    )


def _refuse_other_formats(start: bytes, where: str) -> None:
    """Check the first nine bytes of a file: a header's length, and its opening brace."""
    header_bytes = struct.unpack("<Q", start[:8])[0] if len(start) == 9 else 0
    if 2 <= header_bytes <= _MAX_HEADER_BYTES and start[8:] == b"{":
        return
    if start.startswith(_PICKLE_STARTS):
        raise DataError(
            "this is a Python pickle or a torch.save archive, not a safetensors file",
            where=where,
            why="A pickle can run arbitrary code when it is opened, so stepladder never opens one.",
            fix="If you trust it, convert it: safetensors.torch.save_file(state_dict, PATH).",
        )
    raise DataError(
        "this is not a safetensors file",
        where=where,
        fix="Set --model.weights to the path of a safetensors file, or to packaged, hub or none.",
    )


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"

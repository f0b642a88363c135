"""Hashes of the examples of a batch, to recognise them later."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log2, prod
from typing import Any, Final

import torch
from torch import Tensor

from stepladder.watching.hooks.tensors import is_plain

MAX_VALUES: Final = 128  # of each example
_MAX_ELEMENTS: Final = 1 << 20  # of a batch; the rows after these are left out
_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_FLOAT_BITS: Final = 20.0  # of a value that is hardly ever the same in two examples
_TOKEN_BITS: Final = 2.0  # of an integer in a sequence, which those before it suggest
_SOME_ROWS: Final = 32
_MIN_VALUES: Final = 4  # of an example: with fewer, such as coordinates, equal ones are no surprise
_CONTINUOUS: Final = 0.25  # of the values are distinct


def _mixed(number: int) -> int:
    """Mix the bits of a number. Source: Steele et al. 2014, "Fast Splittable Pseudorandom"."""
    number = (number + _GOLDEN) & _MASK
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _MASK
    return (number ^ (number >> 31)) & _MASK


@lru_cache(maxsize=256)
def _factors(num: int, salt: int, device: str) -> Tensor:
    """Return odd factors, one per value, that no random number was drawn for."""
    values = [_mixed(salt * MAX_VALUES * 4 + at) | 1 for at in range(num)]
    signed = [value - (1 << 64) if value >> 63 else value for value in values]
    with torch.inference_mode(False):
        return torch.tensor(signed, dtype=torch.int64, device=device)


@lru_cache(maxsize=256)
def _strides(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Return slices that keep at most `MAX_VALUES` evenly spaced values of an example."""
    strides = [1] * len(sizes)
    left = list(sizes)
    while prod(left) > MAX_VALUES:
        at = left.index(max(left))
        strides[at] += 1
        left[at] = -(-sizes[at] // strides[at])
    return tuple(slice((stride - 1) // 2, None, stride) for stride in strides)


def some_values(tensor: Tensor) -> Tensor:
    """Return some values of each example, the same ones in every batch.

    Shapes: tensor is (n, ...); the result (n, d).
    """
    rows = tensor.detach()
    if rows.dim() == 1:
        return rows.unsqueeze(1)
    rows = rows[(slice(None), *_strides(tuple(rows.shape[1:])))]
    return rows.reshape(rows.shape[0], -1)


def _bits_of(rows: Tensor) -> Tensor:
    if rows.dtype in (torch.float16, torch.bfloat16):
        rows = rows.float()
    if rows.dtype is torch.float32:
        rows = rows.contiguous()
        if rows.shape[1] % 2:
            return rows.view(torch.int32).long()
        if rows.storage_offset() % 2 or rows.stride(0) % 2:
            rows = rows.clone(memory_format=torch.contiguous_format)
        return rows.view(torch.int64)  # two values in one
    if rows.dtype is torch.float64:
        return rows.contiguous().view(torch.int64)
    return rows.long()


def per_example(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs of a call that have one row per example; none if that is unclear.

    Inputs of different lengths belong to one graph or one set, and a square one beside others may
    relate all examples to each other.
    """
    rows = [one for one in tensors if one.dim() >= 1]
    if not rows or not all(map(is_plain, rows)):
        return []
    num = len(rows[0])
    is_related = any(len(one) != num for one in rows) or (
        len(rows) > 1 and any(tuple(one.shape) == (num, num) for one in rows)
    )
    return [] if is_related or num == 0 or any(one.numel() == 0 for one in rows) else rows


def hashes_of(tensors: Sequence[Tensor]) -> Tensor:
    """Return a 64-bit hash of each example, on the device of the inputs.

    Equal examples have equal hashes. Different ones hardly ever do, unless they are equal in all of
    the values that are read: up to 128 of each input, evenly spaced.

    Shapes: tensors are (n, ...); the result (n,), or fewer if the batch is very large.
    """
    total: Any = 0
    for salt, tensor in enumerate(tensors):
        values = some_values(tensor)
        values = values[: max(1, _MAX_ELEMENTS // values.shape[1])]
        bits = _bits_of(values)
        part = (bits * _factors(bits.shape[1], salt, str(bits.device))).sum(1)
        total = part if salt == 0 else total[: len(part)] + part[: len(total)]
    found: Tensor = total
    return found


def bits_per_example(tensors: Sequence[Tensor]) -> tuple[float, bool]:
    """Estimate how many bits distinguish examples, from some of their values.

    Returns:
        Bits, 0 if an example has fewer than four values; and whether most values are distinct.
    """
    bits, num = 0.0, 0
    is_continuous = False
    for tensor in tensors:
        values = some_values(tensor[:_SOME_ROWS])
        distinct = len(set(values.flatten().tolist()))
        is_own = tensor.is_floating_point() and distinct > _CONTINUOUS * values.numel()
        is_continuous = is_continuous or is_own
        num += values.shape[1]
        each = _FLOAT_BITS if is_own else log2(max(1, distinct))
        if not tensor.is_floating_point() and tensor.dim() == 2:
            each = min(each, _TOKEN_BITS)
        bits += values.shape[1] * each
    return (bits if num >= _MIN_VALUES else 0.0), is_continuous

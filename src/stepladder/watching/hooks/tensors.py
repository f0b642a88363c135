"""Small statistics of tensors: detached, of a cheap sample, without random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final

import torch
from torch import Tensor

MAX_ELEMENTS: Final = 32_768
_MAX_EXAMPLES: Final = 32


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Statistics of some of a tensor's values."""

    mean: float
    std: float
    low: float
    high: float
    is_finite: bool

    @property
    def size(self) -> float:
        """Return the root mean square."""
        return float((self.mean**2 + self.std**2) ** 0.5)


def is_plain(value: object) -> bool:
    """Return whether it is a dense tensor whose values can be read."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.device.type not in ("meta",)
        and not value.is_quantized
        and not value.is_complex()
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def part(value: Tensor, most: int = MAX_ELEMENTS) -> Tensor:
    """Return some elements, evenly spaced; a view if memory is contiguous."""
    flat = value.detach()
    if not flat.is_contiguous() and flat.numel() > 4 * most:
        flat = flat[:: max(1, flat.shape[0] // 4)] if flat.dim() else flat
    flat = flat.reshape(-1)
    return flat[:: max(1, flat.numel() // most)] if flat.numel() > most else flat


def spread(value: Tensor) -> Spread:
    """Measure some of a tensor's values; this waits for a GPU."""
    numbers = part(value).float()
    low, high, total = numbers.min(), numbers.max(), numbers.sum()
    found = torch.stack([numbers.mean(), numbers.std(correction=0), low, high, total]).tolist()
    mean, std, least, most, whole = found
    finite = all(map(isfinite, (least, most, whole)))
    return Spread(mean=mean, std=std, low=least, high=most, is_finite=finite)


def is_finite(value: Tensor) -> bool:
    """Return whether a floating-point tensor has neither NaN nor infinity; reads all values."""
    total = value.detach().sum(dtype=torch.float64 if value.device.type == "cpu" else None)
    return bool(torch.isfinite(total))


def checksum(value: Tensor) -> float:
    """Return a number that is equal for equal data, and rarely for other data."""
    numbers = part(value).double()
    weights = torch.arange(1, numbers.numel() + 1, dtype=torch.float64, device=numbers.device)
    return float((numbers * torch.cos(weights)).sum())


def num_copies(value: Tensor) -> tuple[int, int, int]:
    """Count the copies and the constant examples in a batch.

    Returns:
        Copies, constant ones, and inspected examples.
    """
    rows = value.detach()[:_MAX_EXAMPLES].flatten(1)
    rows = rows[:, :: max(1, rows.shape[1] // 1024)].double()
    weights = torch.cos(torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device))
    sums = [round(x, 9) for x in (rows @ weights).tolist()]
    constant = int((rows.amax(1) == rows.amin(1)).sum())
    return len(sums) - len(set(sums)), constant, len(sums)


def tensors_in(value: Any, depth: int = 3) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value[:16]:
            yield from tensors_in(item, depth - 1)


def leaves_of(root: Tensor, max_nodes: int) -> Iterator[Tensor]:
    """Yield the leaves that a graph ends at: the tensor itself if it is one.

    Args:
        max_nodes: of the graph that are visited.
    """
    if root.grad_fn is None:
        yield root
        return
    stack, known = [root.grad_fn], set[Any]()
    while stack and len(known) < max_nodes:
        node: Any = stack.pop()
        if node is None or node in known:
            continue
        known.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        stack.extend(parent for parent, _ in node.next_functions)

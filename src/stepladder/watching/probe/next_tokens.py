"""Keep some rows of tokens whose targets are the next tokens, and find the scores of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.graph import kind_of, shape_of
from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.probe.clearing import mapped

MAX_ROWS: Final = 8  # that are compared and replayed
MIN_LENGTH: Final = 10  # more than these rows, so that sizes distinguish both
_MIN_TOLD: Final = 20  # targets that are not also the current token
_SHIFTED: Final = 0.9  # of these
_MAX_INPUT_BYTES: Final = 4 << 20
_MAX_MODEL_BYTES: Final = 200 << 20
_MAX_NODES: Final = 8  # between scores and the output of a model
_SHAPES: Final = frozenset({
    "View", "UnsafeView", "Reshape", "ReshapeAlias", "Permute", "Transpose", "T", "Clone",
    "ToCopy", "Slice", "Alias", "Squeeze", "Unsqueeze",
})  # fmt: skip

Call = tuple[Root, nn.Module, tuple[Any, ...], dict[str, Any]]
Tokens = tuple[Tensor, Tensor, bool]  # token ids, which targets count, and whether time is first


@dataclass(frozen=True)
class KeptTokens:
    """Some rows of a call.

    Attributes:
        ids: the tokens among its arguments, (n, t), or (t, n) if `is_time_first`.
        others: arguments with the same tokens, such as labels that the model shifts itself.
        is_used: which targets count, in the same shape.
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    ids: Tensor
    others: tuple[Tensor, ...]
    is_used: Tensor
    is_time_first: bool
    num_classes: int

    def cut(self, length: int) -> KeptTokens:
        """Return the first places, of everything that has one number for each place."""
        if length == self.time:
            return self

        def part(tensor: Tensor) -> Tensor:
            for dim, size in enumerate(tensor.shape):
                if size == self.time:
                    tensor = tensor.narrow(dim, 0, length)
            return tensor

        ids = part(self.ids).contiguous()
        args, kwargs = mapped(
            lambda one: ids if one is self.ids else part(one), (self.args, self.kwargs)
        )
        return replace(self, args=args, kwargs=kwargs, ids=ids, is_used=part(self.is_used))

    @property
    def time(self) -> int:
        """Return the number of places."""
        return int(self.ids.shape[0 if self.is_time_first else 1])


def is_tokens(value: Tensor) -> bool:
    """Return whether a tensor may be rows of token ids."""
    is_whole = is_plain(value) and not value.is_floating_point() and value.dtype != torch.bool
    return is_whole and value.dim() == 2


def used(
    ids: Tensor, target: Tensor, scores: Tensor, ignored: int | None, is_time_first: bool
) -> Tensor | None:
    """Return which targets of some rows count, if these are the next token.

    Only those that differ from the current token show that.
    """
    dim = 0 if is_time_first else 1
    time, num = int(ids.shape[dim]), int(ids.shape[1 - dim])
    if time < MIN_LENGTH or target.device != ids.device or not is_plain(target):
        return None
    length = target.numel() // num if num else 0
    if length not in (time, time - 1) or target.numel() != length * num:
        return None
    if length < time and not _starts_at_first(scores, time):
        return None
    shape = (length, num) if is_time_first else (num, length)
    wanted = target.detach().reshape(shape).narrow(1 - dim, 0, min(num, MAX_ROWS))
    given = ids.detach().narrow(1 - dim, 0, min(num, MAX_ROWS))
    now, later = given.narrow(dim, 0, time - 1), given.narrow(dim, 1, time - 1)
    is_used = (wanted >= 0) & (wanted != (-1 if ignored is None else ignored))
    is_told = is_used.narrow(dim, 0, time - 1) & (now != later)
    is_next = is_told & (wanted.narrow(dim, 0, time - 1) == later)
    num_told, num_next = torch.stack([is_told.sum(), is_next.sum()]).tolist()
    if num_told < _MIN_TOLD or num_next < _SHIFTED * num_told:
        return None
    whole = torch.zeros(given.shape, dtype=torch.bool, device=ids.device)
    whole.narrow(dim, 0, length).copy_(is_used)
    return whole


def _starts_at_first(scores: Tensor, time: int) -> bool:
    """Return whether scores leave out the last place of an output, and not its first one."""
    node: Any = scores.grad_fn
    for _ in range(_MAX_NODES):
        if node is None or kind_of(node) not in _SHAPES:
            return False
        if kind_of(node) == "Slice":
            before = node.next_functions[0][0]
            shape = shape_of(before) if before is not None else ()
            dim = int(node._saved_dim)
            dim -= 2**64 if dim >= 2**63 else 0  # torch returns it as an unsigned number
            if -len(shape) <= dim < len(shape) and shape[dim] == time:
                return int(node._saved_start) == 0
        node = node.next_functions[0][0]
    return False


def kept_of(call: Call, found: Sequence[Tokens], scores: Tensor) -> KeptTokens | None:
    """Return copies of some rows of a call; None if it is too large, or its batch is unclear.

    Args:
        found: the tokens among its arguments; those after the first one are the same.
    """
    _, module, args, kwargs = call
    ids, is_used, is_time_first = found[0]
    dim = 1 if is_time_first else 0
    num, time = int(ids.shape[dim]), int(ids.shape[1 - dim])
    parts: list[Tensor] = []
    tokens: list[Tensor] = []
    unclear: list[Tensor] = []

    def rows(tensor: Tensor) -> Tensor:
        part = tensor.detach()
        dims = [at for at, size in enumerate(part.shape) if size == num]
        if part.shape == ids.shape:
            part = part.narrow(dim, 0, min(num, MAX_ROWS))
        elif len(dims) > 1 or (dims and num == time):
            unclear.append(tensor)
        elif dims:
            part = part.narrow(dims[0], 0, min(num, MAX_ROWS))
        if part.nbytes > _MAX_INPUT_BYTES:
            unclear.append(tensor)
            return part
        part = part.clone()
        parts.append(part)
        if any(tensor is one for one, _, _ in found):
            tokens.append(part)
        return part

    args, kwargs = mapped(rows, (args, kwargs))
    size = sum(one.nbytes for one in (*module.parameters(), *module.buffers()))
    is_whole = len(parts) == sum(1 for _ in tensors_in((args, kwargs), 3))  # not in a list
    is_small = size <= _MAX_MODEL_BYTES and sum(one.nbytes for one in parts) <= _MAX_INPUT_BYTES
    if unclear or not is_whole or not is_small:
        return None
    return KeptTokens(
        module=module,
        args=args,
        kwargs=kwargs,
        ids=tokens[0],
        others=tuple(tokens[1:]),
        is_used=is_used,
        is_time_first=is_time_first,
        num_classes=int(scores.shape[1]) if scores.dim() > 1 else 0,
    )


def by_token(output: Tensor, kept: KeptTokens) -> Tensor | None:
    """Return scores as (rows, tokens, classes); None if the output has another shape."""
    num, time = (*kept.ids.shape,)[:: -1 if kept.is_time_first else 1]
    classes = kept.num_classes
    if kept.is_time_first:
        if output.shape == (time, num, classes):
            return output.transpose(0, 1)
        is_flat = output.shape == (time * num, classes)
        return output.reshape(time, num, classes).transpose(0, 1) if is_flat else None
    if output.shape == (num, time, classes):
        return output
    if output.shape == (num, classes, time):
        return output.transpose(1, 2)
    return output.reshape(num, time, classes) if output.shape == (num * time, classes) else None

"""Watch whether attention hides the real tokens of padded sequences, and reads their padding."""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.inputs import Misread, PaddingSeen
from stepladder.watching.watcher import Watcher

_MAX_LOOKS: Final = 8  # inspected batches of each kind of layer
_MAX_ROWS: Final = 64
_MIN_ROWS: Final = 4
_MAX_IDS: Final = 4  # tables of token ids of a step
_HIDDEN: Final = -1e4  # scores and masks that are at most this leave a key out
_KEYS_POSITION: Final = 4  # of the key padding mask among the arguments of attention
_MASK_POSITION: Final = 3  # of the mask among those of scaled_dot_product_attention
_AXES: Final = {2: "", 3: "[:, None]", 4: "[:, None, None]"}  # by the dimensions of a mask


class _Tokens:
    """The ids of a step, and which of their places are padding.

    Attributes:
        num: rows of the batch, of which the first ones are stored.
    """

    def __init__(self, ids: Tensor) -> None:
        self.num = len(ids)
        self.ids = ids.detach()[:_MAX_ROWS].clone()
        self._pads: list[int] | None = None

    @property
    def pads(self) -> list[int]:
        """Return the ids that may be padding, at the end or at the beginning of rows."""
        if self._pads is None:
            found = [_padding_of(self.ids[:, at], self.ids) for at in (-1, 0)]
            self._pads = [pad for pad in found if pad is not None]
        return self._pads

    def fits(self, shape: tuple[int, ...], device: torch.device) -> bool:
        """Return whether something of this shape, (n, t), has a number for each of the ids."""
        is_fitting = shape == (self.num, self.ids.shape[1]) and device == self.ids.device
        return is_fitting and len(self.ids) >= _MIN_ROWS


class MaskWatch:
    """Wraps attention and softmax, in inspected steps."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: dict[tuple[str, str | None], PaddingSeen] = {}
        self._tokens: list[_Tokens] = []
        self._is_inside = False  # of nn.MultiheadAttention, whose own mask is inspected

    def install(self, watcher: Watcher) -> None:
        """Put wrappers in place."""
        self._watcher = watcher
        watcher.on_close.append(self._next)
        watcher.on_step.append(self._next)
        watcher.on_learnt.append(lambda _: self._next())
        watcher.on_tokens.append(self._note)
        wrap = watcher.patches.wrap
        wrap(
            nn.MultiheadAttention,
            "forward",
            before=self._enter,
            after=self._leave,
            failed=self._leave,
            is_close_only=True,
        )
        wrap(F, "scaled_dot_product_attention", before=self._dot_product, is_close_only=True)
        for owner in (Tensor, torch):
            wrap(owner, "softmax", before=self._softmax, is_close_only=True)

    def settle(self) -> None:
        """Store what was found."""
        self._watcher.seen.paddings += self._seen.values()
        self._seen = {}
        self._next()

    def _next(self) -> None:
        self._tokens = []
        self._is_inside = False

    def _note(self, ids: Tensor) -> None:
        if len(self._tokens) < _MAX_IDS and _can_be_read(ids) and not ids.is_floating_point():
            self._tokens.append(_Tokens(ids))

    def _leave(self, *_: Any) -> None:
        self._is_inside = False

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._is_inside = True
        mask: Any = kwargs.get("key_padding_mask")
        if mask is None and len(args) > _KEYS_POSITION:
            mask = args[_KEYS_POSITION]
        if not self._tokens or not _can_be_read(mask) or mask.dim() != 2:
            return
        hidden = mask if mask.dtype is torch.bool else mask == -torch.inf
        self._compare(hidden, type(args[0]).__name__, Misread.MASK)

    def _dot_product(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask: Any = kwargs.get("attn_mask")
        if mask is None and len(args) > _MASK_POSITION:
            mask = args[_MASK_POSITION]
        if self._is_inside or not self._tokens or not _can_be_read(mask):
            return
        is_bool = mask.dtype is torch.bool
        last = _last_query(mask) if is_bool or mask.is_floating_point() else None
        if last is not None:
            kind = Misread.ATTENDED if is_bool else Misread.ADDED
            hidden = ~last if is_bool else last <= _HIDDEN
            self._compare(hidden, "scaled_dot_product_attention", kind, _AXES[mask.dim()])

    def _softmax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Inspect the scores of attention that the script computes itself."""
        scores: Any = args[0] if args else kwargs.get("input")
        dim: Any = args[1] if len(args) > 1 else kwargs.get("dim")
        if self._is_inside or not self._tokens or not isinstance(dim, int):
            return
        if not _can_be_read(scores) or not 2 <= scores.dim() <= 4 or not scores.requires_grad:
            return
        if not -scores.dim() <= dim < scores.dim():
            return
        last = _last_query(scores.detach().movedim(dim, -1), self._tokens[0].num)
        if last is not None:
            is_last, other = dim in (-1, scores.dim() - 1), {2: ".t()", 3: "[..., None]"}
            axes = _AXES[scores.dim()] if is_last else other.get(scores.dim(), "")
            self._compare(last <= _HIDDEN, "softmax", Misread.SCORES, axes)

    def _compare(self, hidden: Tensor, layer: str, kind: Misread, axes: str = "") -> None:
        """Compare which keys are hidden, (n, t), with which of the ids are padding.

        Args:
            axes: what brings such a table to the shape of the mask.
        """
        if not torch.is_grad_enabled():
            return
        for one in self._tokens:
            if not one.fits(tuple(hidden.shape), hidden.device):
                continue
            seen = self._of(layer) if one.pads else None
            if seen is None:
                continue
            seen.num_looked += 1
            rows = hidden[:_MAX_ROWS]
            for pad in one.pads:
                is_pad = one.ids == pad
                if not torch.equal(rows, ~is_pad):
                    continue
                if kind is not Misread.MASK and not _is_at_ends(is_pad):
                    continue  # perhaps free places, of which one is chosen
                seen.misread, seen.padding, seen.axes = kind, pad, axes
                seen.num_misread += 1
                seen.num_padded = int(is_pad.sum())
                seen.num_real = is_pad.numel() - seen.num_padded
                break
            return

    def _of(self, layer: str) -> PaddingSeen | None:
        """Return what is known of a kind of layer at this line; None if it is known enough."""
        key = layer, self._watcher.own.here()
        if key not in self._seen and len(self._seen) < _MAX_LOOKS:
            self._seen[key] = PaddingSeen(layer=layer, where=key[1])
        one = self._seen.get(key)
        return None if one is None or one.num_looked >= _MAX_LOOKS else one


def _can_be_read(value: Any) -> bool:
    """Return whether values can be read; a CUDA graph would repeat what is computed here."""
    return is_plain(value) and not (value.is_cuda and torch.cuda.is_current_stream_capturing())


def _last_query(scores: Tensor, num: int | None = None) -> Tensor | None:
    """Return the scores of the last query, by row and key, from which a causal mask hides nothing.

    Args:
        scores: (n, t), (n, queries, t), (n, heads, queries, t), or (n * heads, queries, t).
        num: rows, if heads may be counted as rows; None: if not.
    """
    if scores.dim() == 4:
        scores = scores[:, 0]
    elif scores.dim() == 3 and num and len(scores) % num == 0:
        scores = scores[:: len(scores) // num]
    if scores.dim() == 3:
        scores = scores[:, -1]
    return scores if scores.dim() == 2 else None


def _padding_of(column: Tensor, ids: Tensor) -> int | None:
    """Return the most common id of a column, if its number varies between rows."""
    value = int(column.mode().values)
    counts = (ids == value).sum(1)
    is_padding = int(counts.max()) > int(counts.min()) and int((counts > 0).sum()) >= _MIN_ROWS
    return value if is_padding else None


def _is_at_ends(is_pad: Tensor) -> bool:
    """Return whether all padding is at the end of its row, or all of it at the beginning."""
    steps = is_pad.long().diff(dim=1)
    return not bool((steps < 0).any()) or not bool((steps > 0).any())

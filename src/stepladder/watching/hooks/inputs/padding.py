"""Watch whether the output of recurrent layers is read after padding instead of data."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from stepladder.watching.hooks.losses.padded import Ends, ends_of
from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.inputs import Misread, PaddingSeen
from stepladder.watching.watcher import Watcher

_MAX_LOOKS: Final = 8  # inspected batches of each kind of layer
_MAX_ROWS: Final = 64
_MIN_ROWS: Final = 4
_MAX_WIDTH: Final = 16  # features by which places are compared
_MAX_LENGTH: Final = 2048

_EXACT: Final = 1e-4
_LEAST_LEFT: Final = 0.2  # of the values, after dropout


class _Last:
    """The last output of a recurrent layer, until a linear layer is called."""

    def __init__(self, seen: PaddingSeen, values: Tensor, ends: Ends) -> None:
        self.seen = seen
        self.values = values
        self.ends = ends


class PaddingWatch:
    """Wraps the calls of recurrent layers, in inspected steps."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._seen: dict[tuple[str, str | None], PaddingSeen] = {}
        self._last: _Last | None = None
        self._handle: Any = None

    def install(self, watcher: Watcher) -> None:
        """Put wrappers in place."""
        self._watcher = watcher
        watcher.on_step.append(self._drop)
        watcher.patches.on_undo(self._drop)
        for kind in (nn.RNN, nn.LSTM, nn.GRU):
            watcher.patches.wrap(kind, "forward", after=self._recurrent, is_close_only=True)

    def settle(self) -> None:
        """Store what was found."""
        self._watcher.seen.paddings += self._seen.values()
        self._seen = {}

    def _drop(self) -> None:
        """Stop waiting for a linear layer."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._last = None

    def _of(self, layer: str) -> PaddingSeen | None:
        """Return what is known of a kind of layer at this line; None if it is known enough."""
        key = layer, self._watcher.own.here()
        if key not in self._seen and len(self._seen) < _MAX_LOOKS:
            self._seen[key] = PaddingSeen(layer=layer, where=key[1])
        one = self._seen.get(key)
        return None if one is None or one.num_looked >= _MAX_LOOKS else one

    def _recurrent(
        self, _note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        self._drop()
        module: nn.RNNBase = args[0]
        given: Any = args[1] if len(args) > 1 else kwargs.get("input")
        output = result[0]
        is_read = _can_be_read(given) and is_plain(output) and given.dim() == 3
        if not is_read or not torch.is_grad_enabled():
            return
        if not module.batch_first:
            given, output = given.transpose(0, 1), output.transpose(0, 1)
        if given.shape[0] < _MIN_ROWS or not 4 <= given.shape[1] <= _MAX_LENGTH:
            return
        seen = self._of(type(module).__name__)
        ends = _padded_places(given.detach()) if seen is not None else None
        if seen is None or ends is None or not ends.is_padding or ends.value != 1:
            return
        width = module.proj_size or module.hidden_size
        self._last = _Last(seen, output.detach()[:, -1, :width].clone(), ends)
        self._handle = register_module_forward_pre_hook(self._before_layer)

    def _before_layer(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if isinstance(module, nn.Linear) and args and self._watcher.switch.is_on:
            self._watcher.switch.run(self._linear, args[0])

    def _linear(self, given: Any) -> None:
        last = self._last
        if last is None or not is_plain(given):
            return
        seen, ends = last.seen, last.ends
        seen.num_looked += 1
        rows, width = last.values.shape
        is_table = given.dim() == 2 and given.shape[0] == rows and given.shape[1] % width == 0
        parts = given.detach().split(width, 1) if is_table else ()
        if any(_is_same(part, last.values) for part in parts):
            seen.misread = Misread.LAST
            seen.num_misread += 1
            seen.num_padded = sum(ends.lengths)
            seen.num_rows = len(ends.lengths)
            seen.num_real = seen.num_rows * ends.length - seen.num_padded
            seen.num_ended = sum(length > 0 for length in ends.lengths)
        self._drop()


def _can_be_read(value: Any) -> bool:
    """Return whether values can be read; a CUDA graph would repeat what is computed here."""
    return is_plain(value) and not (value.is_cuda and torch.cuda.is_current_stream_capturing())


def _padded_places(given: Tensor) -> Ends | None:
    """Return the ends of sequences at which all features are constant.

    Shapes: given is (n, t, d).
    """
    stride = -(-given.shape[2] // _MAX_WIDTH)
    some = given[:_MAX_ROWS, :, ::stride]
    last = some[:, -1]
    best = max(last[:_MIN_ROWS], key=lambda one: int((last == one).all(1).sum()))
    return ends_of((some == best).all(2).long())


def _is_same(given: Tensor, values: Tensor) -> bool:
    """Return whether one is the other, possibly after dropout."""
    if given.shape != values.shape:
        return False
    if torch.equal(given, values):
        return True
    is_left = (given != 0) & (values.abs() > _EXACT)
    if float(is_left.float().mean()) < _LEAST_LEFT or bool(((given != 0) & (values == 0)).any()):
        return False
    ratios = given[is_left] / values[is_left]
    factor = float(ratios.median())
    return factor >= 1 and bool(((ratios - factor).abs() < 1e-3 * factor).all())

"""Watch what a loss depends on of padded outputs of recurrent layers: the last place alone."""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor
from torch.nn.utils import rnn

from stepladder.watching.hooks.tensors import is_plain
from stepladder.watching.seen.inputs import PackedEndSeen
from stepladder.watching.watcher import Watcher

_MAX_CALLS: Final = 400


class PackedEndWatch:
    """Wraps `pad_packed_sequence` in inspected steps, and reads the gradients of its outputs.

    If only the last place of an output has a gradient, also in sequences that end before, the
    script reads that place for all of them.
    """

    def __init__(self) -> None:
        self._watcher: Watcher
        self._num_calls = 0
        self._places: dict[str | None, PackedEndSeen] = {}

    def install(self, watcher: Watcher) -> None:
        """Wrap the function."""
        self._watcher = watcher
        watcher.patches.wrap(rnn, "pad_packed_sequence", after=self._padded, is_close_only=True)

    def settle(self) -> None:
        """Store the lines."""
        self._watcher.seen.packed_ends = [one for one in self._places.values() if one.num_steps]

    def _padded(
        self, _note: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        self._num_calls += 1
        output, lengths = result
        if self._num_calls > _MAX_CALLS or not is_plain(lengths) or output.grad_fn is None:
            return
        time = int(bool(args[1] if len(args) > 1 else kwargs.get("batch_first", False)))
        is_short = lengths < output.shape[time]
        if not bool(is_short.any()):
            return
        where = self._watcher.own.here()
        switch = self._watcher.switch

        def learned(grads: tuple[Tensor | None, ...]) -> None:
            if switch.is_on:
                switch.run(self._learned, where, grads[0], is_short, time)

        output.grad_fn.register_prehook(learned)

    def _learned(self, where: str | None, grad: Tensor | None, is_short: Tensor, time: int) -> None:
        if grad is None or not is_plain(grad):
            return
        places = grad.movedim(time, 0) != 0  # (t, n, ...)
        is_last_alone = bool(places[-1][is_short.to(grad.device)].any()) and not bool(
            places[:-1].any()
        )
        if is_last_alone:
            one = self._places.setdefault(where, PackedEndSeen(where=where))
            one.num_short += int(is_short.sum())
            one.num_rows += len(is_short)
            one.num_steps += 1

"""Test on a copy, after the last step, whether a model of tokens only returns its input."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import is_plain, tensors_in
from stepladder.watching.probe.clearing import mapped, same_draws
from stepladder.watching.probe.independence import has_own_hooks, is_distributed, silent
from stepladder.watching.seen.labels import CopiesSeen
from stepladder.watching.watcher import Watcher

_MAX_ROWS: Final = 8  # that are replayed
_MAX_TOKENS: Final = 65_536
_MIN_LENGTH: Final = 4
_MIN_EQUAL: Final = 4  # calls
_MAX_MODEL_BYTES: Final = 200 << 20
_MAX_FORWARD_S: Final = 1.0
_SAME: Final = 1e-4  # of the largest score, left by rounding


class Copying:
    """Compares the targets of losses with the token ids that a model received."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._call: tuple[Root, nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self._kept: tuple[nn.Module, tuple[Any, ...], dict[str, Any], Tensor] | None = None
        self._seen: CopiesSeen | None = None
        self._is_other = False

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and losses."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_loss.append(self._note)
        watcher.on_learnt.append(self._forget)

    def settle(self) -> None:
        """Forget the call that is not learned from."""
        self._call = None

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._is_other or not self._watcher.is_close or not torch.is_grad_enabled():
            return
        if self._call is not None:
            self._end()  # several models, or one that is called again: perhaps a decoder
        else:
            self._call = root, module, args, kwargs

    def _forget(self, _learnt: Any) -> None:
        self._call = None

    def _end(self) -> None:
        self._is_other = True
        self._call = self._kept = self._seen = None

    def _note(self, target: Tensor, scores: Tensor) -> None:
        """Compare a target with the only tensor that the model received."""
        if self._call is None or not torch.is_grad_enabled() or scores.dim() < 2:
            return
        root, module, args, kwargs = self._call
        given = list(tensors_in((args, kwargs), 3))
        if len(given) != 1 or target.is_floating_point() or not is_plain(given[0]):
            return
        ids = given[0]
        if ids.dim() != 2 or ids.is_floating_point() or ids.shape[1] < _MIN_LENGTH:
            return
        if not _is_equal(ids, target):
            self._end()
        elif self._seen is not None:
            self._seen.num_equal += 1
        elif sum(p.nbytes for p in (*module.parameters(), *module.buffers())) > _MAX_MODEL_BYTES:
            self._end()
        else:
            self._seen = CopiesSeen(
                where=self._watcher.own.here(), built=root.seen.built, num_classes=scores.shape[1]
            )
            some = ids.detach()[:_MAX_ROWS].clone()
            args, kwargs = mapped(lambda _: some, (args, kwargs))
            self._kept = module, args, kwargs, some

    def replay(self) -> None:
        """Call a copy with tokens in another order, and with other tokens at the end.

        Nothing is printed, and random states are restored.
        """
        kept, self._kept = self._kept, None
        seen = self._seen
        if kept is None or seen is None or seen.num_equal < _MIN_EQUAL or is_distributed():
            return
        self._watcher.seen.copies = seen
        try:
            with same_draws() as draw_again, silent(), torch.no_grad():
                _test(kept, seen, draw_again)
        except Exception as error:  # whatever a script's model raises for other tokens
            seen.why_not = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _is_equal(ids: Tensor, target: Tensor) -> bool:
    """Return whether targets are the ids, except for negative ones, which a loss ignores."""
    if target.numel() != ids.numel() or target.numel() > _MAX_TOKENS or not is_plain(target):
        return False
    if target.device != ids.device:
        return False
    wanted, given = target.detach().reshape(-1), ids.detach().reshape(-1)
    is_used = wanted >= 0
    is_same = ((wanted == given) | ~is_used).all()
    return bool(is_same & (2 * is_used.sum() > wanted.numel()))


def _test(
    kept: tuple[nn.Module, tuple[Any, ...], dict[str, Any], Tensor],
    seen: CopiesSeen,
    draw_again: Any,
) -> None:
    module, args, kwargs, ids = kept
    original = getattr(module, "_orig_mod", module)
    if any(has_own_hooks(one) for one in original.modules()):
        seen.why_not = "the script has hooks on its model"
        return
    model = copy.deepcopy(original).eval()

    def scores_of(tokens: Tensor) -> Tensor | None:
        draw_again()
        given, named = mapped(lambda _: tokens.clone(), (args, kwargs))
        found = model(*given, **named)
        record = callable(getattr(found, "values", None)) and not isinstance(found, Tensor)
        first = next(tensors_in(list(found.values()) if record else found), None)
        return None if first is None else _by_token(first, tokens, seen.num_classes)

    began = perf_counter()
    before = scores_of(ids)
    if before is None or perf_counter() - began > _MAX_FORWARD_S:
        seen.why_not = "the model does not return the scores of each token at once"
        return
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(ids.numel(), generator=generator).to(ids.device)
    mixed = ids.reshape(-1)[order].reshape(ids.shape)
    half = ids.shape[1] // 2
    later = torch.cat([ids[:, :half], mixed[:, half:]], 1)
    again, other, ended = (scores_of(tokens) for tokens in (ids, mixed, later))
    if again is None or other is None or ended is None or not torch.equal(before, again):
        seen.why_not = "the model keeps a state in evaluation mode"
        return
    seen.num_distinct = len(set(mixed.reshape(-1).tolist()))
    is_rare = mixed != mixed.reshape(-1).mode().values  # what a constant guess would not return
    seen.num_tokens = int(is_rare.sum())
    seen.num_copied = int(((other.argmax(-1) == mixed) & is_rare).sum())
    moved = (ended[:, :half] - before[:, :half]).abs().max()
    seen.is_causal = bool(moved <= _SAME * before.abs().max())


def _by_token(output: Tensor, ids: Tensor, num_classes: int) -> Tensor | None:
    """Return scores as (rows, tokens, classes); None if the output has another shape."""
    whole = (*ids.shape, num_classes)
    if output.shape == whole:
        return output
    if output.shape == (ids.shape[0], num_classes, ids.shape[1]):
        return output.transpose(1, 2)
    is_flat = output.shape == (ids.numel(), num_classes)
    return output.reshape(whole) if is_flat else None

"""Test on a copy, after the last step, whether a model sees the token that it has to predict."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from math import isfinite
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepladder.watching.hooks.names import Root
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.probe.clearing import mapped, same_draws
from stepladder.watching.probe.flow import FirstMix, Flow
from stepladder.watching.probe.independence import has_own_hooks, is_distributed, silent
from stepladder.watching.probe.next_tokens import (
    MIN_LENGTH,
    Call,
    KeptTokens,
    by_token,
    is_tokens,
    kept_of,
    used,
)
from stepladder.watching.script.own_code import OwnCode
from stepladder.watching.seen.labels import AheadSeen
from stepladder.watching.seen.losses import LossSeen
from stepladder.watching.step_times import FORWARD
from stepladder.watching.watcher import Watcher

_MAX_FORWARD_S: Final = 0.5
_MAX_TRAINING_FORWARD_S: Final = 2.0
_MAX_CUT: Final = 4  # places
_ROUNDING: Final = 1e-4  # of the scores


class Causality:
    """Compares the targets of losses with the token ids that a model received, shifted by one."""

    def __init__(self) -> None:
        self._watcher: Watcher
        self._call: Call | None = None
        self._kept: KeptTokens | None = None
        self._seen: AheadSeen | None = None
        self._is_unclear = False

    def install(self, watcher: Watcher) -> None:
        """Subscribe to calls of models and losses."""
        self._watcher = watcher
        watcher.on_call.append(self._called)
        watcher.on_classes.append(self._note)
        watcher.on_learnt.append(self._forget)

    def settle(self) -> None:
        """Forget the call that is not learned from."""
        self._call = None

    def _called(
        self, root: Root, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if self._watcher.is_close and torch.is_grad_enabled():
            self._is_unclear = self._call is not None  # several models, or one that is called again
            self._call = root, module, args, kwargs

    def _forget(self, _learnt: Any) -> None:
        self._call = None

    def _note(self, loss: LossSeen, target: Tensor, scores: Tensor) -> None:
        """Compare a target with the ids that the model received."""
        is_whole = loss.reduction != "none" and not self._is_unclear and torch.is_grad_enabled()
        if self._call is None or not is_whole:
            return  # a script may leave out places of unreduced losses
        root, _, args, kwargs = self._call
        given = list(tensors_in((args, kwargs), 3))
        found = [
            (ids, is_used, is_time_first)
            for ids in {id(one): one for one in given if is_tokens(one)}.values()
            for is_time_first in (False, True)
            if (is_used := used(ids, target, scores, loss.ignore_index, is_time_first)) is not None
        ]
        if self._seen is not None:
            self._seen.num_shifted += bool(found)
            self._seen.num_other += not found
        elif found and len({(one[0].shape, one[2]) for one in found}) == 1:
            self._kept = kept_of(self._call, found, scores)
            if self._kept is not None:
                self._seen = AheadSeen(where=self._watcher.own.here(), built=root.seen.built)

    def replay(self) -> None:
        """Call a copy with other tokens after a place, and with other tokens up to there.

        Nothing is printed, and random states are restored.
        """
        kept, self._kept = self._kept, None
        seen, phases = self._seen, self._watcher.phases
        if kept is None or seen is None or is_distributed():
            return
        most_s = _MAX_TRAINING_FORWARD_S * phases.num_steps
        if phases.num_steps and phases.whole_s(FORWARD) > most_s:
            return
        self._watcher.seen.ahead = seen
        try:
            with same_draws() as draw_again, silent(), torch.no_grad():
                _test(kept, seen, draw_again, self._watcher.own)
        except Exception as error:  # whatever a script's model raises for other tokens
            seen.why_not = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _features(model: nn.Module) -> set[int]:
    """Return the numbers of features of layers, which a number of places must not be."""
    found: set[int] = set()
    for module in model.modules():
        is_table = isinstance(module, nn.Embedding)
        is_layer = type(module).__module__.startswith("torch.") and not is_table
        for param in module.parameters(recurse=False):
            found |= set(map(int, param.shape if is_layer else param.shape[-1:]))
    return found


class _Copied:
    """A copy of a model, in evaluation mode, called with other tokens.

    Attributes:
        flow: what follows its calls.
    """

    def __init__(self, kept: KeptTokens, draw_again: Callable[[], None]) -> None:
        self.model = copy.deepcopy(getattr(kept.module, "_orig_mod", kept.module)).eval()
        self.flow: Flow | None = None
        self._kept = kept
        self._draw_again = draw_again

    @property
    def ids(self) -> Tensor:
        """Return its tokens, (n, t)."""
        return self._kept.ids.t() if self._kept.is_time_first else self._kept.ids

    @property
    def is_used(self) -> Tensor:
        """Return which targets count, (n, t)."""
        return self._kept.is_used.t() if self._kept.is_time_first else self._kept.is_used

    def choose(self) -> str | None:
        """Find the argument that the scores depend on, and how many of its places are replayed.

        Returns:
            Why it cannot be replayed; None if it can.
        """
        kept = self._kept
        if kept.others:
            base, mixed = self.scores(self.ids), _mixed(self.ids, self.is_used)
            changing = []
            for one in (kept.ids, *kept.others):
                self._kept = replace(kept, ids=one)
                if not torch.equal(self.scores(mixed), base):
                    changing.append(self._kept)
            if len(changing) != 1:
                return "its tokens are passed twice, as to an encoder and a decoder"
            kept = changing[0]
        features, num = _features(self.model), len(self.ids)
        least = max(MIN_LENGTH, kept.time - _MAX_CUT)
        for length in range(kept.time, least - 1, -1):
            if not features & {length, num * length}:
                self._kept = kept.cut(length)
                return None
        return "the number of tokens is also that of features"

    def scores(self, tokens: Tensor) -> Tensor:
        """Return the scores of each token, (n, t, classes)."""
        kept = self._kept
        self._draw_again()
        given = tokens.t().contiguous() if kept.is_time_first else tokens.clone()
        args, kwargs = mapped(
            lambda one: given if one is kept.ids else one.clone(), (kept.args, kept.kwargs)
        )
        with nullcontext() if self.flow is None else self.flow.following(given):
            found = self.model(*args, **kwargs)
        record = callable(getattr(found, "values", None)) and not isinstance(found, Tensor)
        outputs = list(tensors_in(list(found.values()) if record else found))
        scores = [(one, by) for one in outputs if (by := by_token(one, kept)) is not None]
        if len(scores) != 1:
            raise ValueError("the model does not return the scores of each token at once")
        if self.flow is not None:
            self.flow.end(scores[0][0])
        return scores[0][1]


def _test(kept: KeptTokens, seen: AheadSeen, draw_again: Any, own: OwnCode) -> None:
    original = getattr(kept.module, "_orig_mod", kept.module)
    if any(has_own_hooks(one) for one in original.modules()):
        seen.why_not = "the script has hooks on its model"
        return
    copied = _Copied(kept, draw_again)
    seen.why_not = copied.choose()
    if seen.why_not is not None:
        return
    flow = copied.flow = Flow(num_rows=copied.ids.shape[0], time=copied.ids.shape[1])
    copied.scores(copied.ids)
    copied.flow = None
    began = perf_counter()  # after the first call, which may compile something
    copied.scores(copied.ids)
    took_s = perf_counter() - began
    seen.why_not = flow.why_not
    if took_s > _MAX_FORWARD_S:
        seen.why_not = "a forward pass takes too long"
    place = _compare(copied, seen) if seen.why_not is None else 0
    if seen.why_not is not None or seen.influence == 0:
        return
    ids, mixed = copied.ids, _mixed(copied.ids, copied.is_used)
    first = FirstMix(ids.shape[1], place + 1, own)
    for one in (ids, torch.cat([ids[:, : place + 1], mixed[:, place + 1 :]], 1)):
        with first.run():
            copied.scores(one)
    if first.where is not None:
        seen.where, seen.operation = first.where, first.operation


def _mixed(ids: Tensor, is_used: Tensor) -> Tensor:
    """Return the tokens that count in another order; padding stays in its place."""
    generator = torch.Generator().manual_seed(0)
    values = ids[is_used]
    order = torch.randperm(len(values), generator=generator).to(ids.device)
    mixed = ids.clone()
    mixed[is_used] = values[order]
    return mixed


def _ratio(
    copied: _Copied,
    base: Tensor,
    tokens: tuple[Tensor, Tensor],
    place: int,
    rows: Tensor,
) -> float:
    """Return the influence of the tokens after a place, over that of those up to there.

    Args:
        base: the scores of the first tokens.
        tokens: and others.
    """
    ids, mixed = tokens
    later = torch.cat([ids[:, : place + 1], mixed[:, place + 1 :]], 1)
    earlier = torch.cat([mixed[:, : place + 1], ids[:, place + 1 :]], 1)
    ahead, behind = (
        float((copied.scores(one)[rows, place].float() - base[rows, place].float()).abs().mean())
        for one in (later, earlier)
    )
    size = float(base[rows, place].float().abs().mean())
    if not (isfinite(ahead) and isfinite(behind)):
        return 0.0
    least = _ROUNDING * size
    return 0.0 if ahead <= least else ahead / max(behind, least)


def _compare(copied: _Copied, seen: AheadSeen) -> int:
    """Measure the influence at three places, of a single row as well, and in training mode.

    Returns:
        The place that was compared in each of these ways.
    """
    ids, is_used, scores_of = copied.ids, copied.is_used, copied.scores
    base, again, mixed = scores_of(ids), scores_of(ids), _mixed(ids, is_used)
    if not torch.equal(base, again) or not bool(torch.isfinite(base).all()):
        seen.why_not = "the model keeps a state in evaluation mode, or is not finite"
        return 0
    is_changed = is_used & (mixed != ids)
    table = is_used[:, :-1] & is_changed[:, :-1] & is_changed[:, 1:]  # what can be compared
    places: list[int] = table.any(0).nonzero().flatten().tolist()
    some = sorted({places[len(places) * part // 4] for part in (1, 2, 3)}) if places else []
    compared = {at: table[:, at] for at in some}
    if len(compared) < 2:
        seen.why_not = "too few targets count"
        return 0
    ratios = [_ratio(copied, base, (ids, mixed), at, rows) for at, rows in compared.items()]
    seen.influence = min(ratios)
    if seen.influence == 0:
        return 0
    at, rows = list(compared.items())[len(compared) // 2]
    following = torch.arange(ids.shape[1], device=ids.device) == at + 1
    following = scores_of(torch.where(following, mixed, ids))[rows, at].float()
    before = base[rows, at].float()
    if float((following - before).abs().mean()) <= _ROUNDING * float(before.abs().mean()):
        seen.influence = 0.0  # it sees later ones, but not the one to be predicted
        return 0
    row = int(rows.long().argmax())  # its own later tokens, not those of other rows
    one = torch.arange(len(ids), device=ids.device) == row
    single = torch.where(one[:, None], mixed, ids)
    ratios.append(_ratio(copied, base, (ids, single), at, one))
    other = scores_of(mixed)[:, :-1].argmax(-1)
    is_rare = is_changed[:, 1:] & (mixed[:, 1:] != ids[is_used].mode().values)
    seen.num_tokens = int(is_rare.sum())
    seen.num_copied = int(((other == mixed[:, 1:]) & is_rare).sum())
    copied.model.train()
    base = scores_of(ids)
    ratios.append(_ratio(copied, base, (ids, mixed), at, rows))
    copied.model.eval()
    seen.influence = min(ratios)
    return at

"""Count the hooks that a script registers on layers and weights: do they become more?"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Any, Final

from torch import Tensor, nn

from stepladder.watching.hooks.names import Names
from stepladder.watching.seen.costs import HooksSeen
from stepladder.watching.watcher import Watcher

_FIRST: Final = 2  # step
_EVERY: Final = 1.5  # times as many steps later, the next time
_MAX_MODELS: Final = 8
_MAX_MODULES: Final = 512
_MAX_FOLLOWED: Final = 64  # layers and weights
_MAX_COUNTS: Final = 64
_FEW: Final = 2  # hooks of a layer that are not followed
_OF_LAYERS: Final = {
    "_forward_hooks": ("forward hooks", "register_forward_hook"),
    "_forward_pre_hooks": ("forward pre-hooks", "register_forward_pre_hook"),
    "_backward_hooks": ("backward hooks", "register_full_backward_hook"),
    "_backward_pre_hooks": ("backward pre-hooks", "register_full_backward_pre_hook"),
}
_OF_WEIGHTS: Final = {
    "_backward_hooks": ("hooks on the gradient", "register_hook"),
    "_post_accumulate_grad_hooks": (
        "hooks on the accumulated gradient",
        "register_post_accumulate_grad_hook",
    ),
}


class _Followed:
    """A layer or a weight that has several hooks of one kind."""

    def __init__(self, owner: Any, name: str, kind: str) -> None:
        self.ref = weakref.ref(owner)
        self.seen = HooksSeen(name=name, kind=kind)


class HandleWatch:
    """Counts hooks after steps 2, 3, 5, 8, …, where steps are inspected, and at the end.

    What registers them is wrapped only once there are more of them than before.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._next = _FIRST
        self._followed: dict[tuple[int, str], _Followed] = {}
        self._wrapped: set[str] = set()

    def install(self, watcher: Watcher) -> None:
        """Count before inspected steps."""
        self._watcher = watcher
        watcher.on_close.append(self._look)

    def settle(self) -> None:
        """Count for the last time, and store what became more."""
        self._count(is_last=True)
        self._watcher.seen.costs.hooks = [
            one.seen for one in self._followed.values() if one.seen.function
        ]

    def _look(self) -> None:
        if self._watcher.step >= self._next:
            self._next = max(self._watcher.step + 1, int(self._watcher.step * _EVERY))
            self._count()

    def _count(self, *, is_last: bool = False) -> None:
        step = 0 if is_last else self._watcher.step
        for module in self._modules():
            for attribute, (kind, method) in _OF_LAYERS.items():
                self._note(module, getattr(module, attribute, None), kind, method, step)
            for param in module._parameters.values():
                for attribute, (kind, method) in _OF_WEIGHTS.items() if param is not None else ():
                    self._note(param, getattr(param, attribute, None), kind, method, step)

    def _modules(self) -> Iterator[nn.Module]:
        num = 0
        for model in list(self._names.layers())[:_MAX_MODELS]:
            for module in model.modules():
                num += 1
                if num > _MAX_MODULES:
                    return
                yield module

    def _note(self, owner: Any, hooks: Any, kind: str, method: str, step: int) -> None:
        """Note the number of hooks of one kind on a layer or a weight.

        Args:
            step: 0 at the end, when a script may have removed all of its hooks.
        """
        num = len(hooks) if hooks else 0
        key = id(owner), method
        one = self._followed.get(key)
        if one is not None and one.ref() is not owner:
            one = None
        if one is None:
            if num <= _FEW or (key not in self._followed and len(self._followed) >= _MAX_FOLLOWED):
                return
            one = self._followed[key] = _Followed(owner, self._name(owner), kind)
        counts = one.seen.counts
        is_more = bool(counts) and num > counts[-1][1]
        if not step and not is_more:
            return
        if is_more:
            self._describe(one.seen, hooks)
            self._wrap(method)
        step = step or self._watcher.step
        if len(counts) < _MAX_COUNTS and (not counts or counts[-1][0] < step):
            counts.append((step, num))

    def _name(self, owner: Any) -> str:
        if isinstance(owner, Tensor):
            return self._names.of(owner)
        for model in self._names.layers():
            for name, module in model.named_modules():
                if module is owner:
                    return name or type(owner).__name__
        return type(owner).__name__

    def _describe(self, seen: HooksSeen, hooks: Any) -> None:
        """Note which function of the script most hooks call."""
        codes = Counter(code for hook in list(hooks.values()) if (code := _code_of(hook)))
        code, num = codes.most_common(1)[0] if codes else (None, 0)
        if code is None or 2 * num < len(hooks) or not self._watcher.own.is_own(code.co_filename):
            seen.function = ""
            return
        seen.function, seen.file = code.co_name, self._watcher.own.shown(code.co_filename)
        seen.first_line = code.co_firstlineno
        seen.last_line = max((at for *_, at in code.co_lines() if at), default=seen.first_line)

    def _wrap(self, method: str) -> None:
        """See from now on where such hooks are registered."""
        if method in self._wrapped:
            return
        self._wrapped.add(method)

        def registered(_note: Any, args: tuple[Any, ...], _kwargs: Any, _handle: Any) -> None:
            one = self._followed.get((id(args[0]), method))
            if one is not None and one.seen.registered_at is None and one.ref() is args[0]:
                one.seen.registered_at = self._watcher.own.here()

        is_of_layers = any(method == name for _, name in _OF_LAYERS.values())
        owner = nn.Module if is_of_layers else Tensor
        self._watcher.patches.wrap(owner, method, after=registered)


def _code_of(hook: Any) -> CodeType | None:
    """Return the code that a hook runs; None if that is not known."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    called = vars(type(hook)).get("__call__")
    for one in (hook, getattr(hook, "__func__", None), called):
        code = getattr(one, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None

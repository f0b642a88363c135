"""Find one layer that a container lists several times, each call receiving the last one's output.

All of these have one set of weights, as in `nn.ModuleList([Block()] * n)`.
"""

from __future__ import annotations

import linecache
import re
import weakref
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from stepladder.watching.hooks.names import Names
from stepladder.watching.hooks.tensors import tensors_in
from stepladder.watching.seen.weights import RepeatedSeen
from stepladder.watching.watcher import Watcher

_CONTAINERS: Final = (nn.ModuleList, nn.Sequential)
_NORMS: Final = (_NormBase, nn.LayerNorm, nn.GroupNorm)
_MAX_CONTAINERS: Final = 16
_MAX_FOLLOWED: Final = 3  # steps
_MAX_NODES: Final = 64  # of a graph between two calls
_MAX_LINES: Final = 80  # of a class, before and after the line that makes a container
_TIMES: Final = re.compile(r"\)\s*\]\s*\*\s*\w")  # a list of what was created, times a number
_KEY: Final = "stepladder.repeated"
_SHARED: Final = re.compile(
    r"shar(e|ing)|\bt(ie|ied|ying)\b|tied_|recurs|recurren|universal|albert|unroll|\breus"
    r"|\bsame (set of )?(weight|layer|block|module|param)",
    re.IGNORECASE,
)


class _Token:
    """Marks the graph of one output."""


@dataclass(eq=False)
class _Layer:
    """A layer that is listed several times.

    Attributes:
        token: marks the output of its last call.
        run: calls in a row that each depend on the one before.
        longest: of these, in the current step.
        is_seen: `seen` is among the findings.
    """

    ref: weakref.ref[nn.Module]
    seen: RepeatedSeen
    token: _Token = field(default_factory=_Token)
    run: int = 0
    longest: int = 0
    is_seen: bool = False


class RepeatedWatch:
    """Compares the layers of each container, and follows the calls of those that are listed twice.

    Hooks are placed only if there are any, for three steps.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._watcher: Watcher
        self._known: set[int] = set()
        self._layers: dict[int, _Layer] = {}
        self._handles: list[Any] = []
        self._num_followed = 0

    def install(self, watcher: Watcher) -> None:
        """Listen for steps."""
        self._watcher = watcher
        watcher.on_first_step.append(self._find)
        watcher.on_step.append(self._next)
        watcher.patches.on_undo(self._close)

    def settle(self) -> None:
        """Do nothing: there is nothing left to read."""

    def _find(self) -> None:
        if self._num_followed or self._watcher.seen.is_compiled:
            return
        for root in self._names.roots:
            model = root.ref()
            if model is None or id(root) in self._known:
                continue
            self._known.add(id(root))
            for name, container in model.named_modules():
                if isinstance(container, _CONTAINERS):
                    self._add(container, name, model, root.seen.called_at)

    def _add(self, container: nn.Module, name: str, model: nn.Module, called: str | None) -> None:
        layers = [one for one in container._modules.values() if one is not None]
        counts = Counter(map(id, layers))
        if len(counts) == len(layers) or len(self._layers) >= _MAX_CONTAINERS:
            return
        file, line = self._place(model, name, called)
        if _SHARED.search(f"{type(model).__name__} {name}") or _is_said_to_share(file, line):
            return
        shown = self._watcher.own.name_of(file)
        where = called if shown is None or not line else f"{shown}:{line}"
        for layer in layers:
            num = counts[id(layer)]
            if num > 1 and id(layer) not in self._layers and _has_matrix(layer):
                self._layers[id(layer)] = _Layer(
                    weakref.ref(layer),
                    RepeatedSeen(
                        model=type(model).__name__,
                        container=f"{type(container).__name__} {name}".strip(),
                        layer=type(layer).__name__,
                        num=num,
                        num_weights=sum(p.numel() for p in layer.parameters()),
                        where=where,
                    ),
                )

    def _place(self, model: nn.Module, name: str, called: str | None) -> tuple[str, int]:
        """Return the line that makes a container: its file and number, 0 if it is unknown."""
        parts = name.split(".")
        for num in reversed(range(len(parts))):
            code = getattr(
                type(model.get_submodule(".".join(parts[:num]))).forward, "__code__", None
            )
            if code is not None and self._watcher.own.is_own(code.co_filename):
                line = _line_of(code.co_filename, code.co_firstlineno, parts[num])
                if line:
                    return code.co_filename, line
        file = self._watcher.own.file_of(called)
        found = [at for at, text in enumerate(linecache.getlines(file), 1) if _TIMES.search(text)]
        return file, found[0] if len(found) == 1 else 0

    def _next(self) -> None:
        if self._handles:
            self._num_followed += 1
            for one in self._layers.values():
                self._judge(one)
            if self._num_followed >= _MAX_FOLLOWED:
                self._close()
        elif self._layers and not self._num_followed and not self._watcher.seen.is_compiled:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after),
            ]

    def _judge(self, one: _Layer) -> None:
        if one.longest >= one.seen.num:
            one.seen.num_steps += 1
            if not one.is_seen:
                one.is_seen = True
                self._watcher.seen.repeated.append(one.seen)
        one.run = one.longest = 0
        one.token = _Token()

    def _close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _of(self, module: nn.Module) -> _Layer | None:
        one = self._layers.get(id(module))
        is_watched = one is not None and one.ref() is module and self._watcher.switch.is_on
        if not is_watched or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return None
        return one

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        one = self._of(module)
        if one is not None:
            self._watcher.switch.run(self._enter, one, args)

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        one = self._of(module)
        if one is not None:
            self._watcher.switch.run(self._leave, one, output)

    def _enter(self, one: _Layer, args: tuple[Any, ...]) -> None:
        depends = any(_depends(tensor, one.token) for tensor in tensors_in(args, 1))
        one.run = one.run + 1 if depends else 1
        one.longest = max(one.longest, one.run)

    def _leave(self, one: _Layer, output: Any) -> None:
        one.token = _Token()
        for tensor in tensors_in(output, 1):
            if tensor.grad_fn is not None:
                _metadata(tensor.grad_fn)[_KEY] = one.token


def _metadata(node: Any) -> dict[str, Any]:
    found: dict[str, Any] = node.metadata  # lives as long as the node
    return found


def _depends(tensor: Tensor, token: _Token) -> bool:
    """Return whether a tensor is computed from the output that is marked with a token."""
    nodes, known = deque([tensor.grad_fn]), set[Any]()
    while nodes and len(known) < _MAX_NODES:
        node = nodes.popleft()
        if node is None or node in known:
            continue
        if _metadata(node).get(_KEY) is token:
            return True
        known.add(node)
        nodes.extend(parent for parent, _ in node.next_functions)
    return False


def _has_matrix(layer: nn.Module) -> bool:
    """Return whether it has a weight to be trained other than a scale, a bias or a slope."""
    if isinstance(layer, _NORMS):
        return False
    return any(p.dim() > 1 and p.requires_grad for p in layer.parameters())


def _line_of(file: str, inside: int, attribute: str) -> int:
    """Return the line of a class that assigns an attribute, or 0.

    Args:
        inside: a line of the class.
    """
    lines = linecache.getlines(file)
    assigned = re.compile(rf"\s*self\.{re.escape(attribute)}\s*(:[^=]+)?=[^=]")
    first = min(inside, len(lines))
    while first > 1 and not lines[first - 1].lstrip().startswith("class "):
        first -= 1
    for at in range(first, len(lines)):
        if lines[at].lstrip().startswith("class "):
            return 0
        if assigned.match(lines[at]):
            return at + 1
    return 0


def _is_said_to_share(file: str, line: int) -> bool:
    """Return whether the class around a line speaks of shared weights."""
    lines = linecache.getlines(file)
    if not 0 < line <= len(lines):
        return False
    first = last = line - 1
    while first > max(0, line - _MAX_LINES) and not lines[first].startswith(("class ", "def ")):
        first -= 1
    while last + 1 < min(len(lines), line + _MAX_LINES):
        last += 1
        if lines[last].startswith(("class ", "def ")):
            break
    return any(_SHARED.search(text) for text in lines[max(0, first - 3) : last])

"""Names of weights and layers, and the state of models before their first step."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from stepladder.watching.hooks.graph import kind_of
from stepladder.watching.hooks.tensors import is_plain, part, spread
from stepladder.watching.seen.models import ModelSeen
from stepladder.watching.watcher import Watcher

_MAX_LAYERS: Final = 24
_FEW: Final = 64  # values that show for most weights that they are not constant
_MOVED: Final = 1e-4  # of the initial value: counts as moved
_ALIKE: Final = 1e-2  # of that movement: counts as the same
_SCALED: Final = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_PRODUCTS: Final = frozenset({"Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "Mv"})
_TURNS: Final = frozenset(
    ["T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Unsqueeze"]
)
_MAX_NODES: Final = 5000


def multiplied(root: Any, weights: set[int]) -> set[int]:
    """Return the weights that enter a matrix product, directly or transposed.

    Args:
        root: the node of what backward is called on.
        weights: `id` of the weights in question.
    """
    found: set[int] = set()
    known: set[Any] = set()
    stack = [(root, False)]  # a node, and whether its output enters a product
    while stack and len(known) < _MAX_NODES:
        node, is_factor = stack.pop()
        if node is None or (node, is_factor) in known:
            continue
        known.add((node, is_factor))
        variable = getattr(node, "variable", None)
        if variable is not None:
            found |= {id(variable)} & weights if is_factor else set()
            continue
        kind = kind_of(node)
        goes_in = kind in _PRODUCTS or (is_factor and kind in _TURNS)
        stack.extend((parent, goes_in) for parent, _ in node.next_functions)
    return found


class Root:
    """One outermost module."""

    def __init__(self, module: nn.Module) -> None:
        self.ref = weakref.ref(module)
        self.seen = ModelSeen(built=type(getattr(module, "_orig_mod", module)).__name__)
        self.ids = {id(p) for p in module.parameters()}
        self.modules = {id(m) for m in module.modules()}
        self.constants: list[tuple[str, weakref.ref[Any], float]] = []
        self.is_held = False
        self.last_given: tuple[Callable[[], Any], int] = (lambda: None), -1  # without gradients
        self.num_left = 0
        self.window_base: weakref.ref[Any] | None = None
        self.returned: frozenset[int] = frozenset()  # addresses of the last outputs
        self.num_returned = 0


class Names:
    """Stores the outermost modules, and the names of all their weights."""

    def __init__(self) -> None:
        self.roots: list[Root] = []
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._known: dict[int, Root] = {}

    def root_of(self, module: nn.Module) -> Root | None:
        """Return what is known about an outermost module."""
        root = self._known.get(id(module))
        return root if root is not None and root.ref() is module else None

    def add(self, module: nn.Module, watcher: Watcher) -> Root:
        """Register a module as an outermost one."""
        root = Root(module)
        self.roots.append(root)
        self._known[id(module)] = root
        watcher.seen.models.append(root.seen)
        for name, param in module.named_parameters():
            self._names.setdefault(id(param), (weakref.ref(param), name))
        describe(root, has_begun=watcher.step > 0)
        return root

    def of(self, param: Any) -> str:
        """Return the name of a weight, or its shape."""
        ref, name = self._names.get(id(param), (None, ""))
        if ref is not None and ref() is param:
            return name
        return f"a weight of shape {tuple(param.shape)}"

    def follow_constants(self) -> None:
        """Check whether the units of weights with a constant initial value differ by now."""
        for root in self.roots:
            if not root.constants:
                continue
            alike: list[str] = []
            still: list[tuple[str, weakref.ref[Any], float]] = []
            for name, ref, value in root.constants:
                param = ref()
                answer = None if param is None else _is_alike(param.detach(), value)
                alike += [name] if answer else []
                still += [(name, ref, value)] if answer is None else []
            root.constants = still
            root.seen.alike_weights += tuple(alike)

    def find_constant_factors(self, node: Any) -> None:
        """Find the weights with a constant initial value that a graph multiplies as matrices."""
        for root in self.roots:
            if not root.constants or root.seen.constant_factors:
                continue
            weights = {id(ref()): name for name, ref, _ in root.constants}
            found = multiplied(node, set(weights))
            root.seen.constant_factors = tuple(weights[key] for key in sorted(found))

    def layers(self) -> Iterator[nn.Module]:
        """Yield the outermost modules that still exist."""
        for root in self.roots:
            module = root.ref()
            if module is not None:
                yield module


def describe(root: Root, *, has_begun: bool) -> None:
    """Note the layers of a model and, unless training has begun, its initial weights."""
    module = root.ref()
    if module is None:
        return
    seen = root.seen
    seen.num_params = sum(p.numel() for p in module.parameters())
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    seen.has_batch_norm = any(m.track_running_stats for m in norms)
    seen.norm_momentum = max(
        (m.momentum or 0.0 for m in norms if m.track_running_stats), default=0.0
    )
    seen.fresh_batch_norm = any(
        m.num_batches_tracked is not None and int(m.num_batches_tracked) == 0 for m in norms[:4]
    )
    seen.has_dropout = any(isinstance(m, _DropoutNd) and m.p > 0 for m in module.modules())
    seen.has_dropout = seen.has_dropout or any(
        isinstance(m, nn.RNNBase) and m.dropout > 0 for m in module.modules()
    )
    seen.wanted_pixels = _wanted_pixels(module)
    if not has_begun:
        _weights(module, seen)
        root.constants = list(_constants(module))


def _wanted_pixels(module: nn.Module) -> int | None:
    """Return the image size that a model declares, such as timm's; None if it declares none."""
    inner = getattr(module, "module", None) or getattr(module, "_orig_mod", None) or module
    config = getattr(inner, "default_cfg", None) or getattr(inner, "pretrained_cfg", None)
    size = config.get("input_size") if isinstance(config, dict) else None
    if size is None:
        given = getattr(inner, "config", None)
        names = ("img_size", "image_size", "input_size")
        found = [getattr(place, name, None) for place in (inner, given) for name in names]
        size = next((one for one in found if isinstance(one, (int, tuple, list))), None)
    if isinstance(size, int):
        return size * size
    sides = [side for side in list(size or [])[-2:] if isinstance(side, int)]
    return sides[0] * sides[1] if len(sides) == 2 else None


def _constants(module: nn.Module) -> Iterator[tuple[str, weakref.ref[Any], float]]:
    """Yield the matrices with one initial value other than 0, except for those of `_SCALED`."""
    known = {id(m.weight) for m in module.modules() if isinstance(m, _SCALED)}
    matrices = [
        (name, param)
        for name, param in module.named_parameters()
        if id(param) not in known
        and sum(size > 1 for size in param.shape) >= 2
        and param.requires_grad
        and is_plain(param)
    ]
    for name, param in matrices[:: max(1, len(matrices) // _MAX_LAYERS)]:
        some = part(param, _FEW)
        value = float(some[0])
        if value and bool((some == some[0]).all()) and bool((param.detach() == value).all()):
            yield name, weakref.ref(param), value


def _is_alike(weight: torch.Tensor, began: float) -> bool | None:
    """Return whether all slices along a dimension are still equal; None if it moved too little.

    A weight that is multiplied elementwise differs everywhere after a step. If whole rows or
    columns stay equal, their units compute the same, and always will.
    """
    moved = float((weight - began).abs().max())
    if not moved > _MOVED * abs(began) or bool((weight == weight.flatten()[0]).all()):
        return None
    return any(
        float((weight - weight.narrow(dim, 0, 1)).abs().max()) <= _ALIKE * moved
        for dim, size in enumerate(weight.shape)
        if size > 1
    )


def _weights(module: nn.Module, seen: ModelSeen) -> None:
    """Note weights that are initialised with a constant, to zero, or at an unusual scale."""
    named = [(n, m) for n, m in module.named_modules() if isinstance(m, _SCALED)]
    named = [(n, m) for n, m in named if m.weight.requires_grad and is_plain(m.weight)]
    stride = max(1, len(named) // _MAX_LAYERS)
    constant: list[str] = []
    zero: list[str] = []
    scales: list[float] = []
    for name, layer in named[::stride]:
        assert isinstance(layer.weight, torch.Tensor)
        found = spread(layer.weight)
        if layer.weight.numel() > 1 and found.low == found.high:
            (zero if found.low == 0 else constant).append(name or "the layer")
        fan_in = layer.weight[0].numel()
        if fan_in >= 16 and found.size > 0:
            scales.append(found.size * fan_in**0.5)
    seen.num_weights = len(named[::stride])
    seen.constant_weights, seen.zero_weights = tuple(constant), tuple(zero)
    seen.scales = tuple(scales)

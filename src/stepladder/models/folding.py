"""Fold BatchNorm into the convolution before it: one operation instead of two.

In evaluation mode BatchNorm is a scale and a shift per channel, which can be merged into the
convolution's weight and bias. The pairs are found in a real forward pass, not by name: the
BatchNorm's input is the convolution's output, and nothing else reads it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from stepladder.errors import UsageError
from stepladder.models.tf32 import without_tf32

_MAX_ERROR = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Maximum difference of folded outputs, as a fraction of the largest; 5 % in half precision."""


def fold_batchnorm(trunk: nn.Module, *inputs: Any, **named: Any) -> nn.Module:
    """Return an equivalent trunk with its BatchNorm2d layers folded into its Conv2d.

    The trunk does not change. The result shares all tensors with it, except for the folded weights.

    Args:
        trunk: in evaluation mode.
        inputs, named: the trunk's inputs; the first two examples are used to find which layers
            follow each other and to check the result.

    Raises:
        UsageError: if the folded trunk has different outputs.
    """
    device = next(trunk.parameters()).device
    args, kwargs = tree_map(
        lambda leaf: leaf[:2] if isinstance(leaf, Tensor) and leaf.dim() else leaf, (inputs, named)
    )
    with torch.no_grad(), torch.autocast(device.type, enabled=False), without_tf32(device):
        trace, wanted = _trace(trunk, args, kwargs)
        folded = _without(trunk, trace.pairs())
        for ours, theirs in zip(
            tree_leaves(folded(*args, **kwargs)), tree_leaves(wanted), strict=True
        ):
            _require_near(ours, theirs)
    return folded


class FoldedNorm(nn.Sequential):
    """What remains of a folded BatchNorm: nothing, or dropout and activation of timm's.

    Args:
        layers: the remaining layers.
        after: name of the convolution that it was folded into.
    """

    def __init__(self, *layers: nn.Module, after: str) -> None:
        super().__init__(*layers)
        self.after = after


@dataclass(frozen=True)
class Pair:
    """A convolution, and the BatchNorm that is the only reader of its output."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d


@dataclass
class _Trace:
    """How a forward pass used the outputs of convolutions.

    Attributes:
        outputs: output tensors by convolution; kept alive, so that their ids are not reused.
        num_reads: number of operations that read a tensor, by its id.
        plain: weights used by the convolution operations, by id of the output.
        inputs: input tensors by BatchNorm.
    """

    outputs: dict[nn.Conv2d, list[Tensor]] = field(default_factory=dict)
    num_reads: dict[int, int] = field(default_factory=dict)
    plain: dict[int, Tensor] = field(default_factory=dict)
    inputs: dict[nn.BatchNorm2d, list[Tensor | None]] = field(default_factory=dict)

    def pairs(self) -> list[Pair]:
        """Return the pairs that may be folded."""
        made_by = {id(out[0]): conv for conv, out in self.outputs.items() if len(out) == 1}
        pairs = []
        for norm, read in self.inputs.items():
            conv = made_by.get(id(read[0]))
            if conv is None or len(read) > 1 or not _is_known(norm):
                continue
            output = id(read[0])
            if self.num_reads.get(output) == 1 and self.plain.get(output) is conv.weight:
                pairs.append(Pair(conv, norm))
        return pairs


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operations read a convolution's output, and which weight produced it."""

    def __init__(self, trace: _Trace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace = trace
        self._made: dict[int, Tensor] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        trace = self._trace
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and id(leaf) in self._made:
                trace.num_reads[id(leaf)] = trace.num_reads.get(id(leaf), 0) + 1
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.convolution.default:
            self._made[id(result)] = result
            trace.plain[id(result)] = args[1]
        return result


def _trace(trunk: nn.Module, inputs: Any, named: Any) -> tuple[_Trace, Any]:
    trace = _Trace()

    def after_conv(module: nn.Module, _: Any, output: Any) -> None:
        assert isinstance(module, nn.Conv2d)
        trace.outputs.setdefault(module, []).append(output)

    def before_norm(module: nn.Module, args: Any) -> None:
        assert isinstance(module, nn.BatchNorm2d)
        trace.inputs.setdefault(module, []).append(args[0] if args else None)

    hooks = [
        module.register_forward_hook(after_conv)
        for module in trunk.modules()
        if isinstance(module, nn.Conv2d)
    ]
    hooks += [
        module.register_forward_pre_hook(before_norm)
        for module in trunk.modules()
        if isinstance(module, nn.BatchNorm2d)
    ]
    try:
        with _Reads(trace):
            wanted = trunk(*inputs, **named)
    finally:
        for hook in hooks:
            hook.remove()
    return trace, wanted


def _without(trunk: nn.Module, pairs: list[Pair]) -> nn.Module:
    """Copy a trunk with its pairs folded; all other tensors are shared with the trunk."""
    of = {id(module): pair for pair in pairs for module in (pair.conv, pair.norm)}
    memo: dict[int, Any] = {
        id(tensor): tensor for tensor in [*trunk.parameters(), *trunk.buffers()]
    }
    folded = copy.deepcopy(trunk, memo)
    names = {id(module): name for name, module in trunk.named_modules()}
    for name, original in list(trunk.named_modules()):
        pair = of.get(id(original))
        if pair is None:
            continue
        if original is pair.norm:
            rest = folded.get_submodule(name).children()  # of timm's: dropout and activation
            _replace(folded, name, FoldedNorm(*rest, after=names[id(pair.conv)]))
        else:
            _fold_into(folded.get_submodule(name), pair)
    return folded.eval()


def folded_convolution(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """Return a copy of a convolution that computes norm(conv(x)), without timm's activation."""
    folded = copy.deepcopy(conv)
    _fold_into(folded, Pair(conv, norm))
    return folded


def _fold_into(conv: nn.Module, pair: Pair) -> None:
    assert isinstance(conv, nn.Conv2d)
    norm = pair.norm
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        pair.conv.weight,
        pair.conv.bias,
        norm.running_mean,
        norm.running_var,
        norm.eps,
        norm.weight,
        norm.bias,
    )
    layout = torch.channels_last if _is_channels_last(pair.conv.weight) else torch.contiguous_format
    conv.weight = nn.Parameter(weight.contiguous(memory_format=layout), requires_grad=False)
    conv.bias = nn.Parameter(bias, requires_grad=False)


def _is_known(norm: nn.BatchNorm2d) -> bool:
    """Return True for torch's BatchNorm2d, and for timm's with drop and act."""
    if norm.running_mean is None:
        return False
    return type(norm) is nn.BatchNorm2d or set(dict(norm.named_children())) == {"drop", "act"}


def _is_channels_last(weight: Tensor) -> bool:
    return not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(root.get_submodule(parent), own, module)


def _require_near(found: Tensor, wanted: Tensor) -> None:
    limit = _MAX_ERROR.get(wanted.dtype, 0.05) * wanted.abs().max()
    if not bool((found - wanted).abs().max() <= limit):
        raise UsageError(
            "model.fold_batchnorm cannot be used with this model: with its BatchNorm layers merged "
            "into the convolutions, the outputs differ",
            why=f"They differ by up to {float((found - wanted).abs().max()):.3g}.",
            fix="Leave out the option model.fold_batchnorm.",
        )

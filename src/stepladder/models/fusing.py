"""Fuse a convolution and the activation after it, for a folded trunk on the CPU.

A separate activation reads and writes everything the convolution has just written, and asymmetric
padding (TensorFlow's "SAME" with stride 2) copies the whole input. oneDNN applies the activation
within the convolution, and the padding is replaced by symmetric padding, with the extra outputs
dropped. Features stay the same, mostly to the bit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from stepladder.models.folding import FoldedNorm, folded_convolution

_ACTIVATIONS = {nn.ReLU, nn.ReLU6, nn.Hardtanh}
_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout2d)  # in evaluation mode
_MAX_ERROR = 1e-4  # as a fraction of the largest output


def fuse_activations(folded: nn.Module, *args: Any, **kwargs: Any) -> Callable[..., Any] | None:
    """Return a forward of a folded trunk with its activations fused into the convolutions.

    Activations of oneDNN turn NaN into a number, so non-finite inputs use the original trunk, as do
    inputs that oneDNN does not support.

    Args:
        folded: as returned by `fold_batchnorm`; does not change, and its tensors are shared.
        args, kwargs: its inputs; the first two examples are used for a check.

    Returns:
        None if there is nothing to fuse: another device or dtype, no oneDNN, no supported
        convolution, or different results.
    """
    if not all(_is_known_format(tensor) for tensor in folded.parameters()) or not _has_onednn():
        return None
    fused = _shared_copy(folded)
    names = [name for name, part in fused.named_modules() if isinstance(part, FoldedNorm)]
    num_fused = sum(_fuse(fused, name) for name in names)
    few = tree_map(lambda t: t[:2] if isinstance(t, Tensor) and t.dim() else t, (args, kwargs))
    if not num_fused or not _is_suited(few):
        return None
    try:
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            pairs = zip(
                tree_leaves(fused(*few[0], **few[1])),
                tree_leaves(folded(*few[0], **few[1])),
                strict=True,
            )
            is_same = all(_are_near(ours, theirs) for ours, theirs in pairs)
    except RuntimeError:  # the operation exists, but not for this processor
        return None
    if not is_same:
        return None

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (fused if _is_suited((args, kwargs)) else folded)(*args, **kwargs)

    return forward


def fused_convolution(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d | None:
    """Return a copy of a convolution with the BatchNorm after it and timm's activation fused.

    None if a folded trunk would not have them as one operation.
    """
    layers = [layer for layer in norm.children() if not isinstance(layer, _NOTHING)]
    tensors = (*conv.parameters(), *norm.parameters())
    if not _has_onednn() or not all(_is_known_format(tensor) for tensor in tensors):
        return None
    if not _is_fusable(conv, layers):
        return None
    folded = folded_convolution(conv, norm)
    vars(folded)["forward"] = FusedConvolution(folded, layers[0] if layers else None)
    return folded


class FusedConvolution:
    """Replaces the forward of a convolution, and applies the activation too."""

    def __init__(self, conv: nn.Conv2d, activation: nn.Module | None) -> None:
        assert conv.bias is not None
        self._weights = {torch.float32: (conv.weight.detach(), conv.bias.detach())}
        self._stride, self._dilation, self._groups = conv.stride, conv.dilation, conv.groups
        self._padding = None if _is_same_padded(conv) else conv.padding
        self._kernel = conv.kernel_size
        self._operation: tuple[str, list[float]] = ("none", [])
        if isinstance(activation, nn.Hardtanh):  # ReLU6 is one
            self._operation = ("hardtanh", [activation.min_val, activation.max_val])
        elif activation is not None:
            self._operation = ("relu", [])

    def __call__(self, x: Tensor) -> Tensor:
        """Return act(conv(x)); under autocast, in its dtype.

        Shapes: x (n, c, h, w), the result as from the convolution.
        """
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        if dtype not in self._weights:  # autocast would cast again at every call
            weight, bias = self._weights[torch.float32]
            self._weights[dtype] = (weight.to(dtype), bias.to(dtype))
        weight, bias = self._weights[dtype]
        if self._padding is not None:
            return self._convolve(x.to(dtype), weight, bias, self._padding)
        sizes = tuple(x.shape[-2:])
        sides = [self._same_padding(dim, size) for dim, size in enumerate(sizes)]
        y = self._convolve(x.to(dtype), weight, bias, tuple(padding for padding, _ in sides))
        for dim, (_, first) in enumerate(sides):
            length = -(-sizes[dim] // self._stride[dim])
            y = y.narrow(2 + dim, first, length)
        return y

    def _convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor, padding: str | tuple[int, ...]
    ) -> Tensor:
        kind, numbers = self._operation
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, weight, bias, padding, self._stride, self._dilation, self._groups, kind, numbers, ""
        )
        return y

    def _same_padding(self, dim: int, size: int) -> tuple[int, int]:
        """Return the symmetric padding, and the index of the first output of the result.

        The result has ceil(size / stride) outputs; the smaller half of the padding for this is in
        front. Each additional stride of padding in front only adds an output there.
        """
        stride = self._stride[dim]
        reach = (self._kernel[dim] - 1) * self._dilation[dim] + 1
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        num_more = -(-(total - 2 * (total // 2)) // stride)
        return total // 2 + num_more * stride, num_more


def _are_near(ours: Tensor, theirs: Tensor) -> bool:
    return bool((ours - theirs).abs().max() <= _MAX_ERROR * theirs.abs().max())


def _fuse(fused: nn.Module, name: str) -> bool:
    """Fuse the remaining layers of a folded BatchNorm into the convolution before it."""
    rest = fused.get_submodule(name)
    assert isinstance(rest, FoldedNorm)
    conv = fused.get_submodule(rest.after)
    layers = [layer for layer in rest if not isinstance(layer, _NOTHING)]
    if not isinstance(conv, nn.Conv2d) or not _is_fusable(conv, layers):
        return False
    vars(conv)["forward"] = FusedConvolution(conv, layers[0] if layers else None)
    while len(rest):
        del rest[-1]
    return True


def _is_fusable(conv: nn.Conv2d, layers: list[nn.Module]) -> bool:
    is_known = len(layers) <= 1 and all(type(layer) in _ACTIVATIONS for layer in layers)
    return is_known and _is_known_conv(conv)


def _is_known_conv(conv: nn.Conv2d) -> bool:
    is_plain = type(conv) is nn.Conv2d and conv.padding_mode == "zeros"
    return "forward" not in vars(conv) and (
        (is_plain and not isinstance(conv.padding, str)) or _is_same_padded(conv)
    )


def _is_same_padded(conv: nn.Conv2d) -> bool:
    """Return True if a convolution is timm's with TensorFlow padding."""
    return type(conv).__name__ == "Conv2dSame" and type(conv).__module__.startswith("timm.")


def _is_known_format(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.dtype is torch.float32


def _has_onednn() -> bool:
    is_built_in: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_built_in and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


def _is_suited(inputs: Any) -> bool:
    """Return True if the fused operations can be used for these inputs now."""
    if not torch.backends.mkldnn.enabled:
        return False
    if torch.is_autocast_enabled("cpu") and not (
        torch.get_autocast_dtype("cpu") is torch.bfloat16
        and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        return False
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    return all(
        leaf.device.type == "cpu" and not (leaf.is_floating_point() and not leaf.isfinite().all())
        for leaf in leaves
    )


def _shared_copy(module: nn.Module) -> nn.Module:
    """Copy the layers, and share the tensors."""
    memo: dict[int, Any] = {id(t): t for t in [*module.parameters(), *module.buffers()]}
    return copy.deepcopy(module, memo)

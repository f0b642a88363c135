"""Layers whose curvature is a Kronecker product: of what goes in, and of the gradient that returns.

For N examples of a step and R places in each (of an image, of a sequence), with inputs a and the
gradient g of the step's mean loss at each place:

    A = sum of a a^T / (N R),   G = N sum of g g^T,   curvature of the weights ~ G (x) A

Source: Martens and Grosse 2015, "Optimizing Neural Networks with Kronecker-factored Approximate
Curvature", arXiv:1503.05671; convolutions: Grosse and Martens 2016, arXiv:1602.01407; sequences
("expand"): Eschenhagen et al. 2023, arXiv:2311.00636.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.optim.contract import HasParameters


@dataclass
class Sums:
    """What has been seen of a layer since the last step.

    Attributes:
        inputs: sum of a a^T, shape (num_in, num_in).
        grads: sum of g g^T, shape (num_out, num_out).
        places: number of rows a, N R, as a tensor.
        examples: N, as a tensor.
    """

    inputs: Tensor
    grads: Tensor
    places: Tensor
    examples: Tensor

    @classmethod
    def none(cls, layer: Layer) -> Sums:
        """Return the sums of nothing."""
        weight = layer.weight
        dtype = factor_dtype(weight)
        square_in, square_out = (
            torch.zeros(size, size, dtype=dtype, device=weight.device)
            for size in (layer.num_in, layer.num_out)
        )
        places, examples = torch.zeros(2, dtype=dtype, device=weight.device)
        return cls(inputs=square_in, grads=square_out, places=places, examples=examples)


@dataclass
class Layer:
    """A Linear or Conv2d layer that learns.

    Attributes:
        name: of the module.
        sums: since the last step.
    """

    name: str
    module: nn.Linear | nn.Conv2d
    sums: Sums | None = field(default=None, repr=False)

    @property
    def weight(self) -> nn.Parameter:
        """The weights, which have the state of the layer."""
        return cast("nn.Parameter", self.module.weight)

    @property
    def bias(self) -> nn.Parameter | None:
        """The bias, if it learns: one more input, of 1."""
        bias = cast("nn.Parameter | None", self.module.bias)
        return bias if bias is not None and bias.requires_grad else None

    @property
    def num_in(self) -> int:
        """Inputs of an output, with that of the bias."""
        return self.weight[0].numel() + (self.bias is not None)

    @property
    def num_out(self) -> int:
        """Outputs."""
        return self.weight.shape[0]

    def add(self, inputs: Tensor, grads: Tensor) -> None:
        """Add a pass to the sums, unless it has no gradient: then it does not count.

        Shapes: inputs (N, ..., in) or (N, C, H, W), grads (N, ..., out) or (N, out, H', W').
        """
        if self.sums is None:
            self.sums = Sums.none(self)
        sums = self.sums
        dtype = sums.inputs.dtype
        a, g = self._input_rows(inputs).to(dtype), self._grad_rows(grads).to(dtype)
        if self.bias is not None:
            a = torch.cat([a, a.new_ones(len(a), 1)], dim=1)
        squares = g.T @ g
        counts = (squares.diagonal().sum() != 0).to(dtype)  # NaN counts, and is found later
        sums.inputs.add_(counts * (a.T @ a))
        sums.grads.add_(squares)
        sums.places.add_(counts, alpha=len(a))
        sums.examples.add_(counts, alpha=len(inputs))

    def gradient(self) -> Tensor | None:
        """Return the gradient of weights and bias, shape (num_out, num_in); None: it has none."""
        if self.weight.grad is None:
            return None
        parts = [self.weight.grad.reshape(self.num_out, -1)]
        if self.bias is not None:
            if self.bias.grad is None:
                return None
            parts.append(self.bias.grad[:, None])
        return torch.cat(parts, dim=1).to(factor_dtype(self.weight))

    def split(self, step: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        """Return the parts of a step, shape (num_out, num_in), of weights and bias."""
        weight, bias = self.weight, self.bias
        if bias is None:
            return [(weight, step.reshape(weight.shape).to(weight.dtype))]
        return [
            (weight, step[:, :-1].reshape(weight.shape).to(weight.dtype)),
            (bias, step[:, -1].to(bias.dtype)),
        ]

    def _input_rows(self, inputs: Tensor) -> Tensor:
        module = self.module
        if isinstance(module, nn.Linear):
            return inputs.reshape(-1, inputs.shape[-1])
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        padded = F.pad(inputs, module._reversed_padding_repeated_twice, mode=mode)
        patches = F.unfold(
            padded.float() if padded.dtype.itemsize < 4 else padded,
            module.kernel_size,
            dilation=module.dilation,
            stride=module.stride,
        )
        return patches.transpose(1, 2).reshape(-1, patches.shape[1])

    def _grad_rows(self, grads: Tensor) -> Tensor:
        if isinstance(self.module, nn.Conv2d):
            grads = grads.movedim(1, -1)
        return grads.reshape(-1, grads.shape[-1])


def layers_of(model: HasParameters, weights: set[nn.Parameter]) -> tuple[list[Layer], list[str]]:
    """Return the layers that have a Kronecker product, and the names of the other weights.

    Args:
        weights: those that learn.

    Left out: convolutions in groups, a weight that several layers share, and one whose bias alone
    learns.
    """
    modules = list(model.named_modules()) if isinstance(model, nn.Module) else []
    uses: dict[Tensor, int] = {}
    for _, module in modules:
        for weight in module.parameters(recurse=False):
            uses[weight] = uses.get(weight, 0) + 1
    found = [
        Layer(name=name, module=module)
        for name, module in modules
        if isinstance(module, nn.Linear | nn.Conv2d)
        and module.weight in weights
        and uses[module.weight] == 1
        and (isinstance(module, nn.Linear) or module.groups == 1)
    ]
    taken = {layer.weight for layer in found} | {layer.bias for layer in found}
    others = [
        name
        for name, weight in model.named_parameters()
        if weight in weights and weight not in taken
    ]
    return found, others


def factor_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of factors: never half, in which small eigenvalues are lost."""
    return torch.float64 if weight.dtype is torch.float64 else torch.float32

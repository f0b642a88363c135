"""Muon: a momentum whose singular values are all made alike; vectors take steps of AdamW."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import (
    BatchRule,
    Decay,
    Group,
    OptimizerSpec,
    OwnOptimizer,
    Setup,
)
from stepladder.optim.matrices import IS_MATRIX, as_matrix, matrix_groups, require_whole
from stepladder.optim.moments import adam_defaults, adam_step

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5
_EPS: Final = 1e-7
_AS_ADAM: Final = 0.2


class Muon(OwnOptimizer):
    """Move matrices along their momentum, with singular values of about 1.

        m' = momentum m + (1 - momentum) g,   step = 0.2 sqrt(max(rows, columns)) orthogonal(m'')

    in which m'' looks one step ahead, as Nesterov's. The factor gives the step the size of one of
    AdamW, so that one learning rate serves both: vectors take steps of AdamW. Kernels of
    convolutions are matrices with a row for each output; embeddings are matrices like others.

    Source: Jordan et al. 2024, "Muon", kellerjordan.github.io/posts/muon; the factor: Liu et al.
    2025, "Muon is Scalable for LLM Training", arXiv:2502.16982.
    """

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if group[IS_MATRIX]:
                    step = _orthogonal_step(weight.grad, self.state[weight], group)
                else:
                    step = adam_step(weight.grad, self.state[weight], group)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(step, alpha=-group["lr"])


def _orthogonal_step(grad: Tensor, state: dict[str, Any], group: Group) -> Tensor:
    if not state:
        state["momentum_buffer"] = torch.zeros_like(grad)
    momentum = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
    ahead = as_matrix(torch.lerp(grad, momentum, group["momentum"]))
    size = _AS_ADAM * max(ahead.shape) ** 0.5
    step: Tensor = size * orthogonal(ahead).reshape(grad.shape)
    return step


def orthogonal(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors, and values of about 1, 0.7 to 1.2.

    Five iterations of Newton and Schulz, x' = a x + b x³ + c x⁵ of each singular value, in the
    precision of the matrix.

    Shapes: (rows, columns).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if is_tall else matrix
    x = x / (x.norm() + _EPS)
    for _ in range(_ITERATIONS):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if is_tall else x


def _construct(setup: Setup) -> torch.optim.Optimizer:
    defaults = adam_defaults(setup) | {"momentum": setup.config.momentum}
    optimizer = Muon(setup.groups, defaults)
    require_whole("Muon", (one for group in optimizer.param_groups for one in group["params"]))
    return optimizer


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    if weight.dim() < 2:
        step = grad / (grad.abs() + config.eps)
    else:
        left, values, right = torch.linalg.svd(grad, full_matrices=False)
        values = values / values.norm()
        for _ in range(_ITERATIONS):
            powers = zip(_COEFFICIENTS, (1, 3, 5), strict=True)
            values = sum(factor * values**power for factor, power in powers)
        step = _AS_ADAM * max(weight.shape) ** 0.5 * (left * values) @ right
    moved: Tensor = weight * (1 - lr * decay) - lr * step
    return moved


MUON = OptimizerSpec(
    name=OptimizerName.MUON,
    title="Muon",
    construct=_construct,
    first_step=_first_step,
    options=("momentum", "beta1", "beta2", "eps"),
    usual_lr=1e-3,
    most_lr=0.03,
    is_scale_free=True,
    batch_rule=BatchRule(lr_powers=(0.5,), follows_noise_scale=False, warmup_from=None),
    decay=Decay.DECOUPLED,
    groups=matrix_groups,
    is_elementwise=False,
    uses_curvature=True,
)

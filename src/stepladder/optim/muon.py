"""Muon: a momentum whose singular values are all made alike; vectors take steps of AdamW."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import (
    BatchRule,
    Decay,
    Group,
    Named,
    OptimizerSpec,
    OwnOptimizer,
    Setup,
)
from stepladder.optim.whole import as_matrix, require_whole

_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5
_EPS: Final = 1e-7
_AS_ADAM: Final = 0.2
_MATRIX: Final = "is_matrix"


class Muon(OwnOptimizer):
    """Move matrices along their momentum, with singular values of about 1.

        m' = momentum m + (1 - momentum) g,   step = 0.2 sqrt(max(rows, columns)) orthogonal(m'')

    in which m'' looks one step ahead, as Nesterov's. The factor gives the step the size of one of
    AdamW, so that one learning rate serves both: vectors and embeddings take steps of AdamW.
    Kernels of convolutions are matrices with a row for each output.

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
                rule = self._orthogonal if group[_MATRIX] else self._adam
                step = rule(weight, group)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(step, alpha=-group["lr"])

    def _orthogonal(self, weight: nn.Parameter, group: Group) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum = state["momentum_buffer"].lerp_(weight.grad, 1 - group["momentum"])
        ahead = as_matrix(torch.lerp(weight.grad, momentum, group["momentum"]))
        size = _AS_ADAM * max(ahead.shape) ** 0.5
        step: Tensor = size * orthogonal(ahead).reshape(weight.shape)
        return step

    def _adam(self, weight: nn.Parameter, group: Group) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if not state:
            state["step"] = 0.0
            state["exp_avg"] = torch.zeros_like(weight)
            state["exp_avg_sq"] = torch.zeros_like(weight)
        state["step"] += 1.0
        mean = state["exp_avg"].lerp_(weight.grad, 1 - group["beta1"])
        square = state["exp_avg_sq"].lerp_(weight.grad.square(), 1 - group["beta2"])
        below = (square / (1 - group["beta2"] ** state["step"])).sqrt_().add_(group["eps"])
        step: Tensor = (mean / (1 - group["beta1"] ** state["step"])).div_(below)
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


def _groups(config: OptimizerConfig, learning: Named) -> list[Group]:
    """Return matrices, which decay, and vectors, which do not."""
    parts = {
        is_matrix: [(name, weight) for name, weight in learning if (weight.dim() >= 2) is is_matrix]
        for is_matrix in (True, False)
    }
    return [
        {
            "params": members,
            "weight_decay": config.weight_decay if is_matrix else 0.0,
            _MATRIX: is_matrix,
        }
        for is_matrix, members in parts.items()
        if members
    ]


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    defaults = {
        "lr": setup.lr,
        "momentum": config.momentum,
        "beta1": config.beta1,
        "beta2": config.beta2,
        "eps": config.eps,
    }
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
    groups=_groups,
    is_elementwise=False,
)

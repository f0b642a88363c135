"""SOAP: Adam in the directions in which the gradients of a matrix differ most."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import BatchRule, Decay, OptimizerSpec, OwnOptimizer, Setup
from stepladder.optim.curvature.inverses import decomposed
from stepladder.optim.matrices import as_matrix, require_whole
from stepladder.optim.moments import adam_defaults, adam_step

MOST: Final = 4096
"""Rows or columns up to which a side of a matrix is rotated."""
_SIDES: Final = ("rows", "columns")


class Soap(OwnOptimizer):
    """Take steps of AdamW in the eigenbasis of Shampoo's two matrices.

        L = mean of g g^T,  R = mean of g^T g,   g' = Q_L^T g Q_R,   step = Q_L adam(g') Q_R^T

    The means are exponential, with `factor_decay`. The bases are renewed after the first step and
    every `inverse_every` steps: first by eigenvectors, then by one step of an orthogonal iteration.
    The first step is Adam's, and vectors take steps of Adam only. The mean of the gradients is kept
    as it is and rotated in each step; that of their squares is kept in the basis.

    Source: Vyas et al. 2024, "SOAP: Improving and Stabilizing Shampoo using Adam", Alg. 3,
    arXiv:2409.11321.
    """

    unlike_weight: ClassVar[frozenset[str]] = frozenset(
        {f"{kind}_{side}" for kind in ("factor", "basis") for side in _SIDES}
    )

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                step = adam_step(weight.grad, state, group, partial(_rotated, state=state))
                step = _rotated(step, state, back=True)
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(step, alpha=-group["lr"])
                if weight.dim() >= 2:
                    _learn(as_matrix(weight.grad), state, group)


def _rotated(tensor: Tensor, state: dict[str, Any], *, back: bool = False) -> Tensor:
    """Return a tensor in the basis, or from it back."""
    if tensor.dim() < 2:
        return tensor
    matrix = as_matrix(tensor)
    if "basis_rows" in state:
        rows = state["basis_rows"]
        matrix = (rows if back else rows.T) @ matrix
    if "basis_columns" in state:
        columns = state["basis_columns"]
        matrix = matrix @ (columns.T if back else columns)
    return matrix.reshape(tensor.shape)


def _learn(grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Mix a gradient into the two matrices, and renew their bases if it is time."""
    is_due = state["step"] == 1 or state["step"] % group["inverse_every"] == 0
    for side, square in zip(_SIDES, (grad @ grad.T, grad.T @ grad), strict=True):
        if len(square) > MOST:
            continue
        factor, basis = f"factor_{side}", f"basis_{side}"
        if factor not in state:
            state[factor] = square
        else:
            state[factor].lerp_(square, 1 - group["factor_decay"])
        if not is_due:
            continue
        if basis in state:
            state[basis] = torch.linalg.qr(state[factor] @ state[basis]).Q
        else:
            found = decomposed(state[factor])
            if found is not None:
                state[basis] = found[1].flip(1).contiguous()  # the largest first, as QR keeps them


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    own = {"factor_decay": config.factor_decay, "inverse_every": config.inverse_every}
    defaults = adam_defaults(setup) | own
    optimizer = Soap(setup.groups, defaults)
    require_whole("SOAP", (one for group in optimizer.param_groups for one in group["params"]))
    return optimizer


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    return weight * (1 - lr * decay) - lr * grad / (grad.abs() + config.eps)


def _state_numbers(weight: Tensor) -> int:
    """Return the numbers of Adam's state, and of two matrices and two bases."""
    if weight.dim() < 2:
        return 2 * weight.numel()
    sides = (size for size in as_matrix(weight).shape if size <= MOST)
    return 2 * weight.numel() + 2 * sum(size**2 for size in sides)


SOAP = OptimizerSpec(
    name=OptimizerName.SOAP,
    title="SOAP",
    construct=_construct,
    first_step=_first_step,
    options=("beta1", "beta2", "eps", "factor_decay", "inverse_every"),
    usual_lr=3e-3,
    most_lr=0.1,
    is_scale_free=True,
    batch_rule=BatchRule(lr_powers=(0.5,), follows_noise_scale=False, warmup_from=None),
    decay=Decay.DECOUPLED,
    is_elementwise=False,
    uses_curvature=True,
    state_numbers=_state_numbers,
)

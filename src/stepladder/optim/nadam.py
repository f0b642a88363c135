"""NAdam with decoupled weight decay: torch's, or on the CPU in two passes instead of ten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.adam import ADAM
from stepladder.optim.contract import Decay, OwnOptimizer, Setup
from stepladder.optim.scalars import as_numbers_, as_tensors_

_FUSED_DTYPES = (torch.float32, torch.float64)
_MIN_BETA1 = 0.5  # below it the momentum cannot be recovered from the kernel's to rounding


def nadam_update_(
    params: list[Tensor],
    grads: list[Tensor],
    momenta: list[Tensor],
    squares: list[Tensor],
    *,
    step: float,
    lr: float,
    grad_rate: float,
    momentum_rate: float,
    beta1: float,
    beta2: float,
    eps: float,
) -> None:
    """Take one NAdam step in place, by the momentum and the current gradient.

        m' = beta1 m + (1 - beta1) g,   v' = beta2 v + (1 - beta2) g^2
        w' = w - lr (a g + b m') / (sqrt(v' / (1 - beta2^t)) + eps)

    With c = b / (a + b) x beta1, a g + b m' is a + b times x = c m + (1 - c) g: the momentum that
    Adam's kernel computes and steps by, with c as its beta1. Its division by 1 - c^t is undone by
    the learning rate passed to it. x becomes m' = x - a / b (g - x), which loses digits only if
    beta1 is small.

    Args:
        step: t, from 1.
        grad_rate, momentum_rate: a and b.

    Shapes: the tensors at the same index of the lists are equal, any rank, dense, same strides.
    Source: Dozat 2016, "Incorporating Nesterov Momentum into Adam", Alg. 8.
    """
    rate = grad_rate + momentum_rate
    share = momentum_rate / rate * beta1
    torch._fused_adam_(
        params,
        grads,
        momenta,
        squares,
        [],
        [torch.tensor(step, dtype=torch.float32)] * len(params),
        lr=lr * rate * (1 - share**step),
        beta1=share,
        beta2=beta2,
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    torch._foreach_lerp_(momenta, grads, -grad_rate / momentum_rate)


class NAdam(OwnOptimizer, torch.optim.NAdam):
    """torch.optim.NAdam with Adam's fused kernel; equal up to rounding.

    Options and state are torch's, and each loads the state of the other; here `step` and
    `mu_product` are numbers. Torch's own step is used for weights on a GPU, where it already needs
    few multi-tensor kernels; for half and complex numbers and sparse gradients, which the kernel
    does not support like torch's step; for gradients with other strides than their weight; for a
    beta1 below 0.5; and with `maximize`, `capturable` and `differentiable`.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state unchanged: torch's method would round the numbers."""
        torch.optim.Optimizer.__setstate__(self, state)

    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        with torch.no_grad():
            peers = [self._peers(group) for group in self.param_groups]
            if None in peers:
                for state in self.state.values():
                    as_tensors_(state)
                torch.optim.NAdam.step(self)
                return
            for group, members in zip(self.param_groups, peers, strict=True):
                for some in members or ():
                    _step_peers_(group, some)

    def _peers(self, group: dict[str, Any]) -> Iterable[_Peers] | None:
        """Group the weights by number of steps; None if torch's step is needed."""
        if group["maximize"] or group["capturable"] or group["differentiable"]:
            return None
        if group["betas"][0] < _MIN_BETA1:
            return None
        found: dict[tuple[float, float], _Peers] = {}
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            state = self.state[param]
            if "step" not in state:
                state["step"], state["mu_product"] = 0.0, 1.0
                state["exp_avg"] = torch.zeros_like(param)
                state["exp_avg_sq"] = torch.zeros_like(param)
            if type(state["step"]) is not float:
                as_numbers_(state)
            if not _is_fusible(param, grad, state):
                return None
            key = state["step"], state["mu_product"]
            if key not in found:
                found[key] = _Peers()
            found[key].params.append(param)
            found[key].grads.append(grad)
            found[key].states.append(state)
        return found.values()


@dataclass(slots=True)
class _Peers:
    """Weights of a group with the same number of steps."""

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Any]] = field(default_factory=list)


def _is_fusible(param: Tensor, grad: Tensor, state: dict[str, Any]) -> bool:
    if not (param.is_cpu and param.dtype in _FUSED_DTYPES and grad.layout is torch.strided):
        return False
    strides = param.stride()
    is_alike = (
        strides == grad.stride()
        and strides == state["exp_avg"].stride()
        and strides == state["exp_avg_sq"].stride()
    )
    return is_alike and (param.is_contiguous() or _is_channels_last(param))


def _is_channels_last(param: Tensor) -> bool:
    return param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last)


def _step_peers_(group: dict[str, Any], peers: _Peers) -> None:
    beta1, beta2 = group["betas"]
    lr, decay = float(group["lr"]), group["weight_decay"]
    step = peers.states[0]["step"] + 1.0
    mu, mu_next = (
        beta1 * (1.0 - 0.5 * 0.96 ** (t * group["momentum_decay"])) for t in (step, step + 1)
    )
    mu_product = peers.states[0]["mu_product"] * mu
    for state in peers.states:
        state["step"], state["mu_product"] = step, mu_product
    grads = peers.grads
    if decay and group["decoupled_weight_decay"]:
        torch._foreach_mul_(peers.params, 1 - lr * decay)
    elif decay:
        grads = list(torch._foreach_add(grads, peers.params, alpha=decay))
    nadam_update_(
        peers.params,
        grads,
        [state["exp_avg"] for state in peers.states],
        [state["exp_avg_sq"] for state in peers.states],
        step=step,
        lr=lr,
        grad_rate=(1 - mu) / (1 - mu_product),
        momentum_rate=mu_next / (1 - mu_product * mu_next),
        beta1=beta1,
        beta2=beta2,
        eps=group["eps"],
    )


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    return (NAdam if config.fused else torch.optim.NAdam)(
        setup.groups,
        lr=setup.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        decoupled_weight_decay=True,
    )


def _first_step(
    weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
) -> Tensor:
    mu1, mu2 = (config.beta1 * (1 - 0.5 * 0.96 ** (t * 0.004)) for t in (1, 2))  # as torch's
    momentum = (1 - config.beta1) * grad
    ahead = grad + mu2 / (1 - mu1 * mu2) * momentum
    step: Tensor = ahead / (grad.abs() + config.eps)
    return weight * (1 - lr * decay) - lr * step


NADAM = replace(
    ADAM,
    name=OptimizerName.NADAM,
    title="NAdam",
    construct=_construct,
    first_step=_first_step,
    decay=Decay.DECOUPLED,
    fused_on=frozenset({"cpu"}),  # on a GPU, torch's multi-tensor step is used
)

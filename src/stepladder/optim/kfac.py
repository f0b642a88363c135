"""K-FAC: steps by the curvature of each layer, as a product of two small matrices."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim.contract import (
    BatchRule,
    Decay,
    Group,
    HasParameters,
    OptimizerSpec,
    OwnOptimizer,
    Setup,
)
from stepladder.optim.curvature.inverses import damped_inverses, decomposed
from stepladder.optim.curvature.layers import Layer, Sums, factor_dtype, layers_of
from stepladder.optim.matrices import require_whole

FACTOR_IN, FACTOR_OUT = "factor_in", "factor_out"
_CHOLESKY: Final = ("inverse_in", "inverse_out")
_EIGEN: Final = ("vectors_in", "values_in", "vectors_out", "values_out")
_STEP: Final = "step"
Loss = Literal["cross_entropy", "binary_cross_entropy", "squared_error"]


class Kfac(OwnOptimizer):
    """SGD with momentum along the gradient divided by the curvature of each layer.

        step = G^-1 (gradient) A^-1,   scaled so that lr² step x curvature x step is at most kl_clip

    Linear and Conv2d layers are seen by hooks, in steps of training mode. What else learns, such as
    norms and embeddings, takes plain steps (`others` has the names). The curvature is that of the
    gradients of the training loss (the empirical Fisher), which has to be a mean over the examples
    of a step, also in several passes; `observe` takes that of sampled labels (the Fisher) instead.
    Weight decay is decoupled.

        optimizer = stepladder.optim.KFAC(model, lr=0.03)

    With several processes (DistributedDataParallel), each inverts its share of the factors.

    Args:
        model: whose weights learn.
        lr: learning rate.
        groups: of the weights, as for other optimizers; None: all weights that learn.
        damping: added to the curvature.
        kl_clip: limit of a step; lower is more careful.
        factor_decay: share of the former factors that is kept; less in the first steps.
        factor_every, inverse_every: steps between two updates of the factors, and of the inverses,
            which are also made after 1, 2, 4, … steps.
        inverse: by Cholesky's decomposition, with the damping divided between the two factors; or
            by eigenvectors, with the damping of their product, which takes longer.
        process_group: the ranks that train together; default: all, if there are any; None: this
            process alone.

    Raises:
        UsageError: if the model is divided among devices.

    Source: Martens and Grosse 2015, arXiv:1503.05671; kl_clip: Ba et al. 2017, "Distributed
    Second-Order Optimization using Kronecker-Factored Approximations", section 5.2.
    """

    unlike_weight: ClassVar[frozenset[str]] = frozenset(
        {FACTOR_IN, FACTOR_OUT, *_CHOLESKY, *_EIGEN}
    )

    def __init__(
        self,
        model: HasParameters,
        lr: float,
        *,
        groups: Iterable[Group] | None = None,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        damping: float = 1e-3,
        kl_clip: float = 1e-3,
        factor_decay: float = 0.95,
        factor_every: int = 1,
        inverse_every: int = 10,
        inverse: Literal["cholesky", "eigen"] = "cholesky",
        process_group: dist.ProcessGroup | Literal["default"] | None = "default",
    ) -> None:
        learning = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
        super().__init__(
            [{"params": learning}] if groups is None else groups,
            {
                "lr": lr,
                "momentum": momentum,
                "weight_decay": weight_decay,
                "damping": damping,
                "kl_clip": kl_clip,
                "factor_decay": factor_decay,
                "factor_every": factor_every,
                "inverse_every": inverse_every,
            },
        )
        weights = {weight for group in self.param_groups for weight in group["params"]}
        require_whole("K-FAC", weights)
        if process_group == "default":
            is_open = dist.is_available() and dist.is_initialized()
            process_group = dist.group.WORLD if is_open else None
        self._process_group = process_group
        self._inverse = inverse
        self._is_sampled, self._is_observing = False, False
        self._reported: set[str] = set()
        self.layers, self.others = layers_of(model, weights)
        for layer in self.layers:
            _hook(layer, self)

    @property
    def is_due(self) -> bool:
        """Whether the factors are updated in this step."""
        return not self._num_steps % int(self.param_groups[0]["factor_every"])

    def observe(self, outputs: Tensor, loss: Loss = "cross_entropy") -> None:
        """Take the curvature of the model's own predictions, before `backward` of the true loss.

        Labels are sampled from the outputs; their gradients go into the factors, and those of the
        training loss no longer do. Costs another backward pass in steps that update the factors.

        Args:
            outputs: of the model: logits of classes, (N, classes) or (N, classes, ...), logits of
                independent labels, or means, (N, ...).
            loss: of which the mean over examples is trained: the cross-entropy, the sum of binary
                ones, or half the squared distance.
        """
        self._is_sampled = True
        if not self.is_due:
            return
        labels = _sampled(outputs.detach(), loss)
        with torch.enable_grad():
            total = _summed(outputs, labels, loss)
            seen = [layer.weight for layer in self.layers]
            self._is_observing = True
            try:
                torch.autograd.grad(
                    total / len(outputs), seen, retain_graph=True, allow_unused=True
                )
            finally:
                self._is_observing = False

    def wants(self) -> bool:
        """Whether gradients that pass now belong to the factors."""
        return self.is_due and self._is_sampled is self._is_observing

    @torch.no_grad()
    def take_step(self) -> None:
        """Take one step; weights without a gradient do not change."""
        if self.is_due:
            self._update_factors()
        if self._is_inverted():
            self._update_inverses()
        steps = self._steps()
        for group in self.param_groups:
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                step = steps.get(weight, weight.grad)
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                state["momentum_buffer"].mul_(momentum).add_(step)
                if decay:
                    weight.mul_(1 - lr * decay)
                weight.add_(state["momentum_buffer"], alpha=-lr)
        for layer in self.layers:
            layer.sums = None
            self.state[layer.weight][_STEP] = self.state[layer.weight].get(_STEP, 0.0) + 1.0

    def _is_inverted(self) -> bool:
        """Return whether the factors are inverted in this step: more often while they are new."""
        step, every = self._num_steps, int(self.param_groups[0]["inverse_every"])
        return step % every == 0 or (step < every and step & (step - 1) == 0)

    @property
    def _num_steps(self) -> int:
        """Steps so far: those of the first layer, as all layers count alike."""
        if not self.layers:
            return 0
        return int(self.state.get(self.layers[0].weight, {}).get(_STEP, 0.0))

    def _steps(self) -> Mapping[nn.Parameter, Tensor]:
        """Return the steps of the layers whose curvature is known, before the learning rate."""
        found: dict[nn.Parameter, Tensor] = {}
        changes: list[Tensor] = []
        for layer in self.layers:
            state, gradient = self.state[layer.weight], layer.gradient()
            if gradient is None:
                continue
            if _CHOLESKY[0] in state:
                step = state[_CHOLESKY[1]] @ gradient @ state[_CHOLESKY[0]]
            elif _EIGEN[0] in state:
                vectors_in, values_in, vectors_out, values_out = (state[key] for key in _EIGEN)
                rotated = vectors_out.T @ gradient @ vectors_in
                damping = self.param_groups[0]["damping"]
                step = vectors_out @ (rotated / (values_out[:, None] * values_in + damping))
                step = step @ vectors_in.T
            else:
                continue
            changes.append((step * gradient).sum())
            found.update(layer.split(step))
        if not found:
            return found
        first = self.param_groups[0]
        change = torch.stack(changes).sum()
        limit = first["kl_clip"] / (first["lr"] ** 2 * change).clamp(min=1e-30)
        scale = limit.sqrt().clamp(max=1)
        return {weight: step * scale.to(step.dtype) for weight, step in found.items()}

    def _update_factors(self) -> None:
        """Mix what was seen in this step, by all ranks, into the factors."""
        sums = [layer.sums or Sums.none(layer) for layer in self.layers]
        world = 1
        if self._process_group is not None:
            world = dist.get_world_size(self._process_group)
            _add_up_(
                [t for one in sums for t in (one.inputs, one.grads, one.places, one.examples)],
                self._process_group,
            )
        if not sums:
            return
        counts = torch.stack([one.places.cpu() for one in sums]).tolist()
        options = self.param_groups[0]
        num = self._num_steps // options["factor_every"]  # at first, a plain mean
        decay = min(1 - 1 / (num + 1), options["factor_decay"])
        for layer, one, count in zip(self.layers, sums, counts, strict=True):
            if count == 0:
                continue
            # a rank's loss is the mean over its own examples, as DistributedDataParallel expects
            news = (one.inputs / one.places, one.grads * (one.examples / world**2))
            if not all(bool(torch.isfinite(new).all()) for new in news):
                self._report(layer, "its factors are not finite, so it keeps the former ones")
                continue
            state = self.state[layer.weight]
            for key, new in zip((FACTOR_IN, FACTOR_OUT), news, strict=True):
                if key in state:
                    state[key].lerp_(new, 1 - decay)
                else:
                    state[key] = new

    def _update_inverses(self) -> None:
        """Invert the factors, each rank its share of them."""
        group = self._process_group
        world = 1 if group is None else dist.get_world_size(group)
        rank = 0 if group is None else dist.get_rank(group)
        owners = _shares(self.layers, world)
        for layer, owner in zip(self.layers, owners, strict=True):
            state = self.state[layer.weight]
            if FACTOR_IN not in state:
                continue
            if owner == rank:
                found = self._inverted(layer, state)
            else:
                found = {key: _empty(layer, key) for key in self._keys}
            if group is not None:
                _send_(found, dist.get_global_rank(group, owner), group)
            if all(bool(torch.isfinite(one).all()) for one in found.values()):
                state.update(found)
            else:
                self._report(layer, "its factors cannot be inverted, so it takes plain steps")
                for key in self._keys:
                    state.pop(key, None)

    @property
    def _keys(self) -> tuple[str, ...]:
        return _CHOLESKY if self._inverse == "cholesky" else _EIGEN

    def _inverted(self, layer: Layer, state: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the inverses; of NaN if the factors have no inverse, so that all ranks know."""
        factors = state[FACTOR_IN], state[FACTOR_OUT]
        found: tuple[Tensor, ...] | None
        if self._inverse == "cholesky":
            found = damped_inverses(*factors, self.param_groups[0]["damping"])
        else:
            found = _both(*(decomposed(factor) for factor in factors))
        if found is None:
            return {key: _empty(layer, key).fill_(torch.nan) for key in self._keys}
        return {key: one.contiguous() for key, one in zip(self._keys, found, strict=True)}

    def _report(self, layer: Layer, what: str) -> None:
        if layer.name not in self._reported:
            self._reported.add(layer.name)
            warnings.warn(f"K-FAC, layer {layer.name}: {what}", stacklevel=2)


def _sampled(outputs: Tensor, loss: Loss) -> Tensor:
    """Return labels, drawn from what the outputs predict; any, where these are not finite.

    The loss shows that a training diverges; a script that checks it has to get there.
    """
    if loss == "squared_error":
        return outputs + torch.randn_like(outputs)
    if loss == "binary_cross_entropy":
        return torch.bernoulli(outputs.sigmoid().nan_to_num(nan=0.5))
    chances = outputs.movedim(1, -1).softmax(dim=-1)
    rows = chances.reshape(-1, chances.shape[-1]).nan_to_num(nan=1.0)
    return torch.multinomial(rows, 1).reshape(chances.shape[:-1])


def _summed(outputs: Tensor, labels: Tensor, loss: Loss) -> Tensor:
    if loss == "squared_error":
        return 0.5 * (outputs - labels).square().sum()
    if loss == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
    return F.cross_entropy(outputs, labels, reduction="sum")


def _both(
    first: tuple[Tensor, Tensor] | None, second: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, ...] | None:
    """Return vectors and values of both factors, in the order of `_EIGEN`."""
    if first is None or second is None:
        return None
    return first[1], first[0], second[1], second[0]


def _hook(layer: Layer, optimizer: Kfac) -> None:
    """Let a layer add what it sees to its sums, as long as its optimizer lives."""
    known = weakref.ref(optimizer)

    def seen(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        owner = known()
        if owner is None:
            handle.remove()
            return
        if not (module.training and output.requires_grad and owner.is_due):
            return
        entered = inputs[0].detach()

        def returned(grads: Tensor) -> None:
            if owner.wants():
                layer.add(entered, grads.detach())

        output.register_hook(returned)  # type: ignore[no-untyped-call]

    handle = layer.module.register_forward_hook(seen)


def _shares(layers: Iterable[Layer], world: int) -> list[int]:
    """Return the rank that inverts each layer: the one with the least work so far."""
    costs = [layer.num_in**3 + layer.num_out**3 for layer in layers]
    found, work = [0] * len(costs), [0] * world
    for idx in sorted(range(len(costs)), key=lambda idx: -costs[idx]):
        found[idx] = min(range(world), key=work.__getitem__)
        work[found[idx]] += costs[idx]
    return found


def _empty(layer: Layer, key: str) -> Tensor:
    size = layer.num_in if key.endswith("_in") else layer.num_out
    shape = (size,) if key.startswith("values") else (size, size)
    return torch.empty(shape, dtype=factor_dtype(layer.weight), device=layer.weight.device)


def _add_up_(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    """Add up tensors over ranks, in one message for each type."""
    for dtype in {tensor.dtype for tensor in tensors}:
        some = [tensor for tensor in tensors if tensor.dtype is dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in some])
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [tensor.numel() for tensor in some])
        for tensor, part in zip(some, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _send_(found: Mapping[str, Tensor], source: int, group: dist.ProcessGroup) -> None:
    for tensor in found.values():
        dist.broadcast(tensor, source, group=group)


def _construct(setup: Setup) -> torch.optim.Optimizer:
    config = setup.config
    return Kfac(
        setup.model,
        setup.lr,
        groups=setup.groups,
        momentum=config.momentum,
        damping=config.damping,
        kl_clip=config.kl_clip,
        factor_decay=config.factor_decay,
        factor_every=config.factor_every,
        inverse_every=config.inverse_every,
        process_group=setup.process_group,
    )


def _first_step(
    weight: Tensor,
    grad: Tensor,
    *,
    config: OptimizerConfig,  # noqa: ARG001
    lr: float,
    decay: float,
) -> Tensor:
    return weight * (1 - lr * decay) - lr * grad  # of a weight that is in no layer


def _state_numbers(weight: Tensor) -> int:
    """Return the numbers of a momentum, two factors and two inverses."""
    if weight.dim() < 2:
        return weight.numel()
    num_in, num_out = weight[0].numel() + 1, weight.shape[0]
    return weight.numel() + 2 * (num_in**2 + num_out**2)


KFAC = OptimizerSpec(
    name=OptimizerName.KFAC,
    title="K-FAC",
    construct=_construct,
    first_step=_first_step,
    options=("momentum", "damping", "kl_clip", "factor_decay", "factor_every", "inverse_every"),
    usual_lr=0.03,
    most_lr=1.0,
    is_scale_free=False,
    batch_rule=BatchRule(lr_powers=(1.0, 0.5), follows_noise_scale=False, warmup_from=2.0),
    decay=Decay.DECOUPLED,
    is_elementwise=False,
    uses_curvature=True,
    sees_layers=True,
    state_numbers=_state_numbers,
)

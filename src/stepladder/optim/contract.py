"""The contract of an optimizer: its rule, its traits, and how it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from stepladder.config.checks import Range, ranges_of
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Named = list[tuple[str, nn.Parameter]]
Group = dict[str, Any]


class HasParameters(Protocol):
    """A module, or the stacked weights of several (only for elementwise rules)."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return each weight with its name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The arguments for constructing an optimizer.

    Attributes:
        model: for a rule that hooks modules or names layers. Its hooks need a weak reference to the
            optimizer: with two training stages, the model outlives it.
        groups: as returned by the spec's `groups`.
        process_group: the ranks that train together; None: only this process.
        lr: learning rate of the first step.
    """

    config: OptimizerConfig
    model: HasParameters
    groups: list[Group]
    process_group: ProcessGroup | None
    lr: float


class FirstStep(Protocol):
    """Computes a weight after its first step in closed form, as in the paper.

    The tests compare the optimizer with it. `decay` is that of the weight's group.
    """

    def __call__(
        self, weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
    ) -> Tensor:
        """Return the weight after the step."""
        ...


class Decay(StrEnum):
    """The kind of weight decay.

    L2 adds decay x weight to the gradient; DECOUPLED shrinks the weight by lr x decay in addition
    to the step.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """

    L2 = "l2"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, kw_only=True)
class BatchRule:
    """How to scale the learning rate for a larger batch.

    Attributes:
        lr_powers: exponents of the batch's growth factor for the learning rate, most likely first:
            1 is the linear rule, 0.5 the square root.
        follows_noise_scale: the gradient noise scale predicts the epochs of a larger batch and
            bounds the learning rate; otherwise it is only a hint.
        warmup_from: growth of the learning rate above which it needs an epoch of warm-up; None:
            never.

    Source: linear rule and warm-up: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
    2014, arXiv:1404.5997; noise scale: McCandlish et al. 2018, arXiv:1812.06162.
    """

    lr_powers: tuple[float, ...]
    follows_noise_scale: bool
    warmup_from: float | None

    def lr_growths(self, growth: float, *, more_epochs: float) -> list[float]:
        """Return the factors for the learning rate, most likely first.

        By the noise scale the best rate grows as 1 / (1 + Bn / B), which is growth / more_epochs.

        Args:
            growth: of the batch.
            more_epochs: epochs to the same loss with the larger batch, divided by those now.
        """
        grown = [growth**power for power in self.lr_powers]
        if not self.follows_noise_scale:
            return grown
        return list(dict.fromkeys(min(factor, growth / more_epochs) for factor in grown))

    def needs_warmup(self, lr_growth: float) -> bool:
        """Return True if a learning rate increased by this factor needs an epoch of warm-up."""
        return self.warmup_from is not None and lr_growth > self.warmup_from


def decay_groups(config: OptimizerConfig, learning: Named) -> list[Group]:
    """Return one group with decay and one without.

    Matrices and kernels (two dimensions or more) decay; biases and the scales of norms do not.
    """
    # one group without decay: each group costs a Python loop over its weights
    has_decay = config.weight_decay > 0
    matrices = [(name, w) for name, w in learning if w.dim() >= 2 and has_decay]
    vectors = [(name, w) for name, w in learning if w.dim() < 2 or not has_decay]
    return [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if members
    ]


def two_numbers_each(weight: Tensor) -> int:
    """Return the number of state values of the Adam family, two per weight; SGD has one."""
    return 2 * weight.numel()


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """The specification of an optimizer.

    Attributes:
        name: the name that the user types; the same as that of its file.
        title: its name in a sentence.
        construct: builds it.
        first_step: the closed form of its first step.
        options: fields of `OptimizerConfig` that it reads, in addition to the common ones; the
            range of each is defined at its field.
        usual_lr: a learning rate that works for most models.
        most_lr: the learning rate above which it rarely trains.
        is_scale_free: the step does not depend on the size of the gradient: its length is about the
            learning rate.
        batch_rule: how to scale the learning rate with the batch.
        decay: the kind of weight decay.
        groups: returns the trainable weights in groups, each with its decay and options.
        fused_on: device types on which one kernel updates all weights.
        is_elementwise: each number is updated independently, so that weights of several models can
            be stacked and updated together.
        uses_curvature: it uses how the entries of a layer's gradient are correlated: it needs fewer
            steps, which cost more.
        has_layer_rates: the step of each layer is scaled to the norm of its weights.
        sees_layers: its rule needs what goes in and out of each layer, by hooks: in the process
            that has the optimizer, of a whole model, not compiled, with gradients that are not
            scaled.
        state_numbers: maximum numbers of state for a weight, to estimate memory and disk.
    """

    name: OptimizerName
    title: str
    construct: Callable[[Setup], torch.optim.Optimizer]
    first_step: FirstStep
    options: tuple[str, ...]
    usual_lr: float
    most_lr: float
    is_scale_free: bool
    batch_rule: BatchRule
    decay: Decay
    groups: Callable[[OptimizerConfig, Named], list[Group]] = decay_groups
    fused_on: frozenset[str] = frozenset()
    is_elementwise: bool = True
    uses_curvature: bool = False
    has_layer_rates: bool = False
    sees_layers: bool = False
    state_numbers: Callable[[Tensor], int] = two_numbers_each

    def can_fuse(self, device_type: str) -> bool:
        """Return True if one kernel updates all weights on such a device."""
        return device_type in self.fused_on

    @property
    def ranges(self) -> dict[str, Range]:
        """The valid range of each of its options."""
        ranges = ranges_of(OptimizerConfig)
        return {name: ranges[name] for name in self.options}


class OwnOptimizer(torch.optim.Optimizer):
    """Base class of optimizers that are not torch's: a subclass implements `take_step`.

    Counters are numbers in a weight's state, with a name in
    `stepladder.optim.scalars.HOST_SCALARS`.
    """

    unlike_weight: ClassVar[frozenset[str]] = frozenset()
    """Names of state tensors whose shape differs from that of their weight."""

    def take_step(self) -> None:
        """Take one step without the hooks and profiler marks of torch's `step`."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; weights without a gradient do not change."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.take_step()
        return loss

"""What an optimiser declares: its rule, its traits, and how it is built."""

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
    """A module, or the stacked weights of several, which only elementwise rules are built over."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return each weight with its name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What an optimiser is constructed from.

    Attributes:
        model: for a rule that hooks modules or names layers. Its hooks hold the optimiser weakly:
            where training has two stages, the model outlives it.
        groups: as the spec's `groups` returned them.
        process_group: the ranks that train together; None: this process alone.
        lr: learning rate of the first step.
    """

    config: OptimizerConfig
    model: HasParameters
    groups: list[Group]
    process_group: ProcessGroup | None
    lr: float


class FirstStep(Protocol):
    """Computes a weight after its first step in closed form, as the paper has it.

    The laws compare the optimiser with it. `decay` is that of the weight's group.
    """

    def __call__(
        self, weight: Tensor, grad: Tensor, *, config: OptimizerConfig, lr: float, decay: float
    ) -> Tensor:
        """Return the weight after the step."""
        ...


class Decay(StrEnum):
    """What weight decay does.

    L2 adds decay x weight to the gradient; DECOUPLED shrinks the weight by lr x decay beside the
    step.

    Source: Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
    """

    L2 = "l2"
    DECOUPLED = "decoupled"


@dataclass(frozen=True, kw_only=True)
class BatchRule:
    """How the learning rate follows the batch when it grows.

    Attributes:
        lr_powers: powers of the batch's growth that scale the learning rate, the likeliest first: 1
            is the linear rule, 0.5 the square root.
        follows_noise_scale: the gradient noise scale predicts the epochs of a larger batch and
            bounds the learning rate; where not, it is only a hint.
        warmup_from: growth of the learning rate from which on it needs an epoch of warm-up; None:
            never.

    Source: linear rule and warm-up: Goyal et al. 2017, arXiv:1706.02677; square root: Krizhevsky
    2014, arXiv:1404.5997; noise scale: McCandlish et al. 2018, arXiv:1812.06162.
    """

    lr_powers: tuple[float, ...]
    follows_noise_scale: bool
    warmup_from: float | None

    def lr_growths(self, growth: float, *, more_epochs: float) -> list[float]:
        """Return the factors on the learning rate, the likeliest first.

        By the noise scale the best rate grows as 1 / (1 + Bn / B), which is growth / more_epochs.

        Args:
            growth: of the batch.
            more_epochs: epochs to the same loss with the larger batch, over those with this one.
        """
        grown = [growth**power for power in self.lr_powers]
        if not self.follows_noise_scale:
            return grown
        return list(dict.fromkeys(min(factor, growth / more_epochs) for factor in grown))

    def needs_warmup(self, lr_growth: float) -> bool:
        """Return True if a learning rate that grew this much needs an epoch of warm-up."""
        return self.warmup_from is not None and lr_growth > self.warmup_from


def decay_groups(config: OptimizerConfig, learning: Named) -> list[Group]:
    """Return one group with decay and one without.

    Matrices and kernels (two dimensions or more) decay; biases and the scales of norms do not.
    """
    # one group where nothing decays: each group costs a pass of Python over its weights
    has_decay = config.weight_decay > 0
    matrices = [(name, w) for name, w in learning if w.dim() >= 2 and has_decay]
    vectors = [(name, w) for name, w in learning if w.dim() < 2 or not has_decay]
    return [
        {"params": members, "weight_decay": decay}
        for members, decay in ((matrices, config.weight_decay), (vectors, 0.0))
        if members
    ]


def two_numbers_each(weight: Tensor) -> int:
    """Return room for the two moments of the Adam family; SGD keeps one."""
    return 2 * weight.numel()


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec:
    """One optimiser.

    Attributes:
        name: what a person types; that of its file.
        title: its name in a sentence.
        construct: builds it.
        first_step: the closed form of its first step.
        options: fields of `OptimizerConfig` that it reads, beside those of all rules; the range of
            each stands at its field.
        usual_lr: a learning rate that most models learn at.
        most_lr: the learning rate above which it rarely learns.
        is_scale_free: the step does not depend on the size of the gradient: its length is about the
            learning rate.
        batch_rule: how the learning rate follows the batch.
        decay: what weight decay does.
        groups: puts the weights that learn into groups, each with its decay and options.
        fused_on: device types on which one kernel updates all weights.
        is_elementwise: each number is stepped by itself, so that weights of several models can be
            stacked and stepped at once.
        state_numbers: numbers of state kept for a weight, at most; memory and disk are forecast
            with it.
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
    state_numbers: Callable[[Tensor], int] = two_numbers_each

    def can_fuse(self, device_type: str) -> bool:
        """Return True if one kernel updates all weights on such a device."""
        return device_type in self.fused_on

    @property
    def ranges(self) -> dict[str, Range]:
        """The range of each of its options."""
        ranges = ranges_of(OptimizerConfig)
        return {name: ranges[name] for name in self.options}


class OwnOptimizer(torch.optim.Optimizer):
    """An optimiser that is not torch's: a subclass writes `take_step`.

    What it counts, it keeps as numbers in a weight's state, under a name of
    `stepladder.optim.scalars.HOST_SCALARS`.
    """

    unlike_weight: ClassVar[frozenset[str]] = frozenset()
    """Names of state whose tensors have other shapes than their weight."""

    def take_step(self) -> None:
        """Take one step without the hooks and profiler marks that torch puts around `step`."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; weights without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.take_step()
        return loss

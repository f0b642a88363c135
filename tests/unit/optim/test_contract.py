"""Support for rules that torch lacks: layer-wise steps, hooks, ranks, own groups and own state.

`Layered` is not a published rule: it scales each step to the size of the weight, as LARS does; it
keeps the second moments of a layer's inputs, over all ranks, as K-FAC does; and it steps matrices
in a group of their own, as Muon does.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig, Recipe
from stepladder.errors import UsageError
from stepladder.ladder.trainings.stacked import why_not_stacked
from stepladder.optim import table
from stepladder.optim.contract import Group, Named, OptimizerSpec, OwnOptimizer, Setup
from stepladder.optim.optimizers import build_optimizer
from stepladder.optim.sgd import SGD
from stepladder.optim.state import flatten_state, restore_state
from stepladder.training.update import Update

CPU = torch.device("cpu")
CONFIG = OptimizerConfig(name=OptimizerName.SGD)


class Layered(OwnOptimizer):
    unlike_weight: ClassVar[frozenset[str]] = frozenset({"moments"})

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup.groups, {"lr": setup.lr})
        self.process_group = setup.process_group
        assert isinstance(setup.model, nn.Module)
        own = weakref.ref(self)

        def watch(module: nn.Module, inputs: tuple[Tensor]) -> None:
            if (optimizer := own()) is not None:
                optimizer.keep_moments(module.weight, *inputs)

        for module in setup.model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(watch)

    def keep_moments(self, weight: Tensor, inputs: Tensor) -> None:
        moments = inputs.T @ inputs
        if self.process_group is not None:
            self.process_group.allreduce([moments]).wait()
        self.state[weight]["moments"] = moments

    @torch.no_grad()
    def take_step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                state["step"] = state.get("step", 0.0) + 1.0
                grad = weight.grad
                if group["is_layer"]:
                    grad = grad @ state["moments"]
                    grad = grad * (weight.norm() / grad.norm())
                weight.sub_(grad, alpha=group["lr"] / state["step"])


def layers_apart(config: OptimizerConfig, learning: Named) -> list[Group]:
    layers = [(name, weight) for name, weight in learning if weight.dim() >= 2]
    rest = [(name, weight) for name, weight in learning if weight.dim() < 2]
    return [
        {"params": members, "weight_decay": 0.0, "is_layer": is_layer}
        for members, is_layer in ((layers, True), (rest, False))
    ]


@pytest.fixture
def layered(monkeypatch: pytest.MonkeyPatch) -> OptimizerSpec:
    """A layer-wise rule in place of SGD in the table."""
    spec = replace(
        SGD,
        title="Layered",
        construct=Layered,
        groups=layers_apart,
        is_elementwise=False,
        fused_on=frozenset(),
        state_numbers=lambda weight: weight.shape[-1] ** 2,
    )
    lines = tuple(spec if line is SGD else line for line in table.OPTIMIZERS)
    monkeypatch.setattr(table, "OPTIMIZERS", lines)
    return spec


@pytest.fixture
def process_group() -> Iterator[Any]:
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)  # type: ignore[attr-defined]
    yield group
    group.shutdown()


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def take(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    update = Update(optimizer, device=CPU, clip_norm=1.0)
    for step in steps:
        inputs = torch.full((4, 3), 0.1 * (step + 1)) + torch.eye(4, 3)
        losses = model(inputs).square().sum(dim=1)
        update.backward(losses, weight=0.25)
        update(losses.detach().sum(), step=step, lr=0.1)


@pytest.mark.usefixtures("layered")
def test_it_is_given_the_model_its_groups_and_the_ranks(process_group: Any) -> None:
    model = linear()
    optimizer = build_optimizer(CONFIG, model, lr=0.1, process_group=process_group)
    assert isinstance(optimizer, Layered)
    assert optimizer.process_group is process_group
    assert [group["is_layer"] for group in optimizer.param_groups] == [True, False]
    before = model.weight.detach().clone()
    take(model, optimizer, range(1))
    moved = (model.weight - before).norm() / before.norm()
    torch.testing.assert_close(moved, torch.tensor(0.1))


@pytest.mark.usefixtures("layered")
def test_state_of_other_shapes_than_the_weight_resumes_bit_for_bit() -> None:
    straight, resumed = linear(), linear(seed=1)
    optimizer = build_optimizer(CONFIG, straight, lr=0.1)
    take(straight, optimizer, range(3))
    tensors, facts = flatten_state(optimizer, straight)
    assert tensors["weight/moments"].shape == (3, 3)
    resumed.load_state_dict({key: v.clone() for key, v in straight.state_dict().items()})
    fresh = build_optimizer(CONFIG, resumed, lr=0.1)
    restore_state(fresh, resumed, {key: v.clone() for key, v in tensors.items()}, facts)
    assert torch.equal(fresh.state[resumed.weight]["moments"], tensors["weight/moments"])
    assert fresh.state[resumed.weight]["step"] == 3.0
    take(straight, optimizer, range(3, 6))
    take(resumed, fresh, range(3, 6))
    assert torch.equal(straight.weight, resumed.weight)
    assert torch.equal(straight.bias, resumed.bias)


@pytest.mark.usefixtures("layered")
def test_its_hooks_end_with_it_and_the_model_still_works() -> None:
    model = linear()
    optimizer = build_optimizer(CONFIG, model, lr=0.1)
    gone = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    assert model(torch.ones(1, 3)).shape == (1, 2)


@pytest.mark.usefixtures("layered")
def test_heads_are_not_stacked_under_it() -> None:
    reason = why_not_stacked(Recipe(optimizer=CONFIG))
    assert reason == "the optimizer uses whole weights, which stacking would mix"
    assert why_not_stacked(Recipe()) is None


@pytest.mark.usefixtures("layered")
def test_a_fused_kernel_that_no_device_has_is_refused() -> None:
    with pytest.raises(UsageError, match="Layered has no fused version"):
        build_optimizer(replace(CONFIG, fused=True), linear(), lr=0.1)

"""Our NAdam and torch's: same weights and states, and each can resume from the other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepladder.optim.nadam import NAdam
from stepladder.optim.state import flatten_state, restore_state

Rule = type[torch.optim.NAdam]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-8}  # torch stores mu_product in fp32
both_ways = pytest.mark.parametrize(
    ("first", "second"),
    [(NAdam, torch.optim.NAdam), (torch.optim.NAdam, NAdam)],
    ids=["to torch's", "from torch's"],
)


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 3)
    return nn.Sequential(*layers).to(dtype, memory_format=torch.channels_last)


def random_grads(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for weight in model.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.grad = torch.zeros_like(weight).copy_(noise)


def take(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    change: Callable[[nn.Module, torch.optim.Optimizer, int], None] | None = None,
) -> None:
    for step in steps:
        random_grads(model, step)
        if change is not None:
            change(model, optimizer, step)
        optimizer.step()


def half_way(
    first: Rule, second: Rule
) -> tuple[nn.Module, torch.optim.Optimizer, nn.Module, torch.optim.Optimizer]:
    """Take fifty steps with the first rule; return its net and rule, a copy and an empty rule."""
    straight = net()
    began = first(straight.parameters(), lr=0.01)
    take(straight, began, range(50))
    resumed = copy.deepcopy(straight)
    return straight, began, resumed, second(resumed.parameters(), lr=0.5)


def same(ours: nn.Module, theirs: nn.Module, tolerance: float) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=["fp32", "fp64"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "decoupled_weight_decay": True},
        {"weight_decay": 0.1},
        {"betas": (0.5, 0.9), "eps": 1e-3, "momentum_decay": 0.1},
        {"betas": (0.99, 0.999), "momentum_decay": 0.0},
    ],
    ids=["plain", "decoupled decay", "L2", "short memory", "long memory"],
)
def test_three_hundred_steps_equal_torchs(dtype: torch.dtype, options: dict[str, Any]) -> None:
    ours, theirs = net(dtype), net(dtype)
    take(ours, NAdam(ours.parameters(), lr=0.01, **options), range(300))
    take(theirs, torch.optim.NAdam(theirs.parameters(), lr=0.01, **options), range(300))
    same(ours, theirs, TOLERANCE[dtype])
    assert (ours[2].weight - net(dtype)[2].weight).abs().max() > 0.1


@pytest.mark.parametrize("is_fused", [True, False])
def test_torchs_own_step_is_taken_only_where_it_must(
    is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(torch.optim.NAdam, "step", lambda *_: calls.append("torch's"))
    model = net(torch.float32 if is_fused else torch.float16)
    take(model, NAdam(model.parameters()), range(1))
    assert calls == ([] if is_fused else ["torch's"])


def test_groups_rates_and_missing_gradients_are_followed_as_torch_does() -> None:
    def change(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        if step % 3:  # only the bias takes every third step
            model[2].bias.grad = None

    models = net(), net()
    for model, rule in zip(models, (NAdam, torch.optim.NAdam), strict=True):
        groups = [
            {"params": [model[0].weight, model[2].weight], "weight_decay": 0.1},
            {"params": [model[0].bias, model[2].bias], "betas": (0.8, 0.9)},
        ]
        optimizer = rule(groups, lr=0.01)
        take(model, optimizer, range(200), change)
        assert float(optimizer.state[model[2].bias]["step"]) == 67
        assert float(optimizer.state[model[0].bias]["step"]) == 200
    same(*models, 1e-5)


@both_ways
def test_torchs_state_dict_goes_either_way(first: Rule, second: Rule) -> None:
    straight, began, resumed, goes_on = half_way(first, second)
    goes_on.load_state_dict(copy.deepcopy(began.state_dict()))
    take(straight, began, range(50, 100))
    take(resumed, goes_on, range(50, 100))
    same(straight, resumed, 1e-5)


@both_ways
def test_a_checkpoint_goes_either_way(first: Rule, second: Rule) -> None:
    straight, began, resumed, goes_on = half_way(first, second)
    tensors, facts = flatten_state(began, straight)
    kept = {key: value.clone() for key, value in tensors.items()}
    restore_state(goes_on, resumed, kept, facts)
    take(straight, began, range(50, 100))
    take(resumed, goes_on, range(50, 100))
    same(straight, resumed, 1e-5)
    names = {key.rpartition("/")[2] for key in tensors}
    assert names == {"step", "mu_product", "exp_avg", "exp_avg_sq"}


def test_its_own_state_resumes_bit_for_bit() -> None:
    straight, began, resumed, goes_on = half_way(NAdam, NAdam)
    goes_on.load_state_dict(copy.deepcopy(began.state_dict()))
    take(straight, began, range(50, 100))
    take(resumed, goes_on, range(50, 100))
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def halved(weight: Tensor) -> Tensor:
    return weight.to(torch.bfloat16)


def complexed(weight: Tensor) -> Tensor:
    return torch.complex(weight, -weight)


def plain(weight: Tensor) -> Tensor:
    return weight


def turned(grad: Tensor) -> Tensor:
    return grad.t().contiguous().t()


@pytest.mark.parametrize(
    ("make", "lay_out", "options"),
    [
        (halved, plain, {}),
        (complexed, plain, {}),
        (plain, turned, {}),
        (plain, plain, {"maximize": True}),
        (plain, plain, {"betas": (0.0, 0.9)}),
    ],
    ids=["bf16", "complex", "gradient laid out otherwise", "maximize", "no momentum"],
)
def test_what_the_kernel_does_not_take_is_left_to_torch(
    make: Callable[[Tensor], Tensor], lay_out: Callable[[Tensor], Tensor], options: dict[str, Any]
) -> None:
    ended = []
    for rule in (NAdam, torch.optim.NAdam):
        torch.manual_seed(0)
        weight = nn.Parameter(make(torch.randn(4, 3)))
        optimizer = rule([weight], lr=0.01, **options)
        for _ in range(5):
            weight.grad = lay_out(torch.randn_like(weight))
            optimizer.step()
        ended.append(weight)
    assert torch.equal(*ended)


def test_sparse_gradients_are_refused_as_torch_does() -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        NAdam([weight]).step()


def test_steps_by_either_rule_may_take_turns() -> None:
    ended = []
    for rule in (NAdam, torch.optim.NAdam):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(4, 3))
        optimizer = rule([weight], lr=0.01)
        for step in range(40):
            grad = torch.randn_like(weight)
            weight.grad = turned(grad) if step % 2 else grad
            optimizer.step()
        ended.append(weight)
    torch.testing.assert_close(*ended)


def test_a_closure_is_called_with_gradients_and_its_loss_given_back() -> None:
    weight = nn.Parameter(torch.tensor([3.0]))

    def closure() -> Tensor:
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert NAdam([weight]).step(closure).item() == 9.0
    assert weight.item() < 3.0

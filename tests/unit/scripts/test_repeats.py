"""A second forward on one batch: it is found, and its output is that of the first one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from stepladder.scripts.inside import repeats
from stepladder.scripts.rungs.repeated_forwards import KEEPER

names: dict[str, Any] = {"torch": torch}
exec(KEEPER, names)  # what the diff has


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.dropout = nn.Dropout(0.0)
        self.num = 0

    def forward(self, inputs: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.num += 1
        found: torch.Tensor = scale * self.linear(inputs)
        return found


@pytest.fixture(params=[repeats.OncePerInput, names["OncePerInput"]], ids=["outside", "diff"])
def model(request: pytest.FixtureRequest) -> Counted:
    model = Counted()
    model.forward = request.param(model)
    return model


def test_an_unchanged_batch_is_computed_once(model: Counted) -> None:
    inputs = torch.ones(4, 3)
    first = model(inputs)
    with torch.no_grad():
        second = model(inputs)
    assert model.num == 1
    assert first.requires_grad
    assert not second.requires_grad
    assert torch.equal(first, second)
    first.sum().backward()
    assert model.linear.weight.grad is not None


def test_gradients_are_those_of_two_forwards(model: Counted) -> None:
    model.double()  # in which a sum that cancels is as exact as the others
    inputs = torch.randn(4, 3, dtype=torch.double)
    (model(inputs).sum() + model(inputs).square().sum()).backward()
    assert model.num == 1
    other = Counted().double()
    other.load_state_dict(model.state_dict())
    (other(inputs).sum() + other(inputs).square().sum()).backward()
    assert model.linear.weight.grad is not None
    assert torch.allclose(model.linear.weight.grad, other.linear.weight.grad)


def changes(model: Counted, inputs: torch.Tensor, output: torch.Tensor, what: str) -> None:
    with torch.no_grad():
        match what:
            case "weights":
                model.linear.weight += 1
            case "inputs":
                inputs += 1
            case "output":
                output += 1
            case "mode":
                model.eval()
            case "gradients":
                pass


@pytest.mark.parametrize("what", ["weights", "inputs", "output", "mode", "gradients"])
def test_after_a_change_it_is_computed_again(model: Counted, what: str) -> None:
    inputs = torch.randn(4, 3)
    with torch.set_grad_enabled(what != "gradients"):
        output = model(inputs)
    changes(model, inputs, output, what)
    again = model(inputs)
    assert model.num == 2
    assert again.requires_grad
    assert torch.equal(again, nn.functional.linear(inputs, model.linear.weight, model.linear.bias))


def test_other_arguments_are_computed_again(model: Counted) -> None:
    inputs = torch.randn(4, 3)
    first = model(inputs)
    assert torch.equal(model(inputs, scale=2.0), 2 * first)
    assert torch.equal(model(inputs.clone()), first)
    assert model.num == 3


def test_a_model_can_be_copied_after_a_forward(model: Counted) -> None:
    inputs = torch.randn(4, 3)
    first = model(inputs)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.linear.weight.zero_()
    assert torch.equal(model(inputs), first)
    assert not torch.equal(other(inputs), first)
    assert other.forward.model is other


def counted(model: nn.Module, *batches: torch.Tensor) -> repeats.Repeats:
    found = repeats.Repeats({id(model)})
    model.register_forward_pre_hook(lambda module, _: found.called(module))
    model.register_forward_hook(found.answered)
    for batch in batches:
        model(batch)
    return found


def test_repeated_forwards_are_counted() -> None:
    one, two = torch.randn(4, 3), torch.randn(4, 3)
    found = counted(nn.Linear(3, 2), one, one, two, one, one.clone())
    assert (found.num, found.why_not) == (1, None)
    assert found.seconds > 0


@pytest.mark.parametrize(
    ("layer", "said"), [(nn.Dropout(0.5), "dropout"), (nn.BatchNorm1d(2), "BatchNorm")]
)
def test_forwards_that_draw_or_follow_differ(layer: nn.Module, said: str) -> None:
    model = nn.Sequential(nn.Linear(3, 2), layer)
    batch = torch.randn(4, 3)
    assert said in (counted(model, batch, batch).why_not or "")
    assert counted(model.eval(), batch, batch).why_not is None

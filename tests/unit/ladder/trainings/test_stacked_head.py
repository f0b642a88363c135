"""Heads scored at once give what each gives by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from stepladder.ladder.trainings.stacked import stack, stacked_scorer, unstack

NUM_HEADS, NUM_ROWS, NUM_IN = 3, 4, 6


class Residual(nn.Module):
    """A head of a form that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_IN, NUM_IN)
        self.last = nn.Linear(NUM_IN, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.last(inputs + self.first(inputs).tanh())
        return scores


def hooked() -> nn.Module:
    head = nn.Linear(NUM_IN, 2)
    head.register_forward_hook(lambda _, __, scores: scores * 2)
    return head


def tied() -> nn.Module:
    layer = nn.Linear(NUM_IN, NUM_IN)
    return nn.Sequential(layer, nn.Tanh(), layer)


FORMS = {
    "linear": lambda: nn.Linear(NUM_IN, 2),
    "no bias": lambda: nn.Linear(NUM_IN, 2, bias=False),
    "hidden": lambda: nn.Sequential(
        nn.Dropout(0.0), nn.Sequential(nn.Linear(NUM_IN, 5), nn.ReLU()), nn.Linear(5, 2)
    ),
    "norm": lambda: nn.Sequential(nn.LayerNorm(NUM_IN), nn.Linear(NUM_IN, 2)),
    "residual": Residual,
    "hooked": hooked,
    "tied": tied,
}


@pytest.mark.parametrize("shape", [(NUM_ROWS, NUM_IN), (NUM_ROWS, 2, NUM_IN)])
@pytest.mark.parametrize("form", FORMS)
def test_scores_and_gradients_are_those_of_each_head(form: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    heads = [FORMS[form]().double() for _ in range(NUM_HEADS)]
    inputs = torch.randn(NUM_HEADS, *shape, dtype=torch.float64)
    each = [dict(head.named_parameters()) for head in heads]
    stacked = {name: stack([one[name] for one in each]).requires_grad_() for name in each[0]}
    scores = stacked_scorer(heads[0], frozenset(stacked))(stacked, inputs)
    scores.square().sum().backward()
    for idx, head in enumerate(heads):
        wanted = functional_call(heads[0], each[idx], (inputs[idx],))
        wanted.square().sum().backward()
        torch.testing.assert_close(scores[idx], wanted)
        for name, weight in head.named_parameters():
            grad = stacked[name].grad
            assert grad is not None
            torch.testing.assert_close(unstack(grad, idx), weight.grad)
            assert torch.equal(unstack(stacked[name], idx), weight)


def test_a_frozen_layer_is_that_of_the_head() -> None:
    head = nn.Sequential(nn.Linear(NUM_IN, NUM_IN), nn.Linear(NUM_IN, 2))
    names = frozenset(name for name, _ in head[1].named_parameters(prefix="1"))
    stacked = {name: stack([head.get_parameter(name)] * NUM_HEADS) for name in names}
    inputs = torch.randn(NUM_HEADS, NUM_ROWS, NUM_IN)
    torch.testing.assert_close(stacked_scorer(head, names)(stacked, inputs), head(inputs))


def test_dropout_drops_otherwise_in_each_head() -> None:
    head = nn.Sequential(nn.Dropout(0.5), nn.Linear(NUM_IN, 2, bias=False)).train()
    stacked = {"1.weight": stack([torch.ones(2, NUM_IN)] * NUM_HEADS)}
    inputs = torch.ones(NUM_HEADS, 64, NUM_IN)
    scores = stacked_scorer(head, frozenset(stacked))(stacked, inputs)
    assert not torch.equal(scores[0], scores[1])

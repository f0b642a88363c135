"""Muon and SOAP, next to torch's Muon and to the rules written out."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.optim import soap
from stepladder.optim.muon import orthogonal
from stepladder.optim.optimizers import build_optimizer


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


class One(nn.Module):
    """A model of one weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())


def after(config: OptimizerConfig, start: Tensor, grads: list[Tensor], lr: float = 0.01) -> Tensor:
    model = One(start)
    optimizer = build_optimizer(config, model, lr=lr)
    for grad in grads:
        model.weight.grad = grad.clone()
        optimizer.step()
    return model.weight.detach()


@pytest.mark.parametrize("shape", [(6, 6), (3, 8), (8, 3)])
def test_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = random(*shape)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    values = (left.T @ orthogonal(matrix) @ right.T).diagonal()
    assert 0.65 < values.min().item() < values.max().item() < 1.25


@pytest.mark.parametrize("shape", [(5, 7), (7, 5)])
def test_muon_takes_the_steps_of_torchs(shape: tuple[int, int]) -> None:
    """Torch's iterates in bfloat16, whose errors are some percent of a step."""
    start = random(*shape).float()
    grads = [random(*shape, seed=seed).float() for seed in range(1, 6)]
    config = OptimizerConfig(name=OptimizerName.MUON, momentum=0.95, weight_decay=0.1)
    found = after(config, start, grads)
    weight = nn.Parameter(start.clone())
    other = torch.optim.Muon(
        [weight], lr=0.01, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for grad in grads:
        weight.grad = grad.clone()
        other.step()
    moved = (weight.detach() - start).norm()
    assert (found - weight).norm() < 0.05 * moved


def test_muon_takes_a_kernel_as_a_matrix_and_vectors_by_adamw() -> None:
    start, grads = random(4, 3, 2, 2), [random(4, 3, 2, 2, seed=seed) for seed in (1, 2)]
    config = OptimizerConfig(name=OptimizerName.MUON)
    flat = after(config, start.reshape(4, 12), [grad.reshape(4, 12) for grad in grads])
    torch.testing.assert_close(after(config, start, grads), flat.reshape(start.shape))
    start, grads = random(9), [random(9, seed=seed) for seed in (1, 2, 3)]
    adamw = after(OptimizerConfig(name=OptimizerName.ADAMW), start, grads)
    torch.testing.assert_close(after(config, start, grads), adamw)


def test_soap_is_adam_in_the_eigenbasis_of_both_moments() -> None:
    """Written out, with a basis of its own after the first step, from eigenvectors."""
    start, grads = random(3, 4), [random(3, 4, seed=seed) for seed in (1, 2)]
    options = {"beta1": 0.8, "beta2": 0.9, "eps": 1e-6, "inverse_every": 100}
    found = after(OptimizerConfig(name=OptimizerName.SOAP, **options), start, grads)  # type: ignore[arg-type]
    first, second = grads
    weight = start - 0.01 * first / (first.abs() + 1e-6)
    rows = torch.linalg.eigh(first @ first.T)[1]
    columns = torch.linalg.eigh(first.T @ first)[1]
    order = [one.flip(1) for one in (rows, columns)]  # the largest first
    rotated = order[0].T @ second @ order[1]
    square = 0.9 * 0.1 * first.square() + 0.1 * rotated.square()
    mean = order[0].T @ (0.8 * 0.2 * first + 0.2 * second) @ order[1]
    step = (mean / (1 - 0.8**2)) / ((square / (1 - 0.9**2)).sqrt() + 1e-6)
    torch.testing.assert_close(found, weight - 0.01 * order[0] @ step @ order[1].T)


def test_soap_without_a_side_that_is_small_enough_is_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soap, "MOST", 2)
    start, grads = random(3, 4), [random(3, 4, seed=seed) for seed in range(1, 5)]
    config = OptimizerConfig(name=OptimizerName.SOAP, weight_decay=0.1)
    adamw = OptimizerConfig(name=OptimizerName.ADAMW, weight_decay=0.1)
    torch.testing.assert_close(after(config, start, grads), after(adamw, start, grads))


def test_soap_learns_a_rotated_problem_better_than_adam() -> None:
    """Adam's steps depend on the axes: a bowl with its own, of curvatures from 1 to 1000."""
    turn = torch.linalg.qr(random(10, 10)).Q
    curvature = turn @ torch.logspace(0, 3, 10, dtype=torch.float64).diag() @ turn.T
    start = random(10, 6, seed=7)

    def end(name: OptimizerName, lr: float) -> float:
        model = One(start)
        optimizer = build_optimizer(OptimizerConfig(name=name, inverse_every=2), model, lr=lr)
        for _ in range(80):
            model.weight.grad = curvature @ model.weight.detach()
            optimizer.step()
        weight = model.weight.detach()
        return float((weight * (curvature @ weight)).sum())

    rates = (0.01, 0.03, 0.1, 0.3)
    adam, own = (
        min(map(partial(end, name), rates)) for name in (OptimizerName.ADAM, OptimizerName.SOAP)
    )
    assert own < 0.5 * adam

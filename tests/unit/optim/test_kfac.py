"""K-FAC: its factors, their inverses, what it leaves out, and that it learns in fewer steps."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stepladder.optim
from stepladder.optim.curvature.inverses import damped_inverses
from stepladder.optim.kfac import FACTOR_IN, FACTOR_OUT, Kfac


class Twice(nn.Module):
    """A token model: a layer at each place of a sequence, then their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)).mean(dim=1))
        return out


def linear() -> tuple[nn.Module, Tensor]:
    layers = nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)
    return nn.Sequential(*layers), torch.randn(7, 5)


def convolution() -> tuple[nn.Module, Tensor]:
    conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(27, 3)), torch.randn(7, 2, 6, 6)


def dilated() -> tuple[nn.Module, Tensor]:
    conv = nn.Conv2d(2, 3, (3, 2), padding="same", dilation=2)
    return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(60, 3)), torch.randn(7, 2, 5, 4)


def sequence() -> tuple[nn.Module, Tensor]:
    return Twice(), torch.randn(7, 6, 5)


def made(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model, x = make()
    return model.double(), x.double(), torch.randint(3, (7,))


def kfac(model: nn.Module, lr: float = 0.1, **options: Any) -> Kfac:
    return Kfac(model, lr, process_group=None, **options)


def factors(optimizer: Kfac) -> list[tuple[Tensor, Tensor]]:
    states = [optimizer.state[layer.weight] for layer in optimizer.layers]
    return [(state[FACTOR_IN], state[FACTOR_OUT]) for state in states]


@pytest.mark.parametrize("make", [linear, convolution, dilated, sequence])
def test_the_factors_are_those_of_curvlinops(
    make: Callable[[], tuple[nn.Module, Tensor]],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one of its dependencies, about torch.jit
        from curvlinops import KFACLinearOperator
    model, x, y = made(make)
    loss = nn.CrossEntropyLoss()
    operator = KFACLinearOperator(
        model,
        loss,
        list(model.parameters()),
        [(x, y)],
        fisher_type="empirical",
        kfac_approx="expand",
        separate_weight_and_bias=False,
        check_deterministic=False,
    )
    num = sum(weight.numel() for weight in model.parameters())
    dense = operator @ torch.eye(num, dtype=torch.float64)
    optimizer = kfac(model)
    loss(model(x), y).backward()
    optimizer.step()
    start = 0
    for layer, (first, second) in zip(optimizer.layers, factors(optimizer), strict=True):
        size = layer.num_in * layer.num_out
        own = torch.kron(second, first).reshape((layer.num_out, layer.num_in) * 2)
        inputs = layer.num_in - (layer.bias is not None)
        weights = own[:, :inputs, :, :inputs].reshape((layer.num_out * inputs,) * 2)
        block = dense[start : start + size, start : start + size]
        torch.testing.assert_close(block[: len(weights), : len(weights)], weights)
        if layer.bias is not None:
            torch.testing.assert_close(block[len(weights) :, len(weights) :], own[:, -1, :, -1])
        start += size


def test_with_one_example_the_product_is_the_whole_curvature() -> None:
    """The Fisher of one example is the outer product of its gradient."""
    model, x, y = made(linear)
    optimizer = kfac(model)
    F.cross_entropy(model(x[:1]), y[:1]).backward()
    grads = [layer.gradient() for layer in optimizer.layers]
    optimizer.step()
    for grad, (first, second) in zip(grads, factors(optimizer), strict=True):
        assert grad is not None
        dense = torch.outer(grad.reshape(-1), grad.reshape(-1))
        torch.testing.assert_close(torch.kron(second, first), dense, rtol=1e-5, atol=1e-10)


def test_a_batch_in_several_passes_gives_the_same_factors() -> None:
    found = []
    for parts in (1, 3):
        model, x, y = made(convolution)
        optimizer = kfac(model)
        for some, labels in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(model(some), labels, reduction="sum") / len(y)).backward()
        optimizer.step()
        found.append(factors(optimizer))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_only_passes_of_training_mode_that_return_a_gradient_count() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model)
    with torch.no_grad():
        model(x)
    F.cross_entropy(model.eval()(x), y).backward()
    optimizer.step()
    assert not any(FACTOR_IN in optimizer.state[layer.weight] for layer in optimizer.layers)
    model.train()(x)  # such as a forward pass whose result is only printed
    (0.0 * F.cross_entropy(model(x), y)).backward()
    optimizer.step()
    assert not any(FACTOR_IN in optimizer.state[layer.weight] for layer in optimizer.layers)


def test_a_step_divides_the_gradient_by_the_damped_curvature() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model, damping=0.01, kl_clip=1e9)
    F.cross_entropy(model(x), y).backward()
    before = [layer.gradient() for layer in optimizer.layers]
    weights = [layer.weight.detach().clone() for layer in optimizer.layers]
    optimizer.step()
    for layer, grad, weight, (first, second) in zip(
        optimizer.layers, before, weights, factors(optimizer), strict=True
    ):
        assert grad is not None
        share = float((first.diagonal().mean() / second.diagonal().mean()).sqrt())
        eyes = torch.eye(len(first)).double(), torch.eye(len(second)).double()
        inverses = [
            torch.linalg.inv(one + by * 0.1 * eye)
            for one, by, eye in zip((first, second), (share, 1 / share), eyes, strict=True)
        ]
        step = inverses[1] @ grad @ inverses[0]
        torch.testing.assert_close(layer.weight, weight - 0.1 * step[:, : weight.shape[1]])


def test_eigenvectors_damp_the_product_of_both_factors() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model, damping=0.01, kl_clip=1e9, inverse="eigen")
    F.cross_entropy(model(x), y).backward()
    layer = optimizer.layers[1]  # without a bias
    grad, weight = layer.gradient(), layer.weight.detach().clone()
    optimizer.step()
    assert grad is not None
    first, second = factors(optimizer)[1]
    dense = torch.kron(second, first) + 0.01 * torch.eye(grad.numel()).double()
    step = torch.linalg.solve(dense, grad.reshape(-1)).reshape(grad.shape)
    torch.testing.assert_close(layer.weight, weight - 0.1 * step)


def test_a_step_is_no_longer_than_its_limit() -> None:
    """lr² times step, curvature and step: the curvature times the whole step is the gradient."""
    changes = []
    for limit in (1e9, 1e-3):
        model, x, y = made(linear)
        optimizer = kfac(model, lr=0.5, damping=1e-6, kl_clip=limit, momentum=0.0)
        F.cross_entropy(model(x), y).backward()
        before = [weight.detach().clone() for weight in model.parameters()]
        optimizer.step()
        moved = [
            ((old - weight) * weight.grad).sum().item()
            for old, weight in zip(before, model.parameters(), strict=True)
            if weight.grad is not None
        ]
        changes.append(sum(moved))
    whole, limited = changes
    assert 0.5 * limited**2 / whole == pytest.approx(1e-3, rel=1e-6)


def test_least_squares_on_white_inputs_are_solved_in_one_step() -> None:
    """By the curvature of sampled labels: that of the training loss would be its residuals'."""
    torch.manual_seed(0)
    num = 20_000
    white, _ = torch.linalg.qr(torch.randn(num, 8, dtype=torch.float64))
    x = white * num**0.5
    wanted = torch.randn(3, 8, dtype=torch.float64)
    model = nn.Linear(8, 3, bias=False).double()
    optimizer = kfac(model, lr=1.0, momentum=0.0, damping=1e-10, kl_clip=1e9)

    def loss() -> Tensor:
        return 0.5 * (model(x) - x @ wanted.T).square().sum(dim=1).mean()

    before = loss().item()
    outputs = model(x)
    optimizer.observe(outputs, "squared_error")
    (0.5 * (outputs - x @ wanted.T).square().sum(dim=1).mean()).backward()
    optimizer.step()
    assert loss().item() < 1e-3 * before


def test_the_curvature_of_sampled_labels_is_that_of_the_models_predictions() -> None:
    """For a softmax p, the mean of g g^T is diag(p) - p p^T."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    x = torch.ones(50_000, 2, dtype=torch.float64)
    optimizer = kfac(model)
    outputs = model(x)
    optimizer.observe(outputs)
    F.cross_entropy(outputs, torch.zeros(len(x), dtype=torch.int64)).backward()
    optimizer.step()
    p = outputs[0].softmax(dim=0).detach()
    torch.testing.assert_close(factors(optimizer)[0][1], p.diag() - p.outer(p), rtol=0, atol=0.01)


def test_a_matrix_that_is_not_definite_is_damped_more() -> None:
    singular = torch.ones(6, 6)
    found = damped_inverses(singular, torch.eye(2), 1e-14)  # too little for fp32
    assert found is not None
    assert bool(torch.isfinite(found[0]).all())
    indefinite = torch.diag(torch.tensor([1.0, -1.0]))
    assert damped_inverses(indefinite, torch.eye(2), 1e-9) is None


def test_factors_that_are_not_finite_are_reported_with_their_layer() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    kept = [(one.clone(), two.clone()) for one, two in factors(optimizer)]
    optimizer.zero_grad()
    (1e200 * F.cross_entropy(model(x), y)).backward()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    with pytest.warns(UserWarning, match="K-FAC, layer") as seen:
        optimizer.step()
    said = ": its factors are not finite, so it keeps the former ones"
    assert [str(one.message) for one in seen] == [f"K-FAC, layer {n}{said}" for n in (0, 2)]
    torch.testing.assert_close(factors(optimizer)[0], kept[0])


def test_what_has_no_product_takes_plain_steps_and_is_listed() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(5, 4)
            self.grouped = nn.Conv2d(4, 4, 1, groups=2)
            self.norm = nn.LayerNorm(4)
            self.out = nn.Linear(4, 5, bias=False)
            self.own = nn.Linear(4, 4)
            self.out.weight = self.words.weight  # tied

    optimizer = kfac(Mixed())
    assert [layer.name for layer in optimizer.layers] == ["own"]
    assert optimizer.others == [
        "words.weight",
        "grouped.weight",
        "grouped.bias",
        "norm.weight",
        "norm.bias",
    ]


def test_hooks_end_with_their_optimizer() -> None:
    model, x, _ = made(linear)
    optimizer = kfac(model)
    assert all(layer.module._forward_hooks for layer in optimizer.layers)
    del optimizer
    gc.collect()
    model(x)
    assert not any(module._forward_hooks for module in model.modules())


def test_factors_are_never_half() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3))
    optimizer = kfac(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(torch.randn(7, 2, 4, 4)), torch.randint(3, (7,)))
    loss.backward()
    optimizer.step()
    assert all(one.dtype is torch.float32 for pair in factors(optimizer) for one in pair)
    assert all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def test_factors_and_inverses_are_as_old_as_asked_for() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model, factor_every=2, inverse_every=3)
    news = []
    for _ in range(7):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        state = optimizer.state[optimizer.layers[0].weight]
        news.append((state[FACTOR_OUT].sum().item(), state["inverse_out"].sum().item()))
    is_new = [[one[idx] != two[idx] for one, two in pairwise(news)] for idx in (0, 1)]
    assert is_new[0] == [False, True, False, True, False, True]
    assert is_new[1] == [False, True, False, False, False, True]  # after 2 steps, and each third
    state = optimizer.state[optimizer.layers[1].weight]
    assert state["step"] == 7.0
    assert not optimizer.is_due


def test_the_first_factors_are_a_plain_mean() -> None:
    model, x, y = made(linear)
    optimizer = kfac(model, lr=1e-12, factor_decay=0.9)
    seen = []
    for step in range(3):
        some = x * (step + 1)
        F.cross_entropy(model(some), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        rows = torch.cat([some, torch.ones(7, 1).double()], dim=1)
        seen.append(rows.T @ rows / 7)
    torch.testing.assert_close(factors(optimizer)[0][0], torch.stack(seen).mean(dim=0))


def test_it_learns_a_badly_scaled_problem_in_fewer_steps_than_sgd() -> None:
    """The inputs differ in size by 100; each has the best of seven rates."""

    def end(make: Callable[[nn.Module], torch.optim.Optimizer]) -> float:
        torch.manual_seed(0)
        x = torch.randn(256, 10) * torch.logspace(-1, 1, 10)
        y = (x @ torch.randn(10, 2) / torch.logspace(-1, 1, 10).norm()).tanh()
        model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 2))
        optimizer = make(model)
        for _ in range(60):
            outputs = model(x)
            loss = (outputs - y).square().sum(dim=1).mean()
            optimizer.zero_grad()
            if isinstance(optimizer, Kfac):
                optimizer.observe(outputs, "squared_error")
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return loss.item() if loss.isfinite() else math.inf

    rates = [10.0**-power for power in (0, 0.5, 1, 1.5, 2, 2.5, 3)]
    plain = min(end(partial(sgd, lr=lr)) for lr in rates)
    own = min(end(partial(kfac, lr=lr)) for lr in rates)
    assert own < 0.35 * plain


def sgd(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def test_the_curvature_of_sampled_bits_is_their_variance() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2).double()
    x = torch.ones(50_000, 2, dtype=torch.float64)
    optimizer = kfac(model)
    outputs = model(x)
    optimizer.observe(outputs, "binary_cross_entropy")
    outputs.sum().backward()
    optimizer.step()
    p = outputs[0].sigmoid().detach()
    expected = (p * (1 - p)).diag()
    torch.testing.assert_close(factors(optimizer)[0][1], expected, rtol=0, atol=0.01)


def test_scripts_take_it_from_the_package() -> None:
    model = nn.Linear(3, 2)
    optimizer = stepladder.optim.KFAC(model, lr=0.03)
    assert isinstance(optimizer, torch.optim.Optimizer)
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    with pytest.raises(AttributeError, match="has no attribute 'Newton'"):
        stepladder.optim.Newton  # noqa: B018


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "squared_error"])
@pytest.mark.filterwarnings("ignore:K-FAC, layer")
def test_outputs_that_are_not_finite_are_left_to_the_loss(loss: str) -> None:
    """A script that checks its loss gets there, and the weights stay finite."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = stepladder.optim.KFAC(model, lr=0.1)
    outputs = model(torch.full((5, 3), torch.nan))
    optimizer.observe(outputs, loss)
    assert not outputs.sum().isfinite()
    assert all(weight.isfinite().all() for weight in model.parameters())

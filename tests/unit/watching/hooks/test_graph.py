from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from stepladder.watching.hooks.graph import activation_before, broadcast_difference, terms

TARGET = torch.tensor([0, 1, 2, 0])


def scores() -> torch.Tensor:
    return torch.randn(4, 3, requires_grad=True) * 1.0


@pytest.mark.parametrize(
    ("wrapped", "factor"),
    [
        (lambda loss: loss, 1.0),
        (lambda loss: -loss, -1.0),
        (lambda loss: loss / 4, 0.25),
        (lambda loss: 2 - loss * 0.5, -0.5),
        (lambda loss: loss * torch.tensor(3.0), 3.0),
    ],
)
def test_a_losss_factor_is_read_from_the_graph(wrapped: object, factor: float) -> None:
    assert callable(wrapped)
    (term,) = terms(wrapped(F.cross_entropy(scores(), TARGET)).grad_fn)
    assert term.kind == "cross_entropy"
    assert term.factor == pytest.approx(factor)
    assert term.reduction == "mean"


def test_a_factor_that_is_learnt_is_not_known() -> None:
    weight = torch.ones((), requires_grad=True)
    found = terms((F.cross_entropy(scores(), TARGET) * weight).grad_fn)
    assert [term.kind for term in found] == ["other"]


def test_sums_are_distinguished_from_means() -> None:
    loss = F.cross_entropy(scores(), TARGET, reduction="none")
    assert [t.reduction for t in terms(loss.sum().grad_fn)] == ["sum"]
    assert [t.reduction for t in terms(loss.mean().grad_fn)] == ["mean"]
    assert [t.reduction for t in terms(F.mse_loss(scores(), torch.ones(4, 3)).grad_fn)] == ["mean"]


def test_losses_that_are_added_are_all_listed() -> None:
    both = F.cross_entropy(scores(), TARGET) + 0.1 * F.mse_loss(scores(), torch.ones(4, 3))
    assert {term.kind: round(term.factor or 0, 3) for term in terms(both.grad_fn)} == {
        "cross_entropy": 1.0,
        "mse_loss": 0.1,
    }


def test_softmax_is_found_through_changes_of_shape() -> None:
    shares = scores().softmax(-1).view(2, 2, 3).reshape(4, 3)
    found = activation_before(shares.grad_fn)
    assert found is not None
    assert (found.kind, found.dim, found.inner) == ("Softmax", 1, None)
    assert activation_before((scores() @ torch.randn(3, 3)).grad_fn) is None
    log = activation_before(scores().softmax(0).log().grad_fn)
    assert log is not None
    assert (log.dim, log.has_log) == (0, True)


def test_a_softmax_before_a_log_softmax_is_found_and_a_factor_is_not_one() -> None:
    twice = activation_before(F.log_softmax(scores().softmax(1), 1).grad_fn)
    assert twice is not None
    assert (twice.kind, twice.inner) == ("LogSoftmax", "Softmax")
    same = activation_before(F.log_softmax(scores().log_softmax(1), 1).grad_fn)
    assert same is not None
    assert same.inner == "LogSoftmax"
    assert activation_before((30 * scores().sigmoid()).grad_fn) is None


def test_a_vector_minus_a_column_is_a_broadcast() -> None:
    column = torch.randn(4, 1, requires_grad=True) * 1.0
    assert broadcast_difference(((column - torch.ones(4)) ** 2).mean().grad_fn) == ((4, 1), (4, 4))
    assert broadcast_difference(((column - torch.ones(4, 1)) ** 2).mean().grad_fn) is None
    square = torch.randn(4, 4, requires_grad=True) * 1.0
    assert broadcast_difference(((square - torch.ones(4, 4)) ** 2).mean().grad_fn) is None

"""A probe leaves everything unchanged."""

from __future__ import annotations

import pytest
import torch

from stepladder.measuring.probe import is_out_of_memory, untouched


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_of_memory_are_distinguished_from_others(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) == is_memory


def test_a_real_allocation_that_fails_counts_as_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


def test_tensors_are_restored_in_place() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.weight.grad = torch.ones(2, 2)
    weight, grad = layer.weight, layer.weight.grad
    before = weight.detach().clone()
    with untouched(layer):
        with torch.no_grad():
            weight.fill_(9)
        grad.zero_()
        weight.grad = None
    assert layer.weight is weight
    assert torch.equal(weight, before)
    assert weight.grad is grad
    assert torch.equal(grad, torch.ones(2, 2))


def test_a_gradient_that_a_probe_made_is_gone_after_it() -> None:
    layer = torch.nn.Linear(2, 1)
    with untouched(layer):
        layer(torch.ones(1, 2)).sum().backward()
        assert layer.weight.grad is not None
    assert layer.weight.grad is None


def test_what_learns_and_training_flags_come_back() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout())
    model[0].requires_grad_(False)
    model[1].eval()
    with untouched(model):
        model.requires_grad_(True)
        model.train()
    assert not model[0].weight.requires_grad
    assert model.training
    assert not model[1].training


def test_optimizer_state_that_a_probe_began_is_gone_after_it() -> None:
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    with untouched(layer, optimizer):
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 5.0
    assert not optimizer.state
    assert optimizer.param_groups[0]["lr"] == 0.1

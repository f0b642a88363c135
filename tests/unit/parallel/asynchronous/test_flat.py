"""Tensors of any shape and layout go through one buffer without loss."""

from __future__ import annotations

import torch

from stepladder.parallel.asynchronous.flat import Flat


def test_tensors_come_back_in_their_shapes_types_and_layouts() -> None:
    kernel = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    tensors = [kernel, torch.tensor(3, dtype=torch.int64), torch.randn(5).double(), torch.ones(0)]
    flat = Flat(tensors)
    buffer = flat.gather(tensors, flat.empty())
    assert buffer.shape == (2 * 3 * 4 * 4 + 1 + 5,)
    others = [torch.empty_like(tensor) for tensor in tensors]
    flat.scatter(buffer, others)
    for other, tensor in zip(others, tensors, strict=True):
        torch.testing.assert_close(other, tensor.float().to(tensor.dtype), rtol=0, atol=0)
    assert others[0].is_contiguous(memory_format=torch.channels_last)


def test_a_missing_gradient_is_zero_and_integers_are_rounded() -> None:
    flat = Flat([torch.ones(2), torch.tensor(4)])
    buffer = flat.gather([None, torch.tensor(2)], torch.full((3,), 7.0))
    assert buffer.tolist() == [0, 0, 2]
    count = torch.tensor(0)
    flat.scatter(torch.tensor([1.0, 2.0, 6.6]), [torch.zeros(2), count])
    assert count.item() == 7


def test_nothing_is_a_buffer_without_values() -> None:
    flat = Flat([])
    assert flat.empty().shape == (0,)
    flat.scatter(flat.gather([], flat.empty()), [])

"""Schedules carried out between threads: sums, counts, and any layout and type of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from stepladder.parallel.collectives.algorithms import ALGORITHMS, RING, Algorithm, Shape
from stepladder.parallel.collectives.executor import Count, Executor
from stepladder.parallel.collectives.transport import Hub

law = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm.name)
TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.uint8)


def together(
    size: int,
    function: Callable[[Executor], object],
    *,
    piece_bytes: int = 64,
    timeout_s: float = 30,
) -> list[Executor]:
    """Call a function in a thread for each rank."""
    hub = Hub(size, timeout_s)
    executors = [Executor(hub.rank(rank), piece_bytes=piece_bytes) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(function, executors))
    return executors


def summed(
    algorithm: Algorithm, shape: Shape, tensors: Sequence[Tensor], piece_bytes: int = 64
) -> Count:
    """Add up the tensors of all ranks, in place, and return what was sent."""
    schedule = algorithm.schedule(shape)
    done = together(
        len(tensors),
        lambda executor: executor.sum_(tensors[executor.transport.rank], schedule),
        piece_bytes=piece_bytes,
    )
    return Count(sum(one.count.messages for one in done), sum(one.count.sent_bytes for one in done))


def values(size: int, *shape: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]
    return [torch.randint(0, 9, shape, generator=generator).to(dtype) for _ in range(size)]


def local(algorithm: Algorithm, size: int) -> int:
    return 2 if algorithm.has_hosts and size % 2 == 0 else 1


@law
@pytest.mark.parametrize("size", range(1, 17))
def test_sums_are_right_equal_on_all_ranks_and_cost_what_the_formula_says(
    algorithm: Algorithm, size: int
) -> None:
    for num in (0, 1, size - 1, size, 37):
        shape = Shape(
            num_ranks=size,
            num_elements=num,
            num_local=local(algorithm, size),
            num_segments=3 if algorithm.has_segments else 1,
        )
        tensors = values(size, num)
        expected = torch.stack(tensors).sum(0)
        count = summed(algorithm, shape, tensors)
        assert torch.allclose(tensors[0], expected, rtol=1e-13, atol=1e-13)
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
        assert count.messages == algorithm.num_messages(shape)
        assert count.sent_bytes == algorithm.num_sent(shape) * 8


@law
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sums_of_any_type_are_deterministic(algorithm: Algorithm, dtype: torch.dtype) -> None:
    shape = Shape(num_ranks=5, num_elements=129)
    results = []
    for piece_bytes in (64, 64, 1024):
        tensors = values(5, 129, dtype=dtype)
        expected = torch.stack(tensors).double().sum(0)
        summed(algorithm, shape, tensors, piece_bytes)
        assert all(torch.equal(tensor, tensors[0]) for tensor in tensors)
        tolerance = 0.0 if not dtype.is_floating_point else 16 * torch.finfo(dtype).eps
        assert torch.allclose(tensors[0].double(), expected, rtol=tolerance, atol=tolerance)
        results.append(tensors[0])
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])  # pieces do not change the order of additions


@law
def test_tensors_of_any_layout_are_summed_in_place(algorithm: Algorithm) -> None:
    shape = Shape(num_ranks=3, num_elements=30)
    whole = values(3, 5, 12)
    views = [tensor[:, ::2].t() for tensor in whole]
    expected = torch.stack(views).sum(0)
    untouched = [tensor[:, 1::2].clone() for tensor in whole]
    summed(algorithm, shape, views)
    for tensor, view, before in zip(whole, views, untouched, strict=True):
        assert torch.allclose(view, expected)
        assert view.data_ptr() == tensor.data_ptr()
        assert torch.equal(tensor[:, 1::2], before)


def test_gradients_that_require_grad_and_single_numbers_are_summed() -> None:
    tensors = [torch.tensor(float(rank), requires_grad=True) for rank in range(4)]
    summed(RING, Shape(num_ranks=4), tensors)
    assert [tensor.item() for tensor in tensors] == [6.0] * 4


def test_several_sums_follow_each_other_with_the_same_buffers() -> None:
    schedule = RING.schedule(Shape(num_ranks=3))
    found: dict[int, list[float]] = {}

    def work(executor: Executor) -> None:
        results = []
        for number in range(1, 6):
            tensor = torch.full((10 * number,), float(executor.transport.rank + number))
            results.append(executor.sum_(tensor, schedule).sum().item())
        found[executor.transport.rank] = results

    executors = together(3, work)
    expected = [10.0 * number * (3 + 3 * number) for number in range(1, 6)]
    assert found == dict.fromkeys(range(3), expected)
    assert [one.num_calls for one in executors] == [5, 5, 5]


def test_ranks_with_other_tensors_never_meet() -> None:
    schedule = RING.schedule(Shape(num_ranks=2))

    def work(executor: Executor) -> None:
        executor.sum_(torch.zeros(8 + executor.transport.rank), schedule)

    with pytest.raises(TimeoutError, match=r"no message within 0\.2 s"):
        together(2, work, timeout_s=0.2)

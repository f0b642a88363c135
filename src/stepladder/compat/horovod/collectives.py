"""Horovod's collectives on tensors, by torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from stepladder.compat.horovod.compression import Compression
from stepladder.compat.horovod.session import (
    Channel,
    HorovodInternalError,
    Session,
    current,
    exchanges_key,
)
from stepladder.errors import UsageError


class ReduceOp(IntEnum):
    """What a reduction computes."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Average: Final = ReduceOp.AVERAGE
Sum: Final = ReduceOp.SUM
Adasum: Final = ReduceOp.ADASUM
Min: Final = ReduceOp.MIN
Max: Final = ReduceOp.MAX
Product: Final = ReduceOp.PRODUCT
_OF_TORCH: Final = {Average: "SUM", Sum: "SUM", Min: "MIN", Max: "MAX", Product: "PRODUCT"}
_POLL_S: Final = 0.0001
_CHECK_S: Final = 0.05  # between two looks whether a rank has joined


class ProcessSet:
    """All processes; subsets are not available."""

    def included(self) -> bool:
        """Return True."""
        return True


global_process_set: Final = ProcessSet()


@dataclass(kw_only=True)
class Handle:
    """A collective that has begun.

    Attributes:
        work: torch's; None: it is complete.
        finish: returns the result, after the collective.
    """

    work: Any
    finish: Callable[[], Any]
    channel: Channel | None = None
    idx: int = 0


def poll(handle: Handle) -> bool:
    """Return True if a collective is complete, so that `synchronize` returns at once."""
    return handle.work is None or bool(handle.work.is_completed())


def synchronize(handle: Handle) -> Any:
    """Wait for a collective, and return its result.

    Raises:
        HorovodInternalError: if another process has ended.
    """
    if handle.work is not None:
        try:
            handle.work.wait()
        except RuntimeError as error:
            raise HorovodInternalError(str(error)) from error
        handle.work = None
        if handle.channel is not None:
            handle.channel.complete(handle.idx)
    return handle.finish()


def chosen_op(average: bool | None, op: Any) -> ReduceOp:
    """Return the reduction that the old argument `average` or the new one `op` names.

    Raises:
        UsageError: if both are given, or it is Adasum.
    """
    if average is not None and op is not None:
        raise UsageError("average and op are both given", fix="Use op alone: op=hvd.Average.")
    if op is None:
        return Sum if average is False else Average
    if op == Adasum:
        raise UsageError(
            "Adasum is not available",
            where="op",
            fix="Use op=hvd.Average, and multiply the learning rate by hvd.size().",
        )
    return ReduceOp(op)


def require_all(process_set: Any) -> None:
    """Refuse a process set that is not the global one."""
    if process_set is not None and process_set is not global_process_set:
        raise UsageError(
            "process sets are not available: collectives include all processes",
            where="process_set",
            fix="Leave process_set out, or use torch.distributed.new_group.",
        )


def begin_reduction(
    channel: Channel | None,
    tensor: Tensor,
    op: ReduceOp,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Handle:
    """Begin to reduce a contiguous tensor in place; alone, only the factors apply."""
    size = current().size
    _scale_(tensor, prescale)
    if channel is None:
        _scale_(tensor, postscale)
        return Handle(work=None, finish=lambda: tensor)
    idx, work = channel.begin(tensor, _OF_TORCH[op])

    def finish() -> Tensor:
        if op == Average and not tensor.dtype.is_floating_point and not tensor.is_complex():
            tensor.floor_divide_(size)
        elif op == Average:
            tensor.div_(size)
        _scale_(tensor, postscale)
        return tensor

    return Handle(work=work, finish=finish, channel=channel, idx=idx)


def _scale_(tensor: Tensor, factor: float) -> None:
    if factor == 1.0:
        return
    if tensor.dtype.is_floating_point or tensor.is_complex():
        tensor.mul_(factor)
    else:
        tensor.copy_((tensor.double() * factor).to(tensor.dtype))


def allreduce_async_(  # noqa: PLR0917  (the arguments are Horovod's)
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Handle:
    """Begin to reduce a tensor over all ranks, in place; see `allreduce`."""
    require_all(process_set)
    session = current()
    with torch.no_grad():
        sent = tensor.detach()
        flat = sent if sent.is_contiguous() else sent.contiguous()
        handle = begin_reduction(
            session.channels[0] if session.channels else None,
            flat,
            chosen_op(average, op),
            prescale=prescale_factor,
            postscale=postscale_factor,
        )
    finish = handle.finish

    def store() -> Tensor:
        with torch.no_grad():
            result = finish()
            if result is not sent:
                sent.copy_(result)
        return tensor

    handle.finish = store
    return handle


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Begin to reduce a tensor over all ranks; `synchronize` returns the result."""
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def allreduce_(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reduce a tensor over all ranks, in place; see `allreduce`."""
    result: Tensor = synchronize(allreduce_async_(tensor, *args, **kwargs))
    return result


class _Reduced(torch.autograd.Function):
    """A reduction whose gradient is reduced likewise."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: ReduceOp, pre: float, post: float) -> Tensor:
        ctx.how = (op, pre, post)
        return allreduce_(
            tensor.detach().clone(), op=op, prescale_factor=pre, postscale_factor=post
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        op, pre, post = ctx.how
        reduced = allreduce_(grads[0].clone(), op=op, prescale_factor=pre, postscale_factor=post)
        return reduced, None, None, None


def allreduce(  # noqa: PLR0917  (the arguments are Horovod's)
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,  # noqa: ARG001
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> Tensor:
    """Return the average, or another reduction, of a tensor over all ranks.

    Args:
        tensor: of equal shape and type on all ranks; its gradient is reduced likewise.
        average: the old form of op: False is Sum.
        name: has no effect.
        compression: `Compression.fp16` sends 16 bits.
        op: Average, Sum, Min, Max or Product.
        prescale_factor, postscale_factor: multiply the tensor before and after the reduction.
        process_set: only the global one.
    """
    require_all(process_set)
    small, dtype = compression.compress(tensor)
    how = (chosen_op(average, op), prescale_factor, postscale_factor)
    reduced = _Reduced.apply(small, *how)  # type: ignore[no-untyped-call]
    result: Tensor = compression.decompress(reduced, dtype)
    return result


def grouped_allreduce(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Return the reductions of several tensors; see `allreduce`."""
    return [allreduce(tensor, *args, **kwargs) for tensor in tensors]


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduce several tensors in place; see `allreduce`."""
    result: list[Tensor] = synchronize(grouped_allreduce_async_(tensors, *args, **kwargs))
    return result


def grouped_allreduce_async_(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Begin to reduce several tensors in place."""
    handles = [allreduce_async_(tensor, *args, **kwargs) for tensor in tensors]
    return Handle(work=None, finish=lambda: [synchronize(handle) for handle in handles])


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Begin to reduce several tensors."""
    copies = [tensor.detach().clone() for tensor in tensors]
    return grouped_allreduce_async_(copies, *args, **kwargs)


def exchange(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call a collective of torch that is not a reduction, and wait for it.

    Raises:
        HorovodInternalError: if another process has ended, or an earlier one was refused after it
            had begun.
        UsageError: if a rank has joined, and will not take part.
    """
    session = current()
    if session.is_broken:
        raise HorovodInternalError("an earlier collective was refused after it had begun")
    idx = session.num_exchanges
    session.num_exchanges += 1
    _require_present(session, idx)
    try:
        work = function(*args, async_op=True, **kwargs)
        check_at = time.monotonic() + _CHECK_S
        while not work.is_completed():
            time.sleep(_POLL_S)
            if time.monotonic() > check_at:
                _require_present(session, idx)
                check_at = time.monotonic() + _CHECK_S
        work.wait()
    except UsageError:
        session.is_broken = True  # torch still waits in it, and the ranks no longer match
        raise
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from error


def _require_present(session: Session, idx: int) -> None:
    """Refuse a collective if a rank has joined before it.

    Args:
        session: of this process.
        idx: how many collectives other than reductions came before this one.
    """
    if session.store is None:
        return
    key = exchanges_key(session)
    if session.store.check([key]) and int(session.store.get(key)) <= idx:
        raise UsageError(
            "a rank has called hvd.join(), and takes part in allreduce only",
            where="allgather, broadcast, alltoall or barrier",
            fix="Call it after all ranks have joined, or before the first one does.",
        )


def _sizes(num: int, size: int) -> list[int]:
    sizes: list[int] = [0] * size
    boxes = [torch.zeros(1, dtype=torch.int64) for _ in sizes]
    exchange(dist.all_gather, boxes, torch.tensor([num]))
    return [int(box) for box in boxes]


def _gathered(tensor: Tensor) -> tuple[Tensor, list[int]]:
    session = current()
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    if session.size == 1:
        return rows.clone(), [len(rows)]
    nums = _sizes(len(rows), session.size)
    padded = rows.new_zeros((max(nums), *rows.shape[1:]))
    padded[: len(rows)] = rows
    boxes = [torch.empty_like(padded) for _ in nums]
    exchange(dist.all_gather, boxes, padded)
    parts = [box[:num] for box, num in zip(boxes, nums, strict=True)]
    return torch.cat(parts), nums


class _Gathered(torch.autograd.Function):
    """The rows of all ranks; the gradient of a rank's own rows is the average of all ranks'."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        rows, nums = _gathered(tensor)
        ctx.start, ctx.num = sum(nums[: current().rank]), nums[current().rank]
        ctx.shape = tensor.shape
        return rows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean = allreduce_(grads[0].clone())
        return mean[ctx.start : ctx.start + ctx.num].reshape(ctx.shape)


def allgather(tensor: Tensor, name: str | None = None, process_set: Any = None) -> Tensor:  # noqa: ARG001
    """Return the rows of all ranks' tensors, in the order of ranks.

    Args:
        tensor: its first dimension may differ between ranks.
        name: has no effect.
        process_set: only the global one.
    """
    require_all(process_set)
    result: Tensor = _Gathered.apply(tensor)  # type: ignore[no-untyped-call]
    return result


def allgather_async(tensor: Tensor, name: str | None = None, process_set: Any = None) -> Handle:
    """Gather rows; they are complete when this returns."""
    result = allgather(tensor, name, process_set)
    return Handle(work=None, finish=lambda: result)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Tensor:
    """Overwrite a tensor with that of one rank."""
    require_all(process_set)
    if current().size > 1:
        with torch.no_grad():
            flat = tensor.detach().contiguous()
            exchange(dist.broadcast, flat, src=root_rank)
            if flat.data_ptr() != tensor.data_ptr():
                tensor.copy_(flat)
    return tensor


class _Broadcast(torch.autograd.Function):
    """The tensor of one rank, which gets the average of the gradients; the others get zeros."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int) -> Tensor:
        ctx.root = root
        return broadcast_(tensor.detach().clone(), root)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean = allreduce_(grads[0].clone())
        return (mean if current().rank == ctx.root else torch.zeros_like(mean)), None


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Tensor:
    """Return the tensor of one rank, on all ranks."""
    require_all(process_set)
    result: Tensor = _Broadcast.apply(tensor, root_rank)  # type: ignore[no-untyped-call]
    return result


def broadcast_async_(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Handle:
    """Overwrite a tensor with that of one rank; it is complete when this returns."""
    result = broadcast_(tensor, root_rank, *args, **kwargs)
    return Handle(work=None, finish=lambda: result)


def broadcast_async(tensor: Tensor, root_rank: int, *args: Any, **kwargs: Any) -> Handle:
    """Send the tensor of one rank to all; it is complete when this returns."""
    return broadcast_async_(tensor.detach().clone(), root_rank, *args, **kwargs)


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,  # noqa: ARG001
    process_set: Any = None,
) -> Any:
    """Send a part of the rows to each rank, and return the rows received.

    Args:
        tensor: rows.
        splits: number of rows for each rank; None: equal parts.
        name: has no effect.
        process_set: only the global one.

    Returns:
        The rows, in the order of the ranks they come from; with splits, also how many came from
        each.

    Raises:
        UsageError: if the parts are not all rows.
    """
    require_all(process_set)
    size = current().size
    if splits is None:
        nums = [len(tensor) // size] * size
    else:
        nums = [int(num) for num in torch.as_tensor(splits).tolist()]
    if sum(nums) != len(tensor) or len(nums) != size:
        raise UsageError(
            f"{len(tensor)} rows cannot be split into {nums} for {size} ranks",
            where="splits",
            fix=f"Pass {size} numbers of rows that add up to {len(tensor)}.",
        )
    rows, coming = tensor.detach().contiguous(), list(nums)
    if size > 1:
        arriving = torch.zeros(size, dtype=torch.int64)
        exchange(dist.all_to_all_single, arriving, torch.tensor(nums))
        coming = arriving.tolist()
        received = rows.new_empty((sum(coming), *rows.shape[1:]))
        exchange(dist.all_to_all_single, received, rows, coming, nums)
    else:
        received = rows.clone()
    return received if splits is None else (received, torch.tensor(coming, dtype=torch.int32))


def alltoall_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Exchange rows; they are complete when this returns."""
    result = alltoall(tensor, *args, **kwargs)
    return Handle(work=None, finish=lambda: result)


def barrier(process_set: Any = None) -> None:
    """Wait until all ranks are here."""
    require_all(process_set)
    if current().size > 1:
        exchange(dist.barrier)

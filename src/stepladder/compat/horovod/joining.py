"""`hvd.join`: a rank that has no more batches takes part in the others' reductions with zeros.

While all ranks have batches, this costs a thread that asks the store for a key ten times a second.
A rank that joins sets the key; the others then write what they reduce to the store, and the joined
rank does the same with neutral values, until the last one has joined.
"""

from __future__ import annotations

import time
from typing import Final

import torch

from stepladder.compat.horovod.session import (
    Channel,
    HorovodInternalError,
    Session,
    current,
    exchanges_key,
    join_key,
    watch_joins,
)
from stepladder.errors import UsageError

_POLL_S: Final = 0.002
_END: Final = "end"


def join(device: int = -1) -> int:  # noqa: ARG001
    """Wait until all ranks have joined, and reduce zeros with those that still have batches.

    An average still divides by the number of all ranks. Other collectives than reductions, such as
    a gather, are refused while a rank has joined.

    Returns:
        The rank that joined last.

    Raises:
        UsageError: if a launcher other than torchrun, Slurm, Spark or mpirun opened the group.
    """
    session = current()
    if session.size == 1:
        return 0
    if session.store is None:
        raise UsageError(
            "hvd.join needs a process group that hvd.init opened",
            fix="Call hvd.init() before torch.distributed.init_process_group.",
        )
    store, key = session.store, join_key(session)
    is_last = store.add(f"{key}/count", 1) == session.size
    store.compare_set(exchanges_key(session), "", str(session.num_exchanges))
    store.set(key, "1")
    if is_last:
        ends = " ".join(str(channel.next_idx) for channel in session.channels)
        store.set(f"{key}/{_END}", f"{session.rank} {ends}")
    last = _shadow(session, f"{key}/{_END}")
    session.joins += 1
    session.num_exchanges = 0
    for channel in session.channels:
        channel.is_told = False
    watch_joins(session)
    return last


def _shadow(session: Session, end: str) -> int:
    """Reduce neutral values as the others tell, until all have joined; return the last rank."""
    works = []
    try:
        while True:
            is_idle = True
            for channel in session.channels:
                if session.store.check([channel.key_of(channel.next_idx)]):
                    works.append(_take_part(channel))
                    is_idle = False
            if is_idle and session.store.check([end]):
                last, *ends = map(int, session.store.get(end).split())
                if all(
                    channel.next_idx >= at
                    for channel, at in zip(session.channels, ends, strict=True)
                ):
                    break
            if is_idle:
                time.sleep(_POLL_S)
        for work in works:
            work.wait()
    except RuntimeError as error:
        raise HorovodInternalError(str(error)) from error
    for channel in session.channels:
        channel.pending.clear()
    return last


def _take_part(channel: Channel):  # type: ignore[no-untyped-def]
    words = channel.store.get(channel.key_of(channel.next_idx)).decode().split()
    dtype, device, op, *shape = words
    tensor = _neutral(op, [int(num) for num in shape], getattr(torch, dtype)).to(device)
    return channel.begin(tensor, op)[1]


def _neutral(op: str, shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that leaves a reduction unchanged."""
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    value = {"SUM": 0, "PRODUCT": 1, "MIN": info.max, "MAX": info.min}[op]
    return torch.full(shape, value, dtype=dtype)

"""Predict the time of a schedule from the cost of its messages."""

from __future__ import annotations

import numpy as np

from stepladder.parallel.collectives.schedule import Numbers, Schedule
from stepladder.records.collectives import Link

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def schedule_s(
    schedule: Schedule, num_bytes: int, link: Link, *, slower: Floats | None = None
) -> float:
    """Predict the time of an all-reduce in seconds.

    A rank begins a step when it has finished the one before, and so have those with which it
    exchanges. If it sends or receives several messages in a step, their fixed times overlap, and
    their bytes share its connection.

    Args:
        num_bytes: of the tensor.
        slower: times by which the bytes of each rank take longer, shape (num_ranks,); None: of none
            do they.
    """
    factors = np.ones(schedule.num_ranks) if slower is None else slower
    sizes = schedule.num_elements_sent(num_bytes)
    ends = np.cumsum([0, *(len(rows) for rows in schedule.steps)])
    ready = np.zeros(schedule.num_ranks)
    for rows, start, end in zip(schedule.steps, ends, ends[1:], strict=False):
        is_sent = sizes[start:end] > 0
        ready = _after(ready, rows[is_sent], sizes[start:end][is_sent], link, factors)
    return float(ready.max(initial=0.0))


def _after(ready: Floats, rows: Numbers, sizes: Numbers, link: Link, slower: Floats) -> Floats:
    """Return when each rank has finished a step.

    Args:
        ready: when each has finished the one before, shape (num_ranks,).
        rows: messages of the step, shape (num_messages, 5).
        sizes: their bytes.
        slower: of the bytes of each rank. A message takes as long as the slower of its two ends
            needs; meanwhile the other one can send and receive others.
    """
    source, target, is_added = rows[:, 0], rows[:, 1], rows[:, 4]
    num = len(ready)
    sends = np.bincount(source, minlength=num) > 0
    receives = np.bincount(target, minlength=num) > 0
    both = sends & receives
    is_exchange = both[source] | both[target]
    alpha = np.where(is_exchange, link.exchange_alpha_s, link.alpha_s)
    beta = np.where(is_exchange, link.exchange_beta_s, link.beta_s)
    bytes_s = slower * np.maximum(
        np.bincount(source, sizes * beta, num), np.bincount(target, sizes * beta, num)
    )
    message_s = sizes * beta * np.maximum(slower[source], slower[target])
    np.maximum.at(bytes_s, source, message_s)
    np.maximum.at(bytes_s, target, message_s)
    fixed_s = np.zeros(num)
    np.maximum.at(fixed_s, source, alpha)
    np.maximum.at(fixed_s, target, alpha)
    busy = fixed_s + bytes_s + np.bincount(target, sizes * is_added * link.gamma_s, num)
    begin = ready.copy()
    np.maximum.at(begin, source, ready[target])
    np.maximum.at(begin, target, ready[source])
    own = begin + busy
    result = own.copy()
    np.maximum.at(result, target, own[source])
    return np.where(sends | receives, result, ready)

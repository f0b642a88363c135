"""Name the rank because of which an all-reduce failed."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

from stepladder.errors import ResourceError

_KEY: Final = "stepladder/collective/{rank}"
_WAIT_S: Final = 5.0  # for the words of the others
_POLL_S: Final = 0.05


def blamed(store: Any, *, rank: int, size: int, signature: str, cause: str) -> ResourceError:
    """Return the error of an all-reduce that failed, with the rank that is to blame.

    Each rank writes down what it was adding up. Those that write nothing have ended, or hang; those
    that add up something else than most others are named with it.

    Args:
        store: that all ranks share, of torch.distributed.
        signature: of this rank's call: its number, type and shape.
        cause: the message of the error.
    """
    store.set(_KEY.format(rank=rank), signature)
    found = {rank: signature}
    until = time.monotonic() + _WAIT_S
    while len(found) < size and time.monotonic() < until:
        for other in range(size):
            if other not in found and store.check([_KEY.format(rank=other)]):
                found[other] = store.get(_KEY.format(rank=other)).decode()
        time.sleep(_POLL_S)
    missing = [other for other in range(size) if other not in found]
    if missing:
        return ResourceError(
            f"{_ranks(missing)} did not take part in an all-reduce, and did not answer afterwards",
            why=f"Rank {rank} was at {signature}: {cause}",
            fix="Read the log of that rank: it was killed, or hangs.",
        )
    usual, _ = Counter(found[other] for other in range(size)).most_common(1)[0]
    odd = [other for other in range(size) if found[other] != usual]
    if not odd:
        return ResourceError(
            f"the network failed during {signature}, although all {size} ranks take part",
            why=cause,
            fix="Check the network between the hosts, then type the same command.",
        )
    others = [other for other in range(size) if other not in odd]
    return ResourceError(
        f"{_ranks(odd)} was at {found[odd[0]]}, but {_ranks(others)} at {usual}",
        why="An all-reduce needs tensors of equal shape and type on all ranks, in the same order.",
        fix="Use the same model and the same order of calls on all ranks.",
    )


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(str(number) for number in numbers)}"

"""How many examples an accuracy is based on: as passed, as logged, or inferred from decimals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepladder.diagnosis.logs.meaning.column_names import MAX_DIGITS
from stepladder.errors import UsageError
from stepladder.records.audit import RunLog, SizeSource

MAX_CHANCE = 1e-3  # that values which are not shares of n examples look as if they were
_FLOAT32 = 2e-7  # maximum error of a share that went through float32
_MAX_N = 200_000
_BLOCK = 2048
_MAX_SHARES = 64
_MIN_SHARES = 3  # different ones; n is wrong if all counts share a factor: 39 % for 2, 17 % for 3


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What the user knows about the sets of a log.

    Attributes:
        num_train, num_val, num_test: number of examples; None if not passed.
    """

    num_train: int | None = None
    num_val: int | None = None
    num_test: int | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{value} is not a number of examples, which must be at least 1",
                    where=flag,
                    fix=f"Pass the number of examples in the set, such as {flag} 1000.",
                )


@dataclass(frozen=True, kw_only=True)
class HeldOutSize:
    """The number of held-out examples.

    Attributes:
        num: None if unknown.
        source: where it comes from.
        problem: why the number that was passed or logged cannot be right; empty if it can.
        multiple_of: of which an unknown number is a multiple; None if that is unknown too.
    """

    num: int | None = None
    source: SizeSource | None = None
    problem: str = ""
    multiple_of: int | None = None


def with_sizes(log: RunLog, sizes: Sizes) -> RunLog:
    """Replace the sizes in the log by those that the user passed."""
    given = {name: value for name, value in vars(sizes).items() if value is not None}
    return replace(log, **given)


def held_out_size(
    log: RunLog, shares: Sequence[float], *, given: int | None, logged: int | None
) -> HeldOutSize:
    """Return the number of examples that shares are based on.

    Args:
        shares: accuracies of one held-out set.
        given: as passed by the user; takes priority over the logged one, and that over an
            inferred one.

    The sizes of sets that the log names without their split count as logged, if the shares are
    possible with the first of them after that of training.
    """
    for num, source in ((given, SizeSource.GIVEN), (logged, SizeSource.LOGGED)):
        if num is not None:
            return HeldOutSize(num=num, source=source, problem=_problem(num, shares, log.digits))
    for num in log.sizes_found[1:]:
        if shares and not _problem(num, shares, log.digits):
            return HeldOutSize(num=num, source=SizeSource.LOGGED)
    found = infer_size(shares, digits=log.digits)
    if found is None or len({share for share in shares if 0 < share < 1}) < _MIN_SHARES:
        return HeldOutSize(multiple_of=found)
    return HeldOutSize(num=found, source=SizeSource.INFERRED)


def infer_size(shares: Sequence[float], *, digits: int | None) -> int | None:
    """Find the smallest n for which all shares are multiples of 1/n, to their decimals.

    A share that is not a multiple of 1/n matches with a chance of 2 n tolerance; the search ends
    when all n so far would have matched by chance with more than MAX_CHANCE together. The true
    number may be a multiple of n, and likely is with few shares: 24 of 29 are 240 of 290.

    Args:
        shares: accuracies in [0, 1].
        digits: decimals that they are written with; None: as floats.

    Returns:
        None if there are too few decimals or shares.
    """
    values = np.unique([share for share in shares if 0 < share < 1])[:_MAX_SHARES]
    tolerance = _tolerance(digits)
    chance = 0.0
    for start in range(2, _MAX_N, _BLOCK):
        sizes = np.arange(start, start + _BLOCK, dtype=np.float64)
        chances = chance + np.cumsum(np.minimum(1.0, 2 * sizes * tolerance) ** values.size)
        scaled = sizes[:, None] * values  # (n, shares)
        fits = np.abs(scaled - np.round(scaled)) <= sizes[:, None] * tolerance * (1 + 1e-9)
        for idx in np.flatnonzero(fits.all(axis=1)):
            return int(sizes[idx]) if chances[idx] <= MAX_CHANCE else None
        chance = float(chances[-1])
        if chance > MAX_CHANCE:
            return None
    return None


def _tolerance(digits: int | None) -> float:
    exact = digits is None or digits >= MAX_DIGITS
    return _FLOAT32 if exact else 0.5 * 10.0 ** -(digits or 0)


def _problem(n: int, shares: Sequence[float], digits: int | None) -> str:
    """Return which accuracy n examples cannot give; empty if all are possible or it is unknown."""
    tolerance = _tolerance(digits)
    if 2 * n * tolerance >= 1:
        return ""
    for share in shares:
        if not 0 <= share <= 1:
            continue
        off = abs(share * n - round(share * n))
        if off > n * tolerance * (1 + 1e-9):
            below = math.floor(share * n)
            return (
                f"an accuracy of {share:.6g} is impossible with {n:,} examples: {below:,} correct "
                f"are {below / n:.6g}, {below + 1:,} are {(below + 1) / n:.6g}"
            )
    return ""

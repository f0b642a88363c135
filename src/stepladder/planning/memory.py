"""The memory of a step on a device: which batch fits, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from stepladder.parallel.divided.choice import Kind, memory_of
from stepladder.planning.job import PlannedJob
from stepladder.records.model_size import ModelSize

_USABLE: Final = 0.95
"""Share of a device's memory that a step may use: the driver and fragments take the rest."""

_DIVIDED: Final = {
    Kind.DATA: "copied",
    Kind.SHARDED: "sharded",
    Kind.TENSOR: "divided within its layers",
    Kind.PIPELINE: "divided into stages",
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a step fits into the memory of a device.

    Attributes:
        kind: how devices share the model.
        micro_batch, accumulation: examples of a device in a pass, and passes of a step.
        num_bytes: of the peak; None: not known.
        is_checkpointed: activations are computed again in the backward pass.
        shared: devices that have one copy of the model together.
    """

    kind: Kind
    micro_batch: int
    accumulation: int
    num_bytes: float | None
    is_checkpointed: bool = False
    shared: int = 1


def step_bytes(
    job: PlannedJob, examples: int, *, devices: int = 1, kind: Kind = Kind.DATA
) -> float | None:
    """Return the peak bytes of a device in a step; None: not measured, or impossible.

    Args:
        examples: of a device in a pass.
        devices: that share the model.
        kind: how they do.
    """
    if kind is Kind.DATA and job.memory is not None:
        return job.memory.fixed_bytes + examples * job.memory.example_bytes
    if job.size is None:
        return None
    if kind is Kind.DATA:
        return job.size.step_bytes(examples)
    return memory_of(job.size, devices=devices, batch=examples * devices).get(kind)


def checkpointed(size: ModelSize, num_blocks: int) -> ModelSize:
    """Return the size with gradient checkpointing: the inputs of blocks, and one block at a time.

    Its forward pass runs twice, so a step takes about a third longer.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
    """
    if num_blocks < 2 or size.cut is None:
        return size
    kept = num_blocks * size.cut + math.ceil(size.kept / num_blocks)
    if kept >= size.kept:
        return size
    return replace(size, kept=kept, inner=min(size.inner, kept), peaks=())


def largest_batch(job: PlannedJob, limit: float | None, *, kind: Kind = Kind.DATA) -> int | None:
    """Return the most examples of a device in a pass; None: no limit is known."""
    one, two = step_bytes(job, 1, kind=kind), step_bytes(job, 2, kind=kind)
    if limit is None or one is None or two is None or two <= one:
        return None
    return max(0, int((_USABLE * limit - one) / (two - one)) + 1) if one <= _USABLE * limit else 0


def fits_of(
    job: PlannedJob,
    *,
    own: int,
    devices: int,
    limit: float | None,
    local: int = 1,
    kinds: tuple[Kind, ...] = tuple(Kind),
) -> list[Fit]:
    """Return the ways in which a step fits: each kind in the fewest passes, also checkpointed.

    Args:
        own: examples of a device in a step.
        devices: that train together.
        limit: bytes of a device; None: not known, so that everything fits.
        local: devices of a host, within which layers are divided first.
        kinds: allowed, in order.

    Returns:
        Empty if it fits in no way.
    """
    found = []
    for kind in kinds:
        if kind is not Kind.DATA and devices == 1:
            continue
        shared: tuple[int, ...] = (1,) if kind is Kind.DATA else (devices,)
        if kind in (Kind.TENSOR, Kind.PIPELINE) and 1 < local < devices:
            shared = (local, devices)
        ways = (_fit_as(job, kind, own=own, shared=num, limit=limit) for num in shared)
        fit = next((way for way in ways if way is not None), None)
        found += [] if fit is None else [fit]
        is_whole = fit is not None and fit.accumulation == 1
        if kind in (Kind.DATA, Kind.SHARDED) and job.size is not None and not is_whole:
            smaller = replace(job, size=checkpointed(job.size, job.num_blocks), memory=None)
            fit = _fit_as(smaller, kind, own=own, shared=shared[0], limit=limit)
            if fit is not None and smaller.size != job.size:
                found.append(replace(fit, is_checkpointed=True))
    return found


def _fit_as(
    job: PlannedJob, kind: Kind, *, own: int, shared: int, limit: float | None
) -> Fit | None:
    """Return the fewest passes in which a step of one kind fits; `shared` devices have a copy."""
    for accumulation in _divisions(own):
        micro = math.ceil(own / accumulation)
        needed = step_bytes(job, micro, devices=shared, kind=kind)
        if needed is None and kind is not Kind.DATA:
            return None
        if needed is None or limit is None or needed <= _USABLE * limit:
            return Fit(
                kind=kind,
                micro_batch=micro,
                accumulation=accumulation,
                num_bytes=needed,
                shared=shared,
            )
    return None


def missing_words(
    job: PlannedJob, *, devices: int, limit: float, kinds: tuple[Kind, ...] = tuple(Kind)
) -> str:
    """Return by how much a model does not fit, and what would make it fit."""
    needs = {kind: step_bytes(job, 1, devices=devices, kind=kind) for kind in kinds}
    known = {kind: value for kind, value in needs.items() if value is not None}
    if not known:
        return f"cannot be {_DIVIDED[kinds[0]]} over {devices} devices; leave out --parallelism"
    kind = min(known, key=known.__getitem__)
    least = known[kind]
    text = (
        f"needs {least / 1e9:,.3g} GB a device for one example ({kind}), "
        f"{(least - _USABLE * limit) / 1e9:,.3g} GB more than there are"
    )
    for num in (2 * devices << power for power in range(10)):
        found = fits_of(job, own=1, devices=num, limit=limit)
        if found:
            return f"{text}; {found[0].kind} on {num} devices fits"
    return f"{text}; a device with {least / _USABLE / 1e9:,.3g} GB fits it"


def _divisions(own: int) -> list[int]:
    """Return 1, 2, 4, … and the examples themselves."""
    powers = [1 << power for power in range(own.bit_length()) if 1 << power <= own]
    return sorted({*powers, max(1, own)})

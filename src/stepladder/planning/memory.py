"""The memory of a step on a device: which batch fits, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from stepladder.parallel.divided.choice import SHARE_EXAMPLES, Kind, memory_of
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
        micro_batch, accumulation: examples of a pass, of one device or of those that compute the
            same ones, and passes of a step.
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
        examples: of a pass, of one device or of those that compute the same ones.
        devices: that share the model.
        kind: how they do.
    """
    if kind is Kind.DATA and job.memory is not None:
        return job.memory.fixed_bytes + examples * job.memory.example_bytes
    if job.size is None:
        return None
    if kind is Kind.DATA:
        return job.size.step_bytes(examples)
    batch = examples if kind in SHARE_EXAMPLES else examples * devices
    return memory_of(job.size, devices=devices, batch=batch).get(kind)


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


def largest_batch(job: PlannedJob, limit: float | None, fit: Fit | None = None) -> int | None:
    """Return the most examples of a pass; None: no limit is known.

    Args:
        fit: how the model is shared; None: a device has all of it.
    """
    how = fit or Fit(kind=Kind.DATA, micro_batch=1, accumulation=1, num_bytes=None)
    smaller = _checkpointed_job(job) if how.is_checkpointed else job
    one, two = (
        step_bytes(smaller, examples, devices=how.shared, kind=how.kind) for examples in (1, 2)
    )
    if limit is None or one is None or two is None or two <= one:
        return None
    return max(0, int((_USABLE * limit - one) / (two - one)) + 1) if one <= _USABLE * limit else 0


def fits_of(
    job: PlannedJob,
    *,
    batch: int,
    devices: int,
    limit: float | None,
    own: int | None = None,
    local: int = 1,
    kinds: tuple[Kind, ...] = tuple(Kind),
) -> list[Fit]:
    """Return the ways in which a step fits: each kind in the fewest passes, also checkpointed.

    Args:
        batch: examples of a step.
        devices: that train together.
        limit: bytes of a device; None: not known, so that everything fits.
        own: examples of a device in a step; None: an equal part of the batch.
        local: devices of a host, among which layers are divided first.
        kinds: allowed, in order.

    Returns:
        Empty if it fits in no way.
    """
    part = math.ceil(batch / devices) if own is None else own
    smaller = _checkpointed_job(job)
    found = []
    for kind in kinds:
        for shared in _degrees(kind, devices, local):
            if kind in SHARE_EXAMPLES:
                copies = devices // shared
                fit = _fit_as(job, kind, math.ceil(batch / copies), shared=shared, limit=limit)
                found += [fit] if fit is not None and batch >= copies else []
                continue
            fit = _fit_as(job, kind, part, shared=shared, limit=limit)
            found += [] if fit is None else [fit]
            if smaller is not job and (fit is None or fit.accumulation > 1):
                fit = _fit_as(smaller, kind, part, shared=shared, limit=limit)
                found += [] if fit is None else [replace(fit, is_checkpointed=True)]
    return found


def _degrees(kind: Kind, devices: int, local: int) -> list[int]:
    """Return how many devices may have one copy of the model together."""
    if kind is Kind.DATA:
        return [1]
    if devices == 1:
        return []
    if kind is Kind.SHARDED:
        return [devices]
    among = local if local > 1 else devices
    return sorted({devices, *(num for num in range(2, among + 1) if among % num == 0)})


def _checkpointed_job(job: PlannedJob) -> PlannedJob:
    """Return the job with gradient checkpointing; the same one if that saves nothing."""
    if job.size is None:
        return job
    size = checkpointed(job.size, job.num_blocks)
    return job if size == job.size else replace(job, size=size, memory=None)


def _fit_as(
    job: PlannedJob, kind: Kind, examples: int, *, shared: int, limit: float | None
) -> Fit | None:
    """Return the fewest passes in which a step of one kind fits; `shared` devices have a copy."""
    for accumulation in _divisions(examples):
        micro = math.ceil(examples / accumulation)
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
    job: PlannedJob,
    *,
    devices: int,
    limit: float | None,
    local: int = 1,
    kinds: tuple[Kind, ...] = tuple(Kind),
    remedy: str = "leave out --parallelism",
) -> str:
    """Return by how much a model does not fit, and what would make it fit.

    Args:
        local: devices of a host.
        kinds: that were asked for.
        remedy: what to type to allow the others.
    """
    needs = {
        (kind, shared): step_bytes(job, 1, devices=shared, kind=kind)
        for kind in kinds
        for shared in _degrees(kind, devices, local)
    }
    known = {way: value for way, value in needs.items() if value is not None}
    if not known or limit is None:
        return f"cannot be {_DIVIDED[kinds[0]]} over {devices} devices; {remedy}"
    way = min(known, key=known.__getitem__)
    least = known[way]
    text = (
        f"needs {least / 1e9:,.3g} GB a device for one example ({way[0]}), "
        f"{(least - _USABLE * limit) / 1e9:,.3g} GB more than there are"
    )
    for num in (devices << power for power in range(11)):
        found = fits_of(job, batch=num, devices=num, limit=limit, local=min(local, num))
        first = next((fit for fit in found if fit.kind in kinds), next(iter(found), None))
        if first is not None:
            text += f"; {first.kind} on {num} devices fits"
            return text if first.kind in kinds else f"{text}: {remedy}"
    return f"{text}; a device with {least / _USABLE / 1e9:,.3g} GB fits it"


def _divisions(own: int) -> list[int]:
    """Return 1, 2, 4, … and the examples themselves."""
    powers = [1 << power for power in range(own.bit_length()) if 1 << power <= own]
    return sorted({*powers, max(1, own)})

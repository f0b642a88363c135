"""Which kind of parallelism fits a model: by the bytes that a device keeps, then by those it sends.

The order is that of the ladder: copies of the model (data parallel) where they fit, then a sharded
model, then its layers on several devices. Copies send the gradients of all weights, whatever the
batch, and mostly while they compute; devices that share a model send activations, which grow with
the batch, and wait for them. So few weights and much data speak for copies, many weights and few
examples for the others.

Source: Krizhevsky 2014, arXiv:1404.5997, section 3 (what each kind sends); Rajbhandari et al. 2020,
"ZeRO", arXiv:1910.02054, sections 3 and 7 (memory, and 1.5 times the traffic); Korthikanti et al.
2022, arXiv:2205.05198, section 4 (activations).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stepladder.records.model_size import ModelSize

PARTS_OF_A_STAGE: Final = 4
"""Micro-batches of a pipeline for each of its stages, unless the user sets their number."""


class Kind(StrEnum):
    """How several devices share the work of a step."""

    DATA = "data parallel"
    SHARDED = "sharded"
    TENSOR = "tensor parallel"
    PIPELINE = "pipeline"


SHARE_EXAMPLES: Final = (Kind.TENSOR, Kind.PIPELINE)
"""Kinds whose devices compute the same examples."""
_ARTICLES: Final = {Kind.TENSOR: "tensor parallelism", Kind.PIPELINE: "a pipeline"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which kind fits, and why.

    Attributes:
        kind: None: none of them fits.
        memory: bytes on a device, by kind; without those that are impossible for the model.
        traffic: bytes that a device sends in a step, by kind.
        reason: in words.
    """

    kind: Kind | None
    memory: Mapping[Kind, float]
    traffic: Mapping[Kind, float]
    reason: str


def memory_of(
    size: ModelSize, *, devices: int, batch: int, at_once: int | None = None
) -> dict[Kind, float]:
    """Return the bytes that a step needs on a device, by kind that the model allows.

    Args:
        batch: examples of a step on all devices.
        at_once: of them, those that are computed at once; None: all.
    """
    num = min(batch, at_once or batch)
    own = -(-num // devices)  # examples of a device
    found: dict[Kind, float] = {Kind.DATA: size.fixed + size.copies + own * size.kept}
    if devices == 1:
        return found
    # a unit computes while the next one comes
    sharded = size.fixed / devices + size.copies + 2 * size.unit + own * size.kept
    found[Kind.SHARDED] = min(sharded, found[Kind.DATA])
    if size.divided and size.shares % devices == 0:
        share = size.divided / max(1, size.weights)
        fixed = (size.fixed + size.copies) * (1 - share + share / devices)
        found[Kind.TENSOR] = fixed + num * (size.kept - size.inner + size.inner / devices)
    if size.cut is not None and size.num_cuts >= devices - 1:
        # 1F1B: a stage keeps as many parts of the batch as there are stages
        in_flight = min(1.0, devices / min(num, PARTS_OF_A_STAGE * devices))
        fixed = (size.fixed + size.copies) / devices
        found[Kind.PIPELINE] = fixed + num * size.kept * in_flight / devices
    return found


def traffic_of(size: ModelSize, *, devices: int, batch: int) -> dict[Kind, float]:
    """Return the bytes that a device sends in a step, by kind."""
    share = (devices - 1) / devices
    found = {Kind.DATA: 2 * share * size.trained, Kind.SHARDED: 3 * share * size.trained}
    if size.divided and size.shares % devices == 0:
        found[Kind.TENSOR] = 2 * share * 2 * size.summed * batch  # forward and backward
    if size.cut is not None and size.num_cuts >= devices - 1:
        found[Kind.PIPELINE] = 2.0 * size.cut * batch
    return found


def choose(
    size: ModelSize, *, devices: int, batch: int, memory: float, at_once: int | None = None
) -> Choice:
    """Return which kind of parallelism fits a model.

    Args:
        devices: that train together, 2 or more.
        batch, at_once: see `memory_of`.
        memory: bytes of one device.
    """
    needs = memory_of(size, devices=devices, batch=batch, at_once=at_once)
    sends = traffic_of(size, devices=devices, batch=batch)
    is_short = batch < devices  # some copies would have nothing to compute
    possible = SHARE_EXAMPLES if is_short else tuple(Kind)
    kind = next((one for one in possible if needs.get(one, math.inf) <= memory), None)
    reason = f"batch {batch} for {devices} devices: " if is_short else ""
    reason += _memory_words(kind, needs, memory)
    if kind is not None:
        reason += f"; {_traffic_words(sends)}"
    return Choice(kind=kind, memory=needs, traffic=sends, reason=reason)


def _memory_words(kind: Kind | None, needs: Mapping[Kind, float], memory: float) -> str:
    copy = f"{size_words(needs[Kind.DATA])} of {size_words(memory)}"
    if kind is Kind.DATA:
        return f"copies fit, with {copy}"
    if kind is None:
        least = min(needs, key=needs.__getitem__)
        return f"a copy needs {copy}, and the least is {size_words(needs[least])} ({least})"
    return f"a copy needs {copy}, {kind} {size_words(needs[kind])}"


def _traffic_words(sends: Mapping[Kind, float]) -> str:
    """Return the two byte counts: of copies, and of devices that share the layers."""
    others = {one: sends[one] for one in SHARE_EXAMPLES if one in sends}
    copies = f"copies send {size_words(sends[Kind.DATA])} a step"
    if not others:
        return copies
    best = min(others, key=others.__getitem__)
    return f"{copies}, {_ARTICLES[best]} {size_words(others[best])}"


def size_words(num_bytes: float) -> str:
    """Return a number of bytes in words: `0.35 MB`, `35 MB`, `3.5 GB`."""
    if num_bytes >= 0.9995e9:
        return f"{num_bytes / 1e9:,.3g} GB" if num_bytes < 1e12 else f"{num_bytes / 1e9:,.0f} GB"
    return f"{num_bytes / 1e6:,.3g} MB" if num_bytes < 1e9 else f"{num_bytes / 1e6:,.0f} MB"

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

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from stepladder.records.model_size import ModelSize

_PARTS_OF_A_STAGE: Final = 4  # micro-batches, see pipeline.py


class Kind(StrEnum):
    """How several devices share the work of a step."""

    DATA = "data parallel"
    SHARDED = "sharded"
    TENSOR = "tensor parallel"
    PIPELINE = "pipeline"


_SHARE_EXAMPLES: Final = (Kind.TENSOR, Kind.PIPELINE)
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


def memory_of(size: ModelSize, *, devices: int, batch: int) -> dict[Kind, float]:
    """Return the bytes that a step needs on a device, by kind.

    Args:
        batch: examples of a step on all devices.
    """
    own = -(-batch // devices)  # examples of a device
    one: dict[Kind, float] = {Kind.DATA: size.fixed + own * size.kept}
    if devices == 1:
        return one
    sharded = size.fixed / devices + 2 * size.unit + own * size.kept  # one computes, one comes
    one[Kind.SHARDED] = min(sharded, one[Kind.DATA])
    if size.divided:
        share = size.divided / max(1, size.weights)
        fixed = size.fixed * (1 - share + share / devices)
        one[Kind.TENSOR] = fixed + batch * (size.kept - size.inner + size.inner / devices)
    if size.cut is not None:
        # 1F1B: a stage keeps as many parts as there are stages, each of 1 / (4 stages) of a batch
        in_flight = min(1.0, 1 / _PARTS_OF_A_STAGE)
        one[Kind.PIPELINE] = size.fixed / devices + batch * size.kept * in_flight / devices
    return one


def traffic_of(size: ModelSize, *, devices: int, batch: int) -> dict[Kind, float]:
    """Return the bytes that a device sends in a step, by kind."""
    share = (devices - 1) / devices
    found = {Kind.DATA: 2 * share * size.trained, Kind.SHARDED: 3 * share * size.trained}
    if size.divided:
        found[Kind.TENSOR] = 2 * share * 2 * size.summed * batch  # forward and backward
    if size.cut is not None:
        found[Kind.PIPELINE] = 2.0 * size.cut * batch
    return found


def choose(size: ModelSize, *, devices: int, batch: int, memory: float) -> Choice:
    """Return which kind of parallelism fits a model.

    Args:
        devices: that train together, 2 or more.
        batch: examples of a step on all devices.
        memory: bytes of one device.
    """
    needs = memory_of(size, devices=devices, batch=batch)
    sends = traffic_of(size, devices=devices, batch=batch)
    possible = [kind for kind in Kind if kind in needs]
    if batch < devices:  # some would have nothing to compute
        possible = [kind for kind in possible if kind in _SHARE_EXAMPLES]
    kind = next((kind for kind in possible if needs[kind] <= memory), None)
    is_short = batch < devices
    parts = [_memory_words(kind, needs, memory), _traffic_words(sends)]
    if kind is None:
        parts.pop()
    start = f"batch {batch} for {devices} devices: " if is_short else ""
    return Choice(kind=kind, memory=needs, traffic=sends, reason=start + "; ".join(parts))


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
    others = {one: sends[one] for one in _SHARE_EXAMPLES if one in sends}
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

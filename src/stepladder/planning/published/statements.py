"""What publications say beside their tables, and what the planner says to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from stepladder.planning.costs.all_reduce import (
    Group,
    all_reduce_s,
    halving_doubling_s,
    parameter_server_s,
    reduction_tree_s,
    ring_s,
)
from stepladder.planning.hardware.connections import CONNECTIONS
from stepladder.records.collectives import Link

_BY_NAME: Final = {one.name: one for one in CONNECTIONS}
_FLOAT_BYTES: Final = 4
_MB: Final = 1e6
_IMAGENET: Final = 1_281_167


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A published statement beside what the planner computes.

    Attributes:
        source: where it was published.
        published, computed: in words.
        value: the number that is computed, for tests.
    """

    source: str
    published: str
    computed: str
    value: float


def statements() -> list[Statement]:
    """Return all statements."""
    return [
        *_firecaffe(),
        _frozen(),
        _halving(),
        *_machines(),
        *_minutes(),
        *_split(),
    ]


def _speedup(
    alone_s: float,
    exchange_s: Callable[[int, float, Link], float],
    num_bytes: float,
    *,
    batch: int,
    num: int,
) -> float:
    """Return the speed-up of a step that does not hide its messages, over one device."""
    link = _BY_NAME["gemini"].link()
    computed_s = batch * alone_s / num
    return batch * alone_s / (computed_s + exchange_s(num, num_bytes, link))


def _firecaffe() -> Iterator[Statement]:
    source = "Iandola et al. 2016, FireCaffe, arXiv:1511.00175"
    for name, per_s, size, published, epochs in (
        ("NiN", 120, 30 * _MB, 39, 1.0),
        ("GoogLeNet", 46, 54 * _MB, 47, 64 / 72),
    ):
        tree = epochs * _speedup(1 / per_s, reduction_tree_s, size, batch=1024, num=128)
        server = epochs * _speedup(1 / per_s, parameter_server_s, size, batch=1024, num=128)
        yield Statement(
            source=source,
            published=f"{name} on 128 K20: {published}× by a reduction tree",
            computed=f"{tree:.0f}× by a tree, without stragglers; {server:.1f}× by one parameter "
            "server",
            value=tree,
        )


def _frozen() -> Statement:
    head = (2048 * 257 + 257) * _FLOAT_BYTES
    whole = 22.9e6 * _FLOAT_BYTES
    group = Group(hosts=1, devices=4, inside=_BY_NAME["pcie3"].link(), network=None)
    head_s, whole_s = (all_reduce_s("native", group, size) for size in (head, whole))
    return Statement(
        source="Owen 2019, Databricks",
        published="Horovod on 4 T4 is exactly 4.00× as fast, with a frozen Xception",
        computed=f"the head's gradients are {head / _MB:.1f} MB, {1e3 * head_s:.1f} ms of a step "
        f"of 121; those of the whole model would be {whole / _MB:.0f} MB, {1e3 * whole_s:.0f} ms",
        value=head,
    )


def _halving() -> Statement:
    """Find the time of a message at which halving and doubling is three times as fast."""
    size, beta = 4 * _MB, 1 / 6.25e9
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = math.sqrt(max(low, 1e-9) * high)
        link = Link.plain(alpha_s=middle, beta_s=beta)
        if ring_s(32, size, link) / halving_doubling_s(32, size, link) < 3:
            low = middle
        else:
            high = middle
    return Statement(
        source="Goyal et al. 2017, arXiv:1706.02677",
        published="halving and doubling is 3× as fast as a ring, on 32 servers and buffers of up "
        "to a million elements",
        computed=f"so for 4 MB over 50 Gbit/s if a message takes {1e6 * high:.0f} µs: both send as "
        "many bytes, in 10 messages one after the other, or in 62",
        value=high,
    )


def _machines() -> Iterator[Statement]:
    workers = 5.7 / 7.3 * 1.06
    source = "Owen 2019, Databricks"
    yield Statement(
        source=source,
        published="eight machines of one T4 at +6 % an hour, 5.7 min, against one of four, 7.3 min",
        computed=f"{workers:.2f} of the cost",
        value=workers,
    )
    yield Statement(
        source=source,
        published="the same, with the driver priced as one more machine",
        computed=f"{workers * 9 / 8:.2f} of the cost",
        value=workers * 9 / 8,
    )


def _minutes() -> Iterator[Statement]:
    source = "You et al. 2018, ImageNet Training in Minutes, arXiv:1709.05011"
    for name, epochs, minutes, nodes, gflops, peak in (
        ("ResNet-50", 90, 20, 2048, 24.6, ("KNL 7250, 6.1 TFLOP/s", 6.1)),
        ("ResNet-50", 64, 14, 2048, 24.6, ("KNL 7250, 6.1 TFLOP/s", 6.1)),
        ("AlexNet", 100, 11, 1024, 4.3, ("two Xeon 8160, 6.5 TFLOP/s", 6.5)),
    ):
        rate = _IMAGENET * epochs / (60 * minutes) / nodes
        share = rate * gflops / 1e3 / peak[1]
        verdict = "possible" if share < 0.6 else "not possible"
        yield Statement(
            source=source,
            published=f"{name}, {epochs} epochs in {minutes} min on {nodes:,} nodes",
            computed=f"no single-node rate is published; it implies {rate:.0f} examples/s a node, "
            f"{100 * share:.0f} % of the data sheet's peak ({peak[0]}): {verdict}",
            value=rate,
        )


def _split() -> Iterator[Statement]:
    """Split speed-ups into what the hardware gives, and what the method changes."""
    for source, what, total, hardware, devices in (
        ("Owen 2019, Databricks", "42 min to 7.3 min on 4 T4", 42 / 7.3, 208 / 52, 4),
        (
            "Iandola et al. 2016, FireCaffe",
            "GoogLeNet, 47× on 128 K20",
            47.0,
            47.0 * 72 / 64,
            128,
        ),
        ("Goyal et al. 2017", "29 h to 1 h on 32 times as many P100", 29.0, 29.0, 32),
    ):
        method = total / hardware
        yield Statement(
            source=source,
            published=what,
            computed=f"{total:.1f}× = {hardware:.1f}× by the hardware ({devices}× the devices, "
            f"{100 * hardware / devices:.0f} % of it) × {method:.2f} by the number of epochs",
            value=method,
        )

"""The published cases: what is known of each, and the one number that is fitted to it, if any.

A case is described before its larger configurations are compared: by its model, its machines and
its method. No constant is edited for one case after another was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from stepladder.planning.published.points import Point
from stepladder.records.profile import Gradient

_MB: Final = 1e6


class Fitted(StrEnum):
    """The number that is fitted to the two smallest configurations of a case."""

    NOTHING = "nothing"
    SPREAD = "spread"
    DRIVER = "driver"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Published measurements of one training on several numbers of devices.

    Attributes:
        name: in words.
        ids: rows of the table; the first is the base.
        fitted: what is fitted to the first two.
        all_reduce: of the devices: a name as in `costs.all_reduce`.
        inside, network: names of connections; cards: network cards of a host.
        gradients: shares of the bytes, and when they are ready.
        server_links: connections of a parameter server to the devices of its host.
        example_size: what an example counts in the published unit: tokens of a sequence.
        base_s: seconds of a step on one device, if the base has no rate of its own; base_note says
            where it is from.
        fixed_s: of a step, whatever the batch.
        base_epochs, epochs: of the trainings, if published values are whole trainings.
        has_driver: ids of single-process replication.
        hides: gradients travel while others are computed.
        is_sharded: weights are fetched, and gradients are scattered.
        backward_frac: of the pass.
        reason: why a point is further away than 20 %, if one is.
    """

    name: str
    ids: Sequence[str]
    fitted: Fitted = Fitted.NOTHING
    all_reduce: str = "native"
    inside: str = "pcie3"
    network: str = "10gbe"
    cards: int = 1
    gradients: Sequence[tuple[float, float]] = ()
    server_links: int = 1
    example_size: float = 1.0
    base_s: float | None = None
    base_note: str = ""
    fixed_s: float = 0.0
    base_epochs: float = 1.0
    epochs: float = 1.0
    has_driver: Sequence[str] = ()
    hides: bool = True
    is_sharded: bool = False
    backward_frac: float = 2 / 3
    reason: str = ""


_LATE: Final = ((0.08, 0.01), (0.59, 0.2), (0.27, 0.55), (0.05, 0.8), (0.01, 1.0))
"""A ResNet or Inception: most weights are in the last layers, which are ready first."""
_VGG: Final = ((0.89, 0.03), (0.05, 0.2), (0.04, 0.5), (0.015, 0.8), (0.005, 1.0))
_ALEXNET: Final = ((0.96, 0.1), (0.025, 0.5), (0.01, 0.8), (0.005, 1.0))
_EVEN: Final = tuple((0.1, (idx + 1) / 10) for idx in range(10))
_LAUNCHES_S: Final = 0.003  # about 300 kernels of 10 µs each


@cache
def gradients_of(case: Case, num_bytes: float) -> tuple[Gradient, ...]:
    """Return the gradients of a case; large groups are divided, so that buckets can be filled."""
    found = []
    before = 0.0
    for share, ready in case.gradients or _EVEN:
        parts = max(1, round(share * num_bytes / (5 * _MB)))
        for part in range(parts):
            at = before + (ready - before) * (part + 1) / parts
            found.append(Gradient(num_bytes=int(share * num_bytes / parts), ready_frac=at))
        before = ready
    return tuple(found)


def _dlperf(name: str, mark: str, network: str = "100gb-ib") -> Case:
    return Case(
        name=f"ResNet-50, {name}, 8 × V100 a host (DLPerf)",
        ids=tuple(f"DL-R-{mark}-{number}" for number in (1, 2, 3, 4)),
        fitted=Fitted.SPREAD,
        inside="nvlink2",
        network=network,
        gradients=_LATE,
    )


CASES: Final = (
    Case(  # first: its spread is that of all cases to which none is fitted
        name="ResNet-50 in fp32, DGX-1 with V100 (NVIDIA)",
        ids=("NV-V-fp32-1", "NV-V-fp32-2"),
        fitted=Fitted.SPREAD,
        inside="nvlink2",
        gradients=_LATE,
    ),
    Case(
        name="ResNet-50 in mixed precision, DGX-1 with V100 (NVIDIA)",
        ids=("NV-V-amp-1", "NV-V-amp-2"),
        inside="nvlink2",
        gradients=_LATE,
    ),
    Case(
        name="Xception frozen, T4 (Databricks)",
        ids=("DB1", "DB2", "DB3", "DB4"),
        fitted=Fitted.DRIVER,
        fixed_s=_LAUNCHES_S,
        has_driver=("DB2", "DB3"),
        backward_frac=0.02,
    ),
    Case(
        name="ResNet-50, P100, 50 Gbit Ethernet (Goyal et al.)",
        ids=("GO1", "GO2"),
        all_reduce="native",
        inside="nvlink1",
        network="50gbe",
        gradients=_LATE,
    ),
    Case(
        name="Inception V3, 4 × P100 a host (Horovod)",
        ids=("HV1",),
        network="25gb-roce",
        gradients=_LATE,
        base_s=64 / (219 * 4.1 / 5.7),
        base_note="ResNet-50's 219 a second on a P100, by FLOPs",
    ),
    Case(
        name="ResNet-101, 4 × P100 a host (Horovod)",
        ids=("HV2",),
        network="25gb-roce",
        gradients=_LATE,
        base_s=64 / (219 * 4.1 / 7.8),
        base_note="ResNet-50's 219 a second on a P100, by FLOPs",
    ),
    Case(
        name="VGG-16, 4 × P100 a host (Horovod)",
        ids=("HV3",),
        network="25gb-roce",
        gradients=_VGG,
        base_s=64 / 154,
        base_note="154 a second on a P100, TensorFlow's benchmarks",
    ),
    Case(
        name="ResNet-50, parameters on the CPU, DGX-1 with P100 (TensorFlow)",
        ids=("TFP-R1", "TFP-R2", "TFP-R3", "TFP-R4"),
        fitted=Fitted.SPREAD,
        all_reduce="parameter_server",
        server_links=4,
        gradients=_LATE,
    ),
    Case(
        name="AlexNet, replicated, DGX-1 with P100 (TensorFlow)",
        ids=("TFP-A1", "TFP-A2", "TFP-A3", "TFP-A4"),
        fitted=Fitted.SPREAD,
        inside="nvlink1",
        gradients=_ALEXNET,
    ),
    Case(
        name="VGG-16, replicated, DGX-1 with P100 (TensorFlow)",
        ids=("TFP-V641", "TFP-V642", "TFP-V643", "TFP-V644"),
        fitted=Fitted.SPREAD,
        inside="nvlink1",
        gradients=_VGG,
    ),
    Case(
        name="ResNet-50, sharded parameter servers, 8 × K80 a host (TensorFlow)",
        ids=("TFK-R1", "TFK-R2", "TFK-R3", "TFK-R4", "TFK-R5"),
        fitted=Fitted.SPREAD,
        all_reduce="hierarchical",
        gradients=_LATE,
    ),
    _dlperf("OneFlow", "One"),
    _dlperf("TensorFlow 1 with Horovod", "TF1"),
    _dlperf("PyTorch DDP", "PyT"),
    _dlperf("Paddle", "Pad"),
    _dlperf("TensorFlow 2", "TF2"),
    _dlperf("MXNet with Horovod", "MXN"),
    Case(
        name="Llama 3.1 8B, FSDP2, 8 × H100 a host (torchtitan)",
        ids=("TT-1", "TT-2"),
        inside="nvlink4",
        network="400gb-ib",
        cards=8,
        is_sharded=True,
        example_size=8192,
    ),
    Case(
        name="NiN, K20 on Titan (FireCaffe)",
        ids=("FC1", "FC2", "FC3"),
        all_reduce="reduction_tree",
        network="gemini",
        hides=False,
        base_s=1 / 120,
        base_note="120 examples a second on a K20, from memory",
        base_epochs=47,
        epochs=47,
    ),
    Case(
        name="GoogLeNet, K20 on Titan (FireCaffe)",
        ids=("FC4", "FC5"),
        all_reduce="reduction_tree",
        network="gemini",
        hides=False,
        base_s=1 / 46,
        base_note="46 examples a second on a K20, from memory",
        base_epochs=64,
        epochs=72,
    ),
)


_KINDS: Final = (
    ("vgg", _VGG),
    ("alexnet", _ALEXNET),
    ("resnet", _LATE),
    ("inception", _LATE),
    ("xception", _LATE),
)
_NVLINKS: Final = (("P100", "nvlink1"), ("V100", "nvlink2"), ("A100", "nvlink3"), ("H", "nvlink4"))
_SPEED: Final = re.compile(r"(\d+) ?g", re.IGNORECASE)
_BY_SPEED: Final = (
    (10, "10gbe", "10gbe"),
    (25, "25gbe", "25gb-roce"),
    (50, "50gbe", "100gb-roce"),
    (100, "100gbe", "100gb-ib"),
    (200, "200gb-ib", "200gb-ib"),
    (400, "400gb-ib", "400gb-ib"),
)


def inferred_cases(points: Iterable[Point]) -> tuple[Case, ...]:
    """Return the cases of published points, described by their columns alone.

    Points of one source, model, device, precision and method are a case. Of three and more, the
    spread is fitted to the smallest two.
    """
    groups: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        key = (point.source, point.model, point.gpu, point.precision, point.method, point.unit)
        groups.setdefault((*key, point.batch if point.unit == "tok/s" else 0), []).append(point)
    return tuple(_inferred(sorted(rows, key=lambda one: one.gpus)) for rows in groups.values())


def _inferred(rows: Sequence[Point]) -> Case:
    first, last = rows[0], rows[-1]
    text = f"{last.network} {last.method}".lower()
    model = first.model.lower()
    is_rdma = any(word in text for word in ("ib", "rdma", "roce", "infiniband", "efa"))
    tokens = re.search(r"\bs(\d+)", model)  # of a sequence, such as s8192
    found = _SPEED.search(last.network)
    speed = int(found[1]) if found else 10
    fastest = _BY_SPEED[-1]
    _, name, rdma = next((row for row in _BY_SPEED if speed <= row[0]), fastest)
    has_nvlink = "nvlink" in text or "dgx" in text or first.gpu.startswith("H")
    inside = next((link for gpu, link in _NVLINKS if gpu in first.gpu), "pcie3")
    return Case(
        name=f"{first.model}, {first.gpu}, {first.method} ({first.source})",
        ids=tuple(point.id for point in rows),
        fitted=Fitted.SPREAD if len(rows) > 2 else Fitted.NOTHING,
        all_reduce=_method(first.method.lower()),
        inside=inside if has_nvlink else "pcie3",
        network=rdma if is_rdma else name,
        cards=first.gpus_per_host if "/gpu" in text else 1,
        gradients=next((shares for part, shares in _KINDS if part in model), ()),
        is_sharded="fsdp" in text or "zero" in text,
        example_size=float(tokens[1]) if tokens and first.unit == "tok/s" else 1.0,
        backward_frac=0.02 if "frozen" in model else 2 / 3,
    )


def _method(text: str) -> str:
    if "tree" in text:
        return "reduction_tree"
    if "shard" in text and "ps" in text.split():
        return "hierarchical"
    if "ps" in text.split() or "parameter server" in text:
        return "parameter_server"
    return "native"

"""Write the tables of docs/parallelism.md: which kind of parallelism fits five models of timm.

    python -m bench.devices.parallelism_page

The bytes are counted on the meta device, without weights, by the function that the rung
`sharded_model` uses. Nothing is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.divided.choice import Choice, Kind, choose, size_words
from stepladder.parallel.divided.size import model_size
from stepladder.records.model_size import ModelSize

PAGE: Final = Path(__file__).parents[2] / "docs" / "parallelism.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
DEVICES: Final = 4
MEMORY: Final = 24 * 10**9


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model of timm, and the examples of a step on all devices."""

    name: str
    batch: int


JOBS: Final = (
    Job(name="efficientnet_b0", batch=256),
    Job(name="resnet50", batch=256),
    Job(name="vit_base_patch16_224", batch=2),
    Job(name="vit_giant_patch14_224", batch=64),
    Job(name="vit_huge_patch14_224", batch=256),
)


class _Attention(torch.autograd.Function):
    """Keeps what a fused attention keeps: the meta device has none."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        result = torch.empty_like(q)
        sums = torch.empty(q.shape[:-1], device=q.device)
        ctx.save_for_backward(q, k, v, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise NotImplementedError


@contextmanager
def _fused_attention() -> Iterator[None]:
    own = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda q, k, v, **_: _Attention.apply(q, k, v)  # type: ignore[assignment]
    try:
        yield
    finally:
        F.scaled_dot_product_attention = own


def size_of(name: str) -> ModelSize:
    """Return the bytes of a model of timm, trained with AdamW."""
    with torch.device("meta"), _fused_attention():
        model = import_timm().create_model(name, num_classes=1000).eval()
        inputs = torch.empty(2, *model.default_cfg["input_size"])
        return model_size(
            model, lambda num: model(inputs[:num]), state_numbers=lambda weight: 2 * weight.numel()
        )


def answers() -> dict[Job, tuple[ModelSize, Choice]]:
    """Return the size of each model, and which kind fits."""
    found = {}
    for job in JOBS:
        size = size_of(job.name)
        found[job] = size, choose(size, devices=DEVICES, batch=job.batch, memory=MEMORY)
    return found


def table(found: dict[Job, tuple[ModelSize, Choice]]) -> str:
    """Return the tables in Markdown."""
    kinds = tuple(Kind)
    names = [str(kind) for kind in kinds]
    head = ["model", "weights", "kept by an example", "batch", *names, "which one"]
    lines = ["Bytes on each device:", "", _row(head), _row(["---"] * len(head))]
    for job, (size, choice) in found.items():
        cells = [_cell(choice.memory, kind) for kind in kinds]
        kept, weights = size_words(size.kept), size_words(size.weights)
        lines.append(
            _row([f"`{job.name}`", weights, kept, str(job.batch), *cells, f"**{choice.kind}**"])
        )
    lines += ["", "Bytes that a device sends in a step:", ""]
    head = ["model", "batch", *names]
    lines += [_row(head), _row(["---"] * len(head))]
    for job, (_, choice) in found.items():
        cells = [_cell(choice.traffic, kind) for kind in kinds]
        lines.append(_row([f"`{job.name}`", str(job.batch), *cells]))
    return "\n".join(lines)


def _cell(numbers: Any, kind: Kind) -> str:
    return size_words(numbers[kind]) if kind in numbers else "–"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page(text: str) -> str:
    """Return the page with new tables."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{table(answers())}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

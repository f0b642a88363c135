"""Peak memory of a step of twenty networks: predicted without computing it, beside measured.

python -m bench.planning.step_memory [--only NAME ...]

Each network trains on batches of 8 pictures with AdamW on the CPU, in a process of its own. Two
predictions of that batch: by following the shapes of its step, without computing it, and by a line
through the measured peaks of steps of 2 and 4 pictures. Measured by allocator events (tensors that
the step creates, with weights and the optimizer's state), with the growth of the resident memory
beside it. Goal: within 10 % for nine of ten.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from typing import Any, Final

from bench.rows import write_rows

NAMES: Final = (
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "densenet121",
    "vgg11_bn",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "regnety_016",
    "convnext_tiny",
    "convnextv2_nano",
    "vit_tiny_patch16_224",
    "vit_small_patch32_224",
    "deit_small_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
    "levit_128",
    "mobilevit_s",
    "ghostnet_100",
)
VARIANTS: Final = (
    ("resnet50", "bf16"),
    ("deit_small_patch16_224", "bf16"),
    ("convnext_tiny", "checkpointing"),
    ("deit_small_patch16_224", "checkpointing"),
)
_SMALL: Final = (2, 4)
_BATCH: Final = 8
_GOAL: Final = 0.10
_MB: Final = 1e6


def measured(name: str, how: str) -> dict[str, float]:
    """Return predicted and measured bytes of one network."""
    import torch
    from torch import Tensor, nn
    from torch.nn.functional import cross_entropy

    from stepladder.measuring.model.memory import peak_bytes
    from stepladder.measuring.model.traced_memory import traced_peak
    from stepladder.models.torchvision_shim import import_timm

    timm = import_timm()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    model = timm.create_model(name, num_classes=100).train()
    if how == "checkpointing":
        model.set_grad_checkpointing(True)
    size = timm.data.resolve_model_data_config(model)["input_size"][-1]

    def batch(num: int) -> tuple[Tensor, Tensor]:
        return torch.randn(num, 3, size, size), torch.randint(0, 100, (num,))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "bf16"):
            outputs = model(batch[0])
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        return cross_entropy(outputs.float(), batch[1])

    kept = sum(value.nbytes for value in (*model.parameters(), *model.buffers()))
    states = 2 * sum(value.nbytes for value in model.parameters())
    traced = traced_peak(model, loss, batch(_BATCH), torch.optim.AdamW)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(some: tuple[Tensor, Tensor]) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model, some).backward()
        optimizer.step()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    step(batch(2))  # makes the optimizer's state
    peaks = []
    for num in (*_SMALL, _BATCH):
        some = batch(num)
        optimizer.zero_grad(set_to_none=True)
        own = peak_bytes(lambda: step(some), torch.device("cpu"))  # noqa: B023  (called at once)
        peaks.append(kept + states + own)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "traced": float(traced),
        "line": _beyond(peaks[:2]),
        "measured": peaks[-1],
        "resident": after - before + kept,
    }


def _beyond(values: list[Any]) -> float:
    """Return the value for the larger batch, on the line through two smaller ones."""
    slope = (values[1] - values[0]) / (_SMALL[1] - _SMALL[0])
    return float(values[1] + (_BATCH - _SMALL[1]) * slope)


def main() -> None:
    """Measure all networks, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(NAMES))
    parser.add_argument("--one", nargs=2)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(*args.one)))
        return
    rows = []
    settings = [(name, "") for name in args.only]
    settings += [one for one in VARIANTS if one[0] in args.only]
    for name, how in settings:
        words = [sys.executable, "-m", "bench.planning.step_memory", "--one", name, how]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        rows.append(
            {
                "network": f"{name}, {how}" if how else name,
                "measured, MB": found["measured"] / _MB,
                "traced": f"{found['traced'] / found['measured'] - 1:+.1%}",
                "line through two sizes": f"{found['line'] / found['measured'] - 1:+.1%}",
                "resident memory, MB": found["resident"] / _MB,
            }
        )
        print(rows[-1], flush=True)
    near = {
        name: sum(abs(float(row[name].rstrip("%"))) <= 100 * _GOAL for row in rows)
        for name in ("traced", "line through two sizes")
    }
    write_rows(
        "step_memory",
        rows,
        note=f"Peak memory of a step of {_BATCH} pictures on the CPU with AdamW, by allocator "
        "events; predicted by following its shapes without computing it (traced), and by a line "
        f"through measured peaks of {_SMALL[0]} and {_SMALL[1]} pictures. Goal: within 10 % for "
        f"nine of ten; reached by {near['traced']} and {near['line through two sizes']} of "
        f"{len(rows)}. The resident memory also has what malloc and kernels keep.",
    )


if __name__ == "__main__":
    main()

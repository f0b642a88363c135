"""Memory of one rank if a model is divided among ranks: weights, gradients, optimizer, a step.

    python -m bench.devices.sharded_memory [--devices 1 2 4] [--quick]

A ViT of timm with AdamW, on random pictures, eight in a global batch. The bytes are those of the
tensors after the first step, and of the gradients before it; the peak of a step is by events of
torch's allocator, and does not include what was there before it. Goal: at most 1.15 / p of one
process for weights, gradients and optimizer, predicted (their bytes divided by p) within 10 %.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import psutil
import torch
import torch.nn.functional as F

from bench.rows import write_rows
from stepladder.config.choices import OptimizerName
from stepladder.config.recipe import OptimizerConfig
from stepladder.measuring.model.memory import peak_bytes
from stepladder.measuring.ranks.team import Team
from stepladder.models.torchvision_shim import import_timm
from stepladder.optim.optimizers import build_optimizer
from stepladder.parallel.divided.sharding import ShardedCalls
from stepladder.parallel.world import World

NETWORK: Final = "vit_small_patch16_224"
_PICTURES: Final = 8
_STATES: Final = 2  # of AdamW, for each weight


class Member:
    """One of the ranks, with a model that is divided if there are several.

    Args:
        world: of all ranks.
    """

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._world = world
        self._model = import_timm().create_model(NETWORK, num_classes=10, pretrained=False)
        self._call: Any = lambda call, *args: call(*args)
        if not world.is_alone:
            self._call = ShardedCalls(self._model)
        config = OptimizerConfig(name=OptimizerName.ADAMW, fused=False)
        self._optimizer = build_optimizer(config, self._model, lr=1e-3)
        num = _PICTURES // world.size
        self._batch = torch.rand(num, 3, 224, 224), torch.arange(num) % 10

    def measure(self) -> dict[str, float]:
        """Return bytes by kind."""
        gradients = 0

        def step() -> None:
            nonlocal gradients
            self._call(self._losses, *self._batch).mean().backward()
            gradients = _bytes(weight.grad for weight in self._model.parameters())
            self._optimizer.step()
            self._optimizer.zero_grad()

        step()
        peak = peak_bytes(step, torch.device("cpu"))
        states = self._optimizer.state.values()
        return {
            "weights": _bytes(self._model.parameters()),
            "gradients": gradients,
            "optimizer": _bytes(value for state in states for value in state.values()),
            "peak of a step": peak,
            "rss": psutil.Process().memory_info().rss,
        }

    def _losses(self, pictures: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self._model(pictures), targets, reduction="none")


def _bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes that this rank has of tensors."""
    own = (t.to_local() if hasattr(t, "to_local") else t for t in tensors)
    return sum(tensor.nbytes for tensor in own if isinstance(tensor, torch.Tensor))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--quick", action="store_true", help="two ranks; writes no results")
    options = parser.parse_args(arguments)
    make = import_module("bench.devices.sharded_memory").Member  # not of `__main__`
    found: dict[int, list[dict[str, float]]] = {}
    for num in [1, 2] if options.quick else options.devices:
        with (
            tempfile.TemporaryDirectory() as folder,
            Team(num, make, {}, is_cuda=False, folder=Path(folder)) as team,
        ):
            found[num] = team.ask("measure")
    one = found[1][0]
    whole = one["weights"] + one["gradients"] + one["optimizer"]
    predicted = (2 + _STATES) * one["weights"]
    rows: list[dict[str, Any]] = []
    for num, ranks in found.items():
        most = max(ranks, key=lambda rank: rank["weights"])
        total = most["weights"] + most["gradients"] + most["optimizer"]
        rows.append(
            {
                "ranks": num,
                **{f"{name}, MB": round(most[name] / 1e6, 1) for name in most},
                "weights, gradients and optimizer, MB": round(total / 1e6, 1),
                "times 1/p of one process": round(total * num / whole, 3),
                "predicted over measured": round(predicted / num / total, 3),
            }
        )
    if options.quick:
        print(rows)
        return
    write_rows(
        "sharded_memory",
        rows,
        note=f"Memory of the rank with the most, {NETWORK} with AdamW, {_PICTURES} pictures in a "
        "global batch. Goal: at most 1.15 times 1/p of one process, predicted within 10 %. The "
        "peak is of what a step allocates (activations, gradients, weights that are put together); "
        "RSS includes PyTorch itself.",
    )


if __name__ == "__main__":
    main()

"""Time forward and backward over several devices, by how gradients are grouped and compressed.

    python -m bench.devices.exchange_steps [--devices 2] [--rounds 7] [--quick]

The demo's network with all weights, on random pictures, two for each process. Each kind has a copy
of the model and DistributedDataParallel of its own; they take turns, and each round begins with
another one. PowerSGD sends whole gradients in its first ten steps, which are not timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F

from bench.rows import write_rows
from stepladder.config.choices import AllReduce, Buckets, GradientCompression
from stepladder.config.recipe import DeviceConfig
from stepladder.measuring.ranks.team import Team
from stepladder.models.torchvision_shim import import_timm
from stepladder.parallel.collectives.exchange import exchange_of
from stepladder.parallel.gradients import GradientAverage
from stepladder.parallel.world import World

NETWORK: Final = "tf_efficientnet_lite0"
NATIVE: Final = "native"
_SIZE: Final = 128  # pixels
_EXAMPLES: Final = 2  # of each process
_WARM_UP: Final = 12
_STEPS: Final = 4  # in a row, of one kind


def kinds(num: int) -> dict[str, DeviceConfig]:
    """Return what is compared."""
    return {
        NATIVE: DeviceConfig(count=num),
        "native, each weight on its own": DeviceConfig(count=num, buckets=Buckets.LAYER),
        "ring": DeviceConfig(count=num, all_reduce=AllReduce.RING),
        "auto": DeviceConfig(count=num, all_reduce=AllReduce.AUTO),
        "auto, each weight on its own": DeviceConfig(
            count=num, all_reduce=AllReduce.AUTO, buckets=Buckets.LAYER
        ),
        **{
            str(kind): DeviceConfig(count=num, gradient_compression=kind)
            for kind in (
                GradientCompression.BF16,
                GradientCompression.FP16,
                GradientCompression.POWER_SGD,
            )
        },
    }


class Member:
    """One of the processes: a model for each kind.

    Args:
        world: of all processes.
    """

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self._pictures = torch.randn(_EXAMPLES, 3, _SIZE, _SIZE)
        self._labels = torch.arange(_EXAMPLES)
        self._averages: dict[str, GradientAverage] = {}
        self._models: dict[str, torch.nn.Module] = {}
        self.num_bytes = 0
        for name, config in kinds(world.size).items():
            model = import_timm().create_model(NETWORK, num_classes=14)
            self.num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
            self._models[name] = model
            self._averages[name] = GradientAverage(
                model,
                lambda batch, model=model: F.cross_entropy(model(batch), self._labels),
                is_static=False,
                has_unused=False,
                exchange=exchange_of(config, world, is_cuda=False),
            )

    def steps(self, *, name: str, num: int) -> float:
        """Take steps without an optimizer; return the mean seconds of one."""
        start = time.perf_counter()
        for _ in range(num):
            self._averages[name](self._pictures).backward()
            for param in self._models[name].parameters():
                param.grad = None
        return (time.perf_counter() - start) / num

    def size(self) -> int:
        """Return the bytes of the gradients."""
        return self.num_bytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="two rounds; writes no results")
    options = parser.parse_args(arguments)
    made = import_module("bench.devices.exchange_steps").Member  # as the other processes know it
    names = list(kinds(options.devices))
    times: dict[str, list[float]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory() as folder,
        Team(options.devices, made, {}, is_cuda=False, folder=Path(folder)) as team,
    ):
        num_bytes = team.ask("size")[0]
        for name in names:
            team.ask("steps", name=name, num=_WARM_UP)
        for number in range(2 if options.quick else options.rounds):
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                times[name].append(max(team.ask("steps", name=name, num=_STEPS)))
    rows: list[dict[str, Any]] = []
    for name in names:
        ratios = [own / native for own, native in zip(times[name], times[NATIVE], strict=True)]
        over = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        rows.append({
            "gradients": name,
            "step, ms": f"{statistics.median(times[name]) * 1e3:.0f}",
            "over native": over,
        })  # fmt: skip
    if options.quick:
        print(rows)
        return
    write_rows(
        "exchange_steps",
        rows,
        note=f"{NETWORK} with all weights ({num_bytes / 1e6:.1f} MB of gradients) on "
        f"{options.devices} processes, {_EXAMPLES} pictures of {_SIZE} × {_SIZE} each, forward and "
        f"backward; {options.rounds} rounds of {_STEPS} steps in turn; ratios within a round, with "
        "the smallest and the largest.",
    )


if __name__ == "__main__":
    main()

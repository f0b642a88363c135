"""`stepladder doctor`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.errors import StepladderError
from stepladder.machine import EnergyMeter, disk_free_bytes, environment
from stepladder.machine.activity import doing
from stepladder.machine.gpu_links import gpu_links
from stepladder.machine.network import (
    network_facts,
    network_problems,
    port_facts,
    shared_memory_facts,
)
from stepladder.machine.torchvision_build import torchvision_problem


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Print this machine's hardware and software, to paste into an issue. Contains no secrets.

    Starts two processes and times how fast they add up gradients, which takes a few seconds.

    Examples:
      stepladder doctor
      stepladder doctor --quick
      stepladder doctor --json
    """

    quick: bool = False
    """Start no processes."""

    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="doctor", default=Flags())
    facts = environment() | {
        "disk": {"free_bytes": disk_free_bytes(Path.cwd())},
        "shared_memory": shared_memory_facts(),
        "network": network_facts() | {"ports": port_facts()},
        "gpu_links": gpu_links(),
        "energy_counters": list(EnergyMeter().sources),
        "torch": _torch_facts(),
    }
    found = torchvision_problem()
    problems = [] if found is None else [found]
    of_network = network_problems(
        facts["network"], facts["shared_memory"], num_gpus=len(facts.get("gpus") or ())
    )
    problems += of_network
    if not flags.quick and "broken" not in facts["torch"]:
        exchange, problem = _exchange()
        facts |= {"two_processes": exchange} if exchange is not None else {}
        if problem is not None and not of_network:  # of which it would be a consequence
            problems.append(problem)
    warnings = {"warnings": problems} if problems else {}
    lines = [*_lines(facts), *(f"warning: {problem}" for problem in problems)]
    flags.output.print_result(facts | warnings, "\n".join(lines))
    return 0


def _exchange() -> tuple[dict[str, Any] | None, str | None]:
    """Time an all-reduce of two processes: with NCCL if there are two GPUs, else with gloo.

    Returns:
        The facts, and the problem if they cannot exchange data; one of both is None.
    """
    import torch

    from stepladder.measuring.ranks.exchange import measure_exchange

    is_cuda = torch.cuda.device_count() > 1
    with (
        doing("timing how two processes exchange data"),
        tempfile.TemporaryDirectory(prefix="stepladder-") as folder,
    ):
        try:
            found = measure_exchange(2, is_cuda=is_cuda, folder=Path(folder))
        except StepladderError as error:
            why = f": {error.why}" if error.why else ""
            return None, f"two processes on this machine cannot exchange data: {error.what}{why}"
    return {
        "backend": "nccl" if is_cuda else "gloo",
        "start_s": found.start_s,
        "all_reduce_latency_s": found.latency_s,
        "all_reduce_bytes_per_s": found.bytes_per_s,
    }, None


def _torch_facts() -> dict[str, Any]:
    """Import torch: that it is installed does not mean that it can be loaded."""
    try:
        import torch

        return {
            "version": torch.__version__,
            "built_for_cuda": torch.version.cuda,
            "has_cuda": torch.cuda.is_available(),
            "num_threads": torch.get_num_threads(),
        }
    except Exception as error:  # a broken build may raise anything
        return {"broken": f"{type(error).__name__}: {error}"}


def _lines(facts: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested facts as aligned `name  value` lines, with bytes as gigabytes."""
    for name, value in facts.items():
        if isinstance(value, Mapping):
            yield f"{prefix}{name}"
            yield from _lines(value, prefix + "  ")
        elif name.endswith("_bytes"):
            yield f"{prefix}{name.removesuffix('_bytes'):<{36 - len(prefix)}}{value / 1e9:.1f} GB"
        elif name.endswith("_bytes_per_s"):
            yield f"{prefix}{name.replace('_bytes', ''):<{36 - len(prefix)}}{value / 1e9:.3g} GB/s"
        elif name.endswith("_s") and isinstance(value, float):
            yield f"{prefix}{name.removesuffix('_s'):<{36 - len(prefix)}}{value:.2g} s"
        elif isinstance(value, list):
            yield f"{prefix}{name:<{36 - len(prefix)}}{_listed(value)}"
        else:
            yield f"{prefix}{name:<{36 - len(prefix)}}{'unknown' if value is None else value}"


def _listed(items: list[Any]) -> str:
    words = [
        f"{item['name']} ({item['memory_bytes'] / 1e9:.0f} GB)" if isinstance(item, dict) else item
        for item in items
    ]
    return ", ".join(words) or "none"

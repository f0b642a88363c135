"""`stepladder doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from stepladder.cli.parse import Output, Unprefixed, parse
from stepladder.machine import EnergyMeter, disk_free_bytes, environment
from stepladder.machine.network import network_facts, network_problems, shared_memory_facts
from stepladder.machine.torchvision_build import torchvision_problem


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Print this machine's hardware and software, to paste into an issue. Contains no secrets.

    Examples:
      stepladder doctor
      stepladder doctor --json
    """

    output: Annotated[Output, Unprefixed] = field(default_factory=Output)


def run(argv: list[str]) -> int:
    """Run the command."""
    flags = parse(Flags, argv, command="doctor", default=Flags())
    facts = environment() | {
        "disk": {"free_bytes": disk_free_bytes(Path.cwd())},
        "shared_memory": shared_memory_facts(),
        "network": network_facts(),
        "energy_counters": list(EnergyMeter().sources),
        "torch": _torch_facts(),
    }
    found = torchvision_problem()
    problems = [] if found is None else [found]
    problems += network_problems(
        facts["network"], facts["shared_memory"], num_gpus=len(facts.get("gpus") or ())
    )
    warnings = {"warnings": problems} if problems else {}
    lines = [*_lines(facts), *(f"warning: {problem}" for problem in problems)]
    flags.output.print_result(facts | warnings, "\n".join(lines))
    return 0


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

"""The machine on which a climb was measured, as a record and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stepladder.config.recipe import Recipe
from stepladder.ladder.summary.wording import LABEL_WIDTH, WIDTH, wrapped
from stepladder.machine import environment, num_cores
from stepladder.machine.openmp import waiting_settings
from stepladder.records import to_json
from stepladder.records.files import Json
from stepladder.records.profile import Profile
from stepladder.training.output.wording import clean

_IMPLIED: Final = {"sse4_2": "avx", "avx": "avx2"}
"""Instruction sets that are not shown beside a later one, which has them all."""


def machine_of(profile: Profile, before: Recipe, after: Recipe) -> dict[str, Json]:
    """Return what the speed of both recipes depends on, besides them, for climb.json.

    Args:
        profile: of the result.
        before, after: the original job and the result.
    """
    found: dict[str, Json] = to_json(environment()["cpu"])
    found["threads"] = after.device.threads or num_cores()
    found["threads_before"] = before.device.threads or num_cores()
    found["waiting"] = dict(waiting_settings())
    if profile.device == "cuda":
        found["gpu"] = profile.device_name
    return found


def this_machine() -> str:
    """Return processor and cores of this machine in words."""
    return machine_words(to_json(environment()["cpu"]))


def machine_line(climb: Mapping[str, Any], width: int = WIDTH) -> str:
    """Return the line below the result in the terminal, from climb.json; empty if unknown."""
    machine = climb.get("machine")
    words = machine_words(machine) if isinstance(machine, Mapping) else ""
    if not words:
        return ""
    label = "machine".ljust(LABEL_WIDTH) if width >= WIDTH else "machine: "
    indent = len(label) + 1 if width >= WIDTH else 4
    return wrapped(f" {label}{clean(words)}", width, indent=indent)


def machine_words(machine: Mapping[str, Any]) -> str:
    """Return processor, cores, threads, instruction set, and how idle threads wait.

    `AMD EPYC, 2 of 64 cores, 2 threads, avx2, fma, idle threads wait by GOMP_SPINCOUNT=3000`; empty
    without a processor.
    """
    if not machine.get("model"):
        return ""
    parts = [str(machine[key]) for key in ("gpu", "model") if machine.get(key)]
    parts += [_cores(machine), _threads(machine), *_instructions(machine)]
    waiting = machine.get("waiting")
    if isinstance(waiting, Mapping):
        settings = " ".join(f"{name}={value}" for name, value in waiting.items())
        parts.append(f"idle threads wait by {settings or 'the default of OpenMP'}")
    return ", ".join(filter(None, parts))


def _cores(machine: Mapping[str, Any]) -> str:
    own, all_cores = machine.get("num_cores"), machine.get("num_cores_of_machine")
    if own is None:
        return ""
    shown = f"{own} of {all_cores}" if all_cores not in (None, own) else f"{own}"
    return f"{shown} {'core' if shown == '1' else 'cores'}"


def _threads(machine: Mapping[str, Any]) -> str:
    before, after = machine.get("threads_before"), machine.get("threads")
    if after is None:
        return ""
    shown = f"{after}" if before in (None, after) else f"{before} → {after}"
    return f"{shown} {'thread' if shown == '1' else 'threads'}"


def _instructions(machine: Mapping[str, Any]) -> list[str]:
    names = machine.get("instructions")
    if not isinstance(names, list | tuple):
        return []
    return [str(name) for name in names if _IMPLIED.get(str(name)) not in names]

"""Under what conditions a run computes, and what of them changed when it is resumed.

With the same conditions a resumed run on a CPU is bit-identical to one that was never
interrupted; otherwise it goes on, and says what differs.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from typing import Any, Self

import torch

import stepladder
from stepladder.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What the bits of a result depend on, beside the config.

    Attributes:
        threads: compute threads of torch.
        device: cpu, or the GPU's name.
        instruction_set: of the machine, as torch uses it.
        data: fingerprint of the data; of each split where they differ.
        versions: by package.
    """

    threads: int
    world_size: int
    device: str
    instruction_set: str
    data: Mapping[str, str]
    versions: Mapping[str, str]

    @classmethod
    def measure(
        cls, *, device: torch.device, world_size: int, data: Mapping[str, str]
    ) -> Conditions:
        """Look up the conditions of this process."""
        is_cuda = device.type == "cuda"
        return cls(
            threads=torch.get_num_threads(),
            world_size=world_size,
            device=torch.cuda.get_device_name(device) if is_cuda else str(device.type),
            instruction_set=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            data=dict(data),
            versions={
                "stepladder": stepladder.__version__,
                "timm": metadata.version("timm"),
                "torch": str(torch.__version__),
            },
        )

    def to_state(self) -> dict[str, Any]:
        """Give the JSON values that a checkpoint keeps."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Read what `to_state` gave.

        Raises:
            DataError: if a part is missing.
        """
        try:
            return cls(**{field.name: state[field.name] for field in fields(cls)})
        except KeyError as error:
            raise DataError(
                f"the checkpoint does not say its {error.args[0]}",
                fix="Use the version of stepladder that wrote it, or train anew: --overwrite",
            ) from None


def differences(old: Conditions, new: Conditions, *, accept_new_data: bool = False) -> list[str]:
    """List what keeps the resumed run from being bit-identical, as `torch 2.13.0 -> 2.15.0`.

    Raises:
        DataError: if the data changed and that is not accepted.
    """
    changed = _compare("data", old.data, new.data)
    if changed and not accept_new_data:
        raise DataError(
            "the data is not what the run began with",
            why="\n  ".join(changed),
            fix="Give the same store, add --accept-new-data, or choose another --run.dir.",
        )
    named = {
        "threads": (old.threads, new.threads),
        "world size": (old.world_size, new.world_size),
        "device": (old.device, new.device),
        "instruction set": (old.instruction_set, new.instruction_set),
    }
    found = [f"{name} {was} -> {now}" for name, (was, now) in named.items() if was != now]
    return [*found, *_compare("", old.versions, new.versions), *changed]


def _compare(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{kind} {name} {old.get(name, 'none')} -> {new.get(name, 'none')}".strip()
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]

"""The start of an attempt: find what an earlier one left, and check that it can be resumed."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Self

import torch

import stepladder
from stepladder.config.options import JobConfig
from stepladder.config.show import dump_job
from stepladder.errors import DataError
from stepladder.machine import environment
from stepladder.records import read_jsonl, write_json
from stepladder.training.checkpoint.checkpoint import Checkpoints
from stepladder.training.checkpoint.checkpoint_files import Loaded
from stepladder.training.output.events import DISCARDED_FILE, EVENTS_FILE, rewind
from stepladder.training.setup.build import Sources
from stepladder.training.setup.run_folder import RunFolder, beside

_MAX_CLASSES_NAMED: Final = 5
_SHOWN_DIGITS: Final = 12  # of a fingerprint


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a bit-identical result depends on, in addition to the config.

    Attributes:
        threads: compute threads of torch.
        device: cpu, or the GPU's name.
        instruction_set: of the machine, as torch uses it.
        data: fingerprint of the data of each split.
        num_examples: of each split.
        versions: by package.
    """

    threads: int
    world_size: int
    device: str
    instruction_set: str
    data: Mapping[str, str]
    num_examples: Mapping[str, int]
    versions: Mapping[str, str]

    @classmethod
    def measure(
        cls,
        *,
        device: torch.device,
        world_size: int,
        data: Mapping[str, str],
        num_examples: Mapping[str, int],
    ) -> Conditions:
        """Collect the conditions of this process."""
        return cls(
            threads=torch.get_num_threads(),
            world_size=world_size,
            device=device_name(device),
            instruction_set=f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            data=dict(data),
            num_examples=dict(num_examples),
            versions={
                "stepladder": stepladder.__version__,
                "timm": metadata.version("timm"),
                "torch": str(torch.__version__),
            },
        )

    def to_state(self) -> dict[str, Any]:
        """Return the JSON values that a checkpoint keeps."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore the conditions that `to_state` returned.

        Raises:
            DataError: if a part is missing.
        """
        try:
            return cls(**{field.name: state[field.name] for field in fields(cls)})
        except KeyError as error:
            raise DataError(
                f"the run cannot be resumed, because its checkpoint does not contain "
                f"{error.args[0]!r}",
                fix="Install the release of stepladder that wrote the checkpoint, or train again "
                "from scratch: --overwrite",
            ) from None


def data_changed(folder: Path, changed: Sequence[str] = ()) -> DataError:
    """Return the error for a run whose data has changed since it began."""
    return DataError(
        "the training data have changed since this run began, so it cannot simply be resumed",
        where=str(folder),
        why="\n  ".join(changed) or None,
        fix="To resume on the new data: --accept-new-data. To train again from scratch: "
        f"--overwrite, or, to keep the old run, {beside(folder)}.",
    )


def differences(
    old: Conditions, new: Conditions, *, folder: Path, accept_new_data: bool = False
) -> list[str]:
    """List what keeps the resumed run from being bit-identical, as `torch 2.13.0 -> 2.15.0`.

    Raises:
        DataError: if the data changed and that is not accepted.
    """
    changed = _compare_data(old, new)
    if changed and not accept_new_data:
        raise data_changed(folder, changed)
    named = {
        "threads": (old.threads, new.threads),
        "world size": (old.world_size, new.world_size),
        "device": (old.device, new.device),
        "instruction set": (old.instruction_set, new.instruction_set),
    }
    found = [f"{name} {was} -> {now}" for name, (was, now) in named.items() if was != now]
    return [*found, *_compare_versions(old.versions, new.versions), *changed]


def refuse_other_classes(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Check that the classes of the model's outputs are those of the checkpoint, in order.

    Args:
        old, new: what `Task.describe` returns; nothing is compared if one names no classes.

    Raises:
        DataError: if a class was renamed, moved, removed or added.
    """
    was, now = old.get("classes"), new.get("classes")
    if not isinstance(was, list) or not isinstance(now, list) or was == now:
        return
    pairs = list(enumerate(zip_longest(was, now, fillvalue="none")))
    changed = [f"{idx}: {before} -> {after}" for idx, (before, after) in pairs if before != after]
    shown = changed[:_MAX_CLASSES_NAMED]
    more = len(changed) - len(shown)
    raise DataError(
        "the classes of the data have changed since this run began, so it cannot be resumed",
        why="\n  ".join([*shown, *([f"and {more} more"] if more else [])]),
        fix="Each output of the model belongs to one of the old classes: use data with these, "
        "or train a new model in another folder: --run.dir FOLDER",
    )


def _compare_data(old: Conditions, new: Conditions) -> list[str]:
    def told(conditions: Conditions, split: str) -> str:
        if split not in conditions.data:
            return "none"
        num = conditions.num_examples.get(split, 0)
        return f"{num} examples ({conditions.data[split][:_SHOWN_DIGITS]})"

    return [
        f"data {split}: {told(old, split)} -> {told(new, split)}"
        for split in sorted(old.data.keys() | new.data.keys())
        if old.data.get(split) != new.data.get(split)
    ]


def _compare_versions(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def device_name(device: torch.device) -> str:
    """Return `cpu`, or the name of a GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device.type)


def fingerprints_of(sources: Sources) -> dict[str, str]:
    """Return the fingerprint of the data of each split that exists."""
    splits = vars(sources).items()
    return {split: source.fingerprint for split, source in splits if source is not None}


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where an attempt begins.

    Attributes:
        attempt: its number, from 1.
        loaded: the checkpoint that it resumes from; None: a fresh run.
        conditions: of this attempt; changed: how they differ, a sentence each.
        has_new_data: whether the data differs from that of the checkpoint.
    """

    attempt: int
    checkpoints: Checkpoints
    loaded: Loaded | None
    conditions: Conditions
    changed: Sequence[str]

    @property
    def after_step(self) -> int:
        """Number of steps taken before the checkpoint."""
        return int(self.loaded.state["position"]["step"]) if self.loaded is not None else 0

    @property
    def has_new_data(self) -> bool:
        """Whether the data differs from that of the checkpoint."""
        loaded = self.loaded
        return loaded is not None and loaded.state["conditions"]["data"] != self.conditions.data


def begin(
    job: JobConfig,
    sources: Sources,
    folder: RunFolder,
    *,
    device: torch.device,
    described: Mapping[str, Any],
    accept_new_data: bool,
    world_size: int = 1,
) -> Start:
    """Find the checkpoint to resume from, write the config, and move later events aside.

    Args:
        job, sources, folder, device: of this attempt.
        described: what the Task returns from `describe`.
        accept_new_data: resume with other examples; never with other classes.

    Raises:
        DataError: if the data changed and that is not accepted, the classes changed, or no
            checkpoint is intact.
    """
    splits = {split: source for split, source in vars(sources).items() if source is not None}
    conditions = Conditions.measure(
        device=device,
        world_size=world_size,
        data=fingerprints_of(sources),
        num_examples={split: len(source) for split, source in splits.items()},
    )
    checkpoints = folder.checkpoints(keep_last=job.run.keep_last)
    checkpoints.clean()
    loaded = checkpoints.newest()
    changed: Sequence[str] = ()
    if loaded is not None:
        refuse_other_classes(loaded.state["describe"], described)
        old = Conditions.from_state(loaded.state["conditions"])
        changed = differences(old, conditions, folder=folder.path, accept_new_data=accept_new_data)
    # nothing can fail a check from here on: files of an earlier attempt may be replaced
    folder.write_config(dump_job(job))
    write_json(folder.path / "env.json", environment())
    attempt = 1 + max((e.get("attempt", 0) for e in _all_events(folder.path)), default=0)
    start = Start(
        attempt=attempt,
        checkpoints=checkpoints,
        loaded=loaded,
        conditions=conditions,
        changed=changed,
    )
    rewind(folder.path, after_step=start.after_step)
    return start


def _all_events(folder: Path) -> list[Mapping[str, Any]]:
    return [
        record
        for name in (EVENTS_FILE, DISCARDED_FILE)
        for record in read_jsonl(folder / name)
        if isinstance(record.get("attempt"), int)
    ]

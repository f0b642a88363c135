"""Results of one profile of a job that are reused by the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stepladder.config.choices import Precision
from stepladder.config.recipe import (
    BatchConfig,
    DeviceConfig,
    LoaderConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
    StoppingConfig,
)

Value = TypeVar("Value")


@dataclass
class ProfileMemory:
    """Results that do not change between profiles of a job in one process.

    Peaks by device and precision, operations by model, batch, memory format and precision, and so
    on, so that the profile after a kept rung takes less time.
    """

    _values: dict[Hashable, Any] = field(default_factory=dict)

    @property
    def is_new(self) -> bool:
        """Whether this is the first profile of the job in this process."""
        return not self._values

    def copy(self) -> ProfileMemory:
        """Return a memory of the same values, to which others can be added."""
        return ProfileMemory(dict(self._values))

    def once(self, key: Hashable, measure: Callable[[], Value]) -> Value:
        """Return the value of a key, measured at its first use."""
        if key not in self._values:
            self._values[key] = measure()
        value: Value = self._values[key]
        return value

    def knows(self, key: Hashable) -> bool:
        """Return True if a key has a value."""
        return key in self._values


def memory_key(name: str, recipe: Recipe) -> Hashable:
    """Return the key of a part: its name, and the parts of the recipe that affect it."""
    return name, _relevant(name, recipe)


def _relevant(name: str, recipe: Recipe) -> Hashable:
    """Return the parts of the recipe that affect a measurement."""
    if name == "peaks":
        return recipe.device.precision, recipe.device.threads, recipe.model.name
    if name in {"disk", "link"}:  # of the store, which is the same for all recipes of a job
        return None
    if name in {"size", "gradients"}:  # of the model, and of what a step keeps of an example
        device = recipe.device
        kept = device.precision, device.memory_format, device.gradient_checkpointing, device.compile
        return recipe.train, recipe.model, recipe.head, recipe.optimizer.name, kept
    if name == "save":  # of the trained weights and the optimizer's state
        model = replace(recipe.model, fold_batchnorm=False)
        has_master = recipe.device.precision is Precision.FP16_MASTER
        return recipe.train, model, recipe.optimizer.name, has_master
    physical = replace(recipe, seed=0, schedule=ScheduleConfig(), stopping=StoppingConfig())
    size = physical.batch.global_batch_size
    batch = BatchConfig(global_batch_size=size, micro_batch_size=physical.batch.micro_batch_size)
    physical = replace(physical, batch=batch)
    if name in {
        "sweep",
        "replays",
        "flops",
        "noise",
        "trunk",
        "trunk, later",
        "compile",
    }:  # independent of the loader
        physical = replace(physical, loader=LoaderConfig())
    if name == "noise":  # a ratio of gradients, independent of how they are computed and applied
        physical = replace(
            physical,
            device=DeviceConfig(kind=physical.device.kind),
            optimizer=OptimizerConfig(),
            model=replace(physical.model, fold_batchnorm=False),
        )
    return physical

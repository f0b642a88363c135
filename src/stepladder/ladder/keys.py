"""Identities: of a recipe, of a job, of a machine. Equal keys mean that a verdict still holds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch

from stepladder.config.options import JobConfig, LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.config.show import values_of
from stepladder.machine import environment, gpus, num_cores
from stepladder.records import Json

_LENGTH = 16
_NOT_OF_THE_RECIPE = ("prepare.", "run.", "ladder.")
_DECIDING = (
    "min_gain",
    "max_accuracy_loss",
    "time_per_point",
    "num_blocks",
    "num_seeds",
    "block_s",
)
"""Options of the ladder that decide a verdict; the others say what is tried at all."""


def recipe_values(recipe: Recipe) -> dict[str, Json]:
    """Give each option of a recipe as plain JSON, by dotted key."""
    values = values_of(JobConfig(recipe=recipe))
    return {key: value for key, value in values.items() if not key.startswith(_NOT_OF_THE_RECIPE)}


def recipe_key(recipe: Recipe) -> str:
    """Identify a recipe; where its store lies does not count, what it holds is in the job's key."""
    values = recipe_values(recipe)
    del values["data.store"]
    return _digest(values)


def job_key(
    task_name: str, recipe: Recipe, *, num_train: int, fingerprints: Mapping[str, str | None]
) -> str:
    """Identify a job: its task (a file by its content), its data, and its recipe as written.

    Args:
        task_name: "image_classification", or "FILE.py:NAME".
        fingerprints: of the data, by split.
    """
    file = Path(task_name.rpartition(":")[0])
    code = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
    parts: dict[str, Json] = {
        "task": task_name.rpartition(":")[2] if code else task_name,
        "code": code,
        "recipe": recipe_key(recipe),
        "num_train": num_train,
        **{f"data.{split}": mark for split, mark in fingerprints.items()},
    }
    return _digest(parts)


def options_key(options: LadderConfig) -> str:
    """Identify the options of the ladder that decide a verdict."""
    return _digest({name: getattr(options, name) for name in _DECIDING})


def machine_key() -> str:
    """Identify what speed depends on: processor, cores, GPUs, torch and its threads."""
    facts = environment()
    parts: dict[str, Json] = {
        "cpu": str(facts["cpu"]),
        "cores": num_cores(),
        "gpus": [gpu.name for gpu in gpus()],
        "torch": torch.__version__,
    }
    return _digest(parts)


def _digest(value: Mapping[str, Json]) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]

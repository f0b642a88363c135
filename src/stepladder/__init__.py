"""Scale deep-learning training in the right order, with proof."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from stepladder.cli.commands import COMMANDS

if TYPE_CHECKING:  # for type checkers; tests/laws/test_commands.py compares it with _HOMES
    from stepladder.api.cached_features import features as features
    from stepladder.api.checks import check as check
    from stepladder.api.collectives import bench_collectives as bench_collectives
    from stepladder.api.damage import verify as verify
    from stepladder.api.diagnosis import diagnose as diagnose
    from stepladder.api.ladder import advise as advise
    from stepladder.api.ladder import climb as climb
    from stepladder.api.ladder import fit_recipe as fit_recipe
    from stepladder.api.ladder import ledger as ledger
    from stepladder.api.logs import audit as audit
    from stepladder.api.logs import compare as compare
    from stepladder.api.plan import plan as plan
    from stepladder.api.population import population as population
    from stepladder.api.runs import Run as Run
    from stepladder.api.runs import export as export
    from stepladder.api.runs import predict as predict
    from stepladder.api.runs import prepare as prepare
    from stepladder.api.runs import publish as publish
    from stepladder.api.runs import report as report
    from stepladder.api.runs import train as train
    from stepladder.api.scaling import scaling as scaling
    from stepladder.api.watch import watch as watch
    from stepladder.config.options import JobConfig as JobConfig
    from stepladder.config.options import LadderConfig as LadderConfig
    from stepladder.config.options import PopulationConfig as PopulationConfig
    from stepladder.config.options import PrepareConfig as PrepareConfig
    from stepladder.config.options import RunConfig as RunConfig
    from stepladder.config.recipe import Recipe as Recipe
    from stepladder.data.batch import Batch as Batch
    from stepladder.errors import StepladderError as StepladderError
    from stepladder.task.contract import Metrics as Metrics
    from stepladder.task.contract import Task as Task
    from stepladder.task.image_classification import ImageClassification as ImageClassification

__version__ = "0.1.0"

# Names are imported on first use, so that `import stepladder` is fast and does not import torch.
_HOMES = {
    "Batch": "stepladder.data.batch",
    "ImageClassification": "stepladder.task.image_classification",
    "JobConfig": "stepladder.config.options",
    "LadderConfig": "stepladder.config.options",
    "Metrics": "stepladder.task.contract",
    "PopulationConfig": "stepladder.config.options",
    "PrepareConfig": "stepladder.config.options",
    "Recipe": "stepladder.config.recipe",
    "Run": "stepladder.api.runs",
    "RunConfig": "stepladder.config.options",
    "StepladderError": "stepladder.errors",
    "Task": "stepladder.task.contract",
    **{command.function: command.home for command in COMMANDS if command.home is not None},
}

# Functions that train, and so are slowed down by threads that spin beside other processes.
_TRAINING = frozenset(
    {"advise", "check", "climb", "features", "fit_recipe", "population", "scaling", "train"}
)

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepladder' has no attribute {name!r}")
    home = _HOMES[name]
    if name != "watch" and not home.startswith(("stepladder.config", "stepladder.errors")):
        # torch comes next; a watched script is measured as it is
        openmp = importlib.import_module("stepladder.machine.openmp")
        if not openmp.bound_spinning() and name in _TRAINING:
            openmp.warn_of_spinning()
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)

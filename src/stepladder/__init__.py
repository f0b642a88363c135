"""Scale deep-learning training in the right order, with proof."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepladder.api import (
        Run,
        advise,
        audit,
        check,
        climb,
        compare,
        diagnose,
        export,
        features,
        fit_recipe,
        ledger,
        predict,
        prepare,
        publish,
        report,
        train,
        verify,
    )
    from stepladder.api.watch import watch
    from stepladder.config.options import JobConfig, LadderConfig, PrepareConfig, RunConfig
    from stepladder.config.recipe import Recipe
    from stepladder.data.batch import Batch
    from stepladder.errors import StepladderError
    from stepladder.task.contract import Metrics, Task
    from stepladder.task.image_classification import ImageClassification

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ImageClassification",
    "JobConfig",
    "LadderConfig",
    "Metrics",
    "PrepareConfig",
    "Recipe",
    "Run",
    "RunConfig",
    "StepladderError",
    "Task",
    "__version__",
    "advise",
    "audit",
    "check",
    "climb",
    "diagnose",
    "compare",
    "export",
    "features",
    "fit_recipe",
    "ledger",
    "predict",
    "prepare",
    "publish",
    "report",
    "train",
    "verify",
    "watch",
]

# Each name is imported when it is first used: `import stepladder` takes no time and no torch.
_HOMES = {
    "Batch": "stepladder.data.batch",
    "ImageClassification": "stepladder.task.image_classification",
    "JobConfig": "stepladder.config.options",
    "LadderConfig": "stepladder.config.options",
    "Metrics": "stepladder.task.contract",
    "PrepareConfig": "stepladder.config.options",
    "Recipe": "stepladder.config.recipe",
    "Run": "stepladder.api",
    "RunConfig": "stepladder.config.options",
    "StepladderError": "stepladder.errors",
    "Task": "stepladder.task.contract",
    "advise": "stepladder.api",
    "audit": "stepladder.api",
    "check": "stepladder.api",
    "climb": "stepladder.api",
    "diagnose": "stepladder.api",
    "compare": "stepladder.api",
    "export": "stepladder.api",
    "features": "stepladder.api",
    "fit_recipe": "stepladder.api",
    "ledger": "stepladder.api",
    "predict": "stepladder.api",
    "prepare": "stepladder.api",
    "publish": "stepladder.api",
    "report": "stepladder.api",
    "train": "stepladder.api",
    "verify": "stepladder.api",
    "watch": "stepladder.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepladder' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

"""OPTIMIZERS: every optimiser that can be chosen, in the order in which they are listed."""

from __future__ import annotations

from stepladder.config.choices import OptimizerName
from stepladder.optim.adam import ADAM
from stepladder.optim.adamw import ADAMW
from stepladder.optim.contract import OptimizerSpec
from stepladder.optim.nadam import NADAM
from stepladder.optim.sgd import SGD

OPTIMIZERS: tuple[OptimizerSpec, ...] = (
    SGD,
    ADAM,
    ADAMW,
    NADAM,
)


def spec_of(name: OptimizerName) -> OptimizerSpec:
    """Return the optimiser of a name."""
    return next(spec for spec in OPTIMIZERS if spec.name == name)

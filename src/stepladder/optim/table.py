"""OPTIMIZERS: all available optimizers, in the order of listings."""

from __future__ import annotations

from stepladder.config.choices import OptimizerName
from stepladder.optim.adam import ADAM
from stepladder.optim.adamw import ADAMW
from stepladder.optim.contract import OptimizerSpec
from stepladder.optim.kfac import KFAC
from stepladder.optim.lamb import LAMB
from stepladder.optim.lars import LARS
from stepladder.optim.lion import LION
from stepladder.optim.muon import MUON
from stepladder.optim.nadam import NADAM
from stepladder.optim.sgd import SGD
from stepladder.optim.soap import SOAP

OPTIMIZERS: tuple[OptimizerSpec, ...] = (
    SGD,
    ADAM,
    ADAMW,
    NADAM,
    LION,
    LARS,
    LAMB,
    MUON,
    SOAP,
    KFAC,
)


def spec_of(name: OptimizerName) -> OptimizerSpec:
    """Return the optimizer with this name."""
    return next(spec for spec in OPTIMIZERS if spec.name == name)

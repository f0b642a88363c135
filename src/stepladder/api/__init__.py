"""The few public functions: what the command line and Python both call.

Options are given as in YAML, by their dotted names: `train(store="store", **{"batch.lr": 0.01})`.
"""

from stepladder.api.checks import check, check_job
from stepladder.api.ladder import advise, advise_job, climb, climb_job, ledger
from stepladder.api.runs import (
    Run,
    export,
    predict,
    prepare,
    prepare_job,
    report,
    train,
    train_job,
    verify,
)

__all__ = [
    "Run",
    "advise",
    "advise_job",
    "check",
    "check_job",
    "climb",
    "climb_job",
    "export",
    "ledger",
    "predict",
    "prepare",
    "prepare_job",
    "report",
    "train",
    "train_job",
    "verify",
]

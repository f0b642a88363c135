"""The few public functions: what the command line and Python both call.

Options are given as in YAML, by their dotted names: `train(store="store", **{"batch.lr": 0.01})`.
"""

from stepladder.api.cached_features import features, features_job
from stepladder.api.checks import check, check_job
from stepladder.api.damage import repair, verify
from stepladder.api.diagnosis import diagnose, diagnose_text
from stepladder.api.ladder import advise, advise_job, climb, climb_job, fit_recipe, ledger
from stepladder.api.logs import audit, audit_text, compare, compare_text
from stepladder.api.runs import (
    Run,
    export,
    predict,
    prepare,
    prepare_job,
    publish,
    report,
    train,
    train_job,
)
from stepladder.api.watch import Watching, watch, watch_job

__all__ = [
    "Run",
    "Watching",
    "advise",
    "advise_job",
    "audit",
    "audit_text",
    "check",
    "check_job",
    "climb",
    "climb_job",
    "diagnose",
    "diagnose_text",
    "compare",
    "compare_text",
    "export",
    "features",
    "features_job",
    "fit_recipe",
    "ledger",
    "predict",
    "prepare",
    "prepare_job",
    "publish",
    "repair",
    "report",
    "train",
    "train_job",
    "verify",
    "watch",
    "watch_job",
]

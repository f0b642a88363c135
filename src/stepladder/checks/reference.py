"""The page of all checks, written from their records: `python -m stepladder.checks.reference`.

A test compares docs/checks.md with it.
"""

from __future__ import annotations

import inspect
import sys

from stepladder.checks.contract import Check
from stepladder.checks.order import CHECKS
from stepladder.records.faults import FAULTS

_HEAD = """# Checks

Written from the code by `python -m stepladder.checks.reference > docs/checks.md`.

`stepladder check job.yaml` looks whether a job is sound before its first step: data, loss, model,
validation, checkpoints, machine. Each check passes, fails, warns, is not applicable (and says why),
or could not run: one that itself raises has not passed. Nothing of the job is changed; what was
found lies in `RUN/checks.json` and `RUN/checks.html`, and holds until job, code or machine change.
The exit code is 6 where a check failed, or could not run because the Task raised (its file and line
are named), so that `check` and then `train` stops there; it is 0 where checks were not applicable,
or no time was left for them. Those are run by the next call, such as with `--budget 3m`, which
keeps what was found; `--fresh` looks at all again.

- **tier**: `fast` checks train nothing. They run before each `train` too, within 10 s and within a
  twentieth of what one forward pass predicts for the run. `full` ones run with `check`, and once
  before a `climb`, all within a minute.
- **severity**: an `error` is certain, and the result would be wrong. A `warning` may cost accuracy
  or time, or prove less than it seems to. What is for information only is told, and no alarm.
- `--run.checks` says what becomes of an unsound job in `train` and `climb`: `warn` tells (the
  default), `stop` ends it with exit code 6, `off` does not look.

How often these checks are right is measured: [hits.md](hits.md).

"""


def page() -> str:
    """Write the page as Markdown."""
    return "".join([_HEAD, _table(), "\n", *map(_section, CHECKS), _faults()])


def _table() -> str:
    rows = [
        f"| [{check.name}](#{check.name}) | {check.tier} | {check.severity} | "
        f"{', '.join(check.faults)} |"
        for check in CHECKS
    ]
    head = ["| check | tier | severity | faults that it finds |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def _section(check: Check) -> str:
    what = (inspect.getdoc(check.run) or "").partition("\n\n")[0].replace("\n", " ")
    broken = (inspect.getdoc(check.broken) or "").partition("\n\n")[0].replace("\n", " ")
    return (
        f"## {check.name}\n\n{what}\n\n- Why: {check.reason}\n- Source: {check.source}\n"
        f"- It must fire on: {broken}\n\n"
    )


def _faults() -> str:
    rows = [
        f"| {fault.name} | {fault.title} | {', '.join(eyes.value for eyes in fault.eyes)} |"
        for fault in FAULTS
    ]
    text = (
        "## All faults\n\nOne name each, the same for `check`, `watch`, `diagnose` and `audit`. "
        "What `watch` sees, and what needs `--probe`: [watch.md](watch.md). Fifty faults that are "
        "reported again and again, and which of these names tells each: "
        "[fifty_faults.md](fifty_faults.md).\n\n"
    )
    return (
        text + "\n".join(["| fault | what it is | looked for by |", "|---|---|---|", *rows]) + "\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())

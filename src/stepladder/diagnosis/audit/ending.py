"""How a training ended: finished, or with an error, and what to do about that."""

from __future__ import annotations

import re

from stepladder.diagnosis.logs.printed.crash import explain, is_out_of_memory
from stepladder.records.audit import RunLog
from stepladder.records.findings import Finding, Outcome

_STATE = re.compile(r"(?:status|state|sys_state) ", re.IGNORECASE)
_STOPPED = re.compile(r"KeyboardInterrupt|Terminated|TIME LIMIT|CANCELLED|KILLED$")


def judge_ending(log: RunLog) -> Finding | None:
    """Return the error that ended a training, and how far it came; None without one."""
    if log.ended_by is None:
        return None
    done = log.num_epochs
    planned = f" of {log.max_epochs:,}" if log.max_epochs else ""
    is_state = _STATE.match(log.ended_by) is not None
    said = f"the training did not finish: it ended with {log.ended_by!r}"
    if is_state:
        said = f"the training did not finish: the log has its {log.ended_by}"
    if done is not None:
        said += f", after {done:,.6g}{planned} epochs"
    elif log.rows:
        said += f", after {len(log.rows)} evaluations" + (
            f"; {log.max_epochs:,} epochs were planned" if log.max_epochs else ""
        )
    is_stopped = _STOPPED.search(log.ended_by) is not None
    fix = "Correct that error, and resume from the last checkpoint."
    if (explained := explain(log.ended_by)) is not None:
        why, todo = explained
        said += f". {why.removesuffix('.')}"
        fix = f"{todo} Then resume from the last checkpoint."
    elif is_out_of_memory(log.ended_by):
        fix = (
            "Use a smaller batch size (with gradient accumulation, if the batch must stay as "
            "large), mixed precision or smaller images, and resume from the last checkpoint."
        )
    elif is_stopped:
        fix = "Resume from the last checkpoint, or train again."
    elif is_state:
        fix = "Look for the error in the output of this run, correct it, and train again."
    return Finding(
        check="ended",
        outcome=Outcome.WARNED if is_stopped else Outcome.FAILED,
        evidence=said,
        fix=fix,
    )

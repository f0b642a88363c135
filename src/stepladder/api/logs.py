"""Audit and compare training logs, of stepladder and of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stepladder.api.targets import AUDIT, PAGE, refuse_to_replace, write_result

if TYPE_CHECKING:
    from stepladder.records.audit import Audit
    from stepladder.records.compare import Comparison


def audit(
    *logs: Path | str,
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    metric: str | None = None,
    page: Path | str | None = None,
    out: Path | str | None = None,
) -> Audit:
    """Read training logs of any tool, and report what their numbers support.

    Args:
        logs: files, folders, or MLflow URIs; each may contain several training runs.
        num_train, num_val, num_test: sizes of the splits, if they are not in the logs.
        metric: column of the metric; None: validation accuracy, else validation loss.
        page: HTML file to write, with the curves; None: no page.
        out: JSON file to write; None: no file.

    Raises:
        UsageError: if no log is given, a size is not valid, or an output file exists that was not
            written by stepladder.
        DataError: if no training run can be read from any of the logs.
        MissingExtraError: if a package needed to read a log is not installed.
        ResourceError: if a file cannot be written.
    """
    from stepladder.diagnosis.audit.audit import audit as audit_logs
    from stepladder.diagnosis.audit.size import Sizes
    from stepladder.errors import UsageError

    if not logs:
        raise UsageError(
            "no training log was given",
            fix="Type stepladder audit LOG, where LOG is the log file of a training, or a folder "
            "of logs.",
        )
    if page is not None:
        refuse_to_replace(Path(page), PAGE, option="--page", inputs=logs)
    if out is not None:
        inputs = logs if page is None else (*logs, page)
        refuse_to_replace(Path(out), AUDIT, option="--out", inputs=inputs)
    sizes = Sizes(num_train=num_train, num_val=num_val, num_test=num_test)
    found = audit_logs([str(log) for log in logs], sizes=sizes, metric=metric)
    if out is not None:
        write_result(Path(out), found, option="--out")
    if page is not None:
        from stepladder.reporting.pages.audit_page import write_audit_page

        write_audit_page(found, Path(page))
    return found


def compare(
    *runs: Path | str,
    out: Path | str | None = None,
    num_train: int | None = None,
    num_val: int | None = None,
    num_test: int | None = None,
    metric: str | None = None,
) -> Comparison:
    """Compare training runs with the first one, and write a page with their curves.

    Args:
        runs: two to nine run folders or logs of other tools, as in `audit`.
        out: HTML file to write; None: no page.
        num_train, num_val, num_test: sizes of the splits, if they are not in the logs.
        metric: column of the metric; None: validation accuracy, else validation loss.

    Raises:
        UsageError: if there are too few or too many training runs, or the output file exists and
            was not written by stepladder.
        DataError: if no run can be read.
        ResourceError: if the page cannot be written.
    """
    from stepladder.diagnosis.audit.size import Sizes
    from stepladder.diagnosis.runs.compare import compare as compare_logs
    from stepladder.errors import UsageError
    from stepladder.reporting.pages.compare_page import write_compare_page

    if not runs:
        raise UsageError(
            "no runs were given",
            fix="Type stepladder compare RUN RUN, where each RUN is a run folder or a log.",
        )
    if out is not None:
        refuse_to_replace(Path(out), PAGE, option="--out", inputs=runs)
    sizes = Sizes(num_train=num_train, num_val=num_val, num_test=num_test)
    found = compare_logs([str(run) for run in runs], sizes=sizes, metric=metric)
    if out is not None:
        write_compare_page(found, Path(out))
    return found

"""Audit and compare: trainings by their logs, ours and those of others."""

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
    """Read logs of trainings, whoever wrote them, and say what their numbers support.

    Args:
        logs: files, folders, or addresses of MLflow; each may hold several trainings.
        num_train, num_val, num_test: examples of the sets, where the logs do not say.
        metric: the column that is judged; none: validation accuracy, else validation loss.
        page: file of a page with the curves; none: no page is written.
        out: file of the audit as JSON; none: it is not written.

    Raises:
        UsageError: if no log is named, a size is no number of examples, or a file would replace
            what is no page or audit of ours.
        DataError: if no training can be read from any of them.
        MissingExtraError: if a package that reads a log is not installed.
        ResourceError: if a file cannot be written.
    """
    from stepladder.diagnosis.audit.audit import audit as audit_logs
    from stepladder.diagnosis.audit.size import Sizes
    from stepladder.errors import UsageError

    if not logs:
        raise UsageError("no log is named", fix="Write stepladder audit LOG, a file or a folder.")
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
    """Compare trainings, each with the first, and write the page of their curves.

    Args:
        runs: run folders, and logs of others, as `audit` reads them; two to nine trainings.
        out: file of the page; none: no page is written.
        num_train, num_val, num_test: examples of the sets, where the logs do not say.
        metric: the column that is judged; none: validation accuracy, else validation loss.

    Raises:
        UsageError: if there are fewer than two trainings, or too many, or the page would replace
            what is no page of ours.
        DataError: if none can be read.
        ResourceError: if the page cannot be written.
    """
    from stepladder.diagnosis.audit.size import Sizes
    from stepladder.diagnosis.runs.compare import compare as compare_logs
    from stepladder.errors import UsageError
    from stepladder.reporting.pages.compare_page import write_compare_page

    if not runs:
        raise UsageError("no run is named", fix="Write stepladder compare RUN RUN.")
    if out is not None:
        refuse_to_replace(Path(out), PAGE, option="--out", inputs=runs)
    sizes = Sizes(num_train=num_train, num_val=num_val, num_test=num_test)
    found = compare_logs([str(run) for run in runs], sizes=sizes, metric=metric)
    if out is not None:
        write_compare_page(found, Path(out))
    return found

"""What a run says of the earlier run that it is compared with, before its first step."""

from __future__ import annotations

from stepladder.config.choices import BaselineAt
from stepladder.training.baseline import Baseline


def baseline_line(baseline: Baseline, patience: int) -> str:
    """Say in one line which run this one is compared with, and when that ends it."""
    point = "seconds" if baseline.at is BaselineAt.WALL_TIME else "training examples"
    times = "validation" if patience == 1 else f"{patience} validations in a row"
    return (
        f"{baseline.run}, after the same {point}; ends where it is worse by more than noise at "
        f"{times}"
    )


def baseline_warnings(
    baseline: Baseline | None,
    num_val: int | None,
    *,
    task: str | None = None,
    fingerprint: str | None = None,
) -> list[str]:
    """Say what a comparison with an earlier run cannot know.

    Args:
        num_val: validation examples of this run; None: it has none.
        task, fingerprint: what this run learns, and from which data; None: not known.
    """
    if baseline is None:
        return []
    if num_val is None:
        return ["run.baseline does nothing: there is no validation to compare"]
    warnings = _other_ground(baseline, task, fingerprint)
    if baseline.num_val is not None and baseline.num_val != num_val:
        warnings.append(
            f"run.baseline stood on {baseline.num_val:,} validation examples, this run stands on "
            f"{num_val:,}: what lies between them may be the examples"
        )
    if baseline.at is BaselineAt.WALL_TIME:
        warnings.append(
            "run.baseline_at wall_time: when the run stops depends on the speed of the machine, "
            "and another attempt may stop elsewhere"
        )
    return warnings


def _other_ground(baseline: Baseline, task: str | None, fingerprint: str | None) -> list[str]:
    """Say where the earlier run learnt something else, or from other examples."""
    found = []
    if task and baseline.task and _plain(task) != _plain(baseline.task):
        found.append(
            f"run.baseline learnt another task, {baseline.task}, and this run learns {task}: "
            "losses of the two say nothing of each other"
        )
    if fingerprint and baseline.fingerprint and fingerprint != baseline.fingerprint:
        found.append(
            f"run.baseline learnt from other training data (fingerprint "
            f"{baseline.fingerprint[:12]}, here {fingerprint[:12]}): what lies between them may "
            "be the data"
        )
    return found


def _plain(task: str) -> str:
    """Name a task without the folders that its file lies in."""
    return task.rpartition("/")[2]

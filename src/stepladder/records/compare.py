"""compare.json: trainings beside each other."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.records.audit import AuditedRun, Difference
from stepladder.records.ladder import Interval


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One training of a comparison.

    Attributes:
        audited: what its log says.
        accuracy: on test where there is a test result, else the best on validation; in [0, 1].
        low, high: its bounds at 95 % by the number of examples; None: that is not known.
        num: examples that it stands on.
        split: test or val; None: there is no accuracy.
    """

    audited: AuditedRun
    accuracy: float | None
    low: float | None
    high: float | None
    num: int | None
    split: str | None


@dataclass(frozen=True, kw_only=True)
class PairedResult:
    """Two trainings on the same examples.

    Attributes:
        first, second: names of the runs.
        split: test or val.
        num: examples that both have judged.
        num_left_out: examples that only one of them has judged.
        only_first, only_second: examples that only one of them classifies rightly; None: no
            classes.
        p: of McNemar's exact test that both are equally good.
        accuracy: change of accuracy, second less first.
        loss: change of the mean loss; negative is better.
        why_not: why there is no such result; empty: there is one.
    """

    first: str
    second: str
    split: str | None = None
    num: int = 0
    num_left_out: int = 0
    only_first: int | None = None
    only_second: int | None = None
    p: float | None = None
    accuracy: Interval | None = None
    loss: Interval | None = None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class OptionDifference:
    """An option that is not the same in all runs.

    Attributes:
        values: one for each run, in order; None: its log does not say.
    """

    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Trainings beside each other, each judged against the first.

    Attributes:
        options: that differ.
        pairs: on the same examples, each against the first.
        differences: by the logs alone, each against the first.
        unreadable: logs that held no training, a sentence each.
    """

    runs: tuple[ComparedRun, ...]
    options: tuple[OptionDifference, ...]
    pairs: tuple[PairedResult, ...]
    differences: tuple[Difference, ...]
    unreadable: tuple[str, ...] = ()

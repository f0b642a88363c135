"""compare.json: a comparison of trainings."""

from __future__ import annotations

from dataclasses import dataclass

from stepladder.records.audit import AuditedRun, Difference
from stepladder.records.ladder import Interval


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A training in a comparison.

    Attributes:
        audited: the audit of its log.
        accuracy: on test if there is a test result, else the best on validation; in [0, 1].
        low, high: its 95 % bounds from the number of examples; None if that is not known.
        num: number of examples.
        split: test or val; None if there is no accuracy.
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
        num: number of examples that both have predicted.
        num_left_out: number of examples that only one of them has predicted.
        only_first, only_second: number of examples that only one of them classifies correctly;
            None: no classes.
        p: p-value of McNemar's exact test that both are equally accurate.
        accuracy: change of accuracy, second minus first.
        loss: change of the mean loss; negative is better.
        why_not: why there is no result; empty if there is one.
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
    """An option that differs between runs.

    Attributes:
        key: name of the option.
        values: one for each run, in order; None: not logged.
    """

    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of trainings, each with the first.

    Attributes:
        runs: the trainings.
        options: options that differ.
        pairs: results on the same examples, each compared with the first.
        differences: from the logs only, each compared with the first.
        unreadable: logs without a training, one sentence each.
    """

    runs: tuple[ComparedRun, ...]
    options: tuple[OptionDifference, ...]
    pairs: tuple[PairedResult, ...]
    differences: tuple[Difference, ...]
    unreadable: tuple[str, ...] = ()

"""diagnosis.json: fit, remedies and machine use of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json
from stepladder.records.findings import Finding


class FitKind(StrEnum):
    """How well a model fits its data.

    UNDERFIT: the training error is high.
    GOOD_FIT: the training error is low, and the held-out error is about as low.
    OVERFIT: the held-out error became worse while the training error improved, or is far above it.
    NOT_YET_KNOWN: the curves are inconclusive.
    """

    UNDERFIT = "underfit"
    GOOD_FIT = "good_fit"
    OVERFIT = "overfit"
    NOT_YET_KNOWN = "not_yet_known"


class Confidence(StrEnum):
    """Confidence of a statement.

    SURE: far outside the noise, in a fair comparison.
    LIKELY: outside the noise.
    WEAK: something was not measured or had to be assumed.
    """

    SURE = "sure"
    LIKELY = "likely"
    WEAK = "weak"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Result of the analysis of a run's curves.

    Attributes:
        kind: the result.
        confidence: its confidence.
        is_overconfident: validation loss and accuracy both rose: probabilities became
            overconfident, but there are not more errors. Not an overfit if accuracy was still
            rising at the end.
        is_learning_rate_too_high: training stays poor and its loss jumps, or is not finite.
        is_still_improving: validation was still improving at the end.
        is_past_best: it is underfit, but validation was at its best long before the end, and is
            worse than training: training longer would only widen that gap.
        best_step, best_epoch: position of the best validation, the same as in the run's report;
            None: there is no validation.
        evidence: sentences with numbers.
        numbers: the numbers of the evidence by name, for programs.
    """

    kind: FitKind
    confidence: Confidence
    is_overconfident: bool = False
    is_learning_rate_too_high: bool = False
    is_still_improving: bool = False
    is_past_best: bool = False
    best_step: int | None = None
    best_epoch: float | None = None
    evidence: tuple[str, ...] = ()
    numbers: Mapping[str, Json] = field(default_factory=dict)


class LrVerdict(StrEnum):
    """A run's learning rate compared with the usable range found by a range test.

    NOT_TOLD: the loss never fell by more than its noise, so that there is no range.
    """

    TOO_LOW = "too_low"
    IN_RANGE = "in_range"
    TOO_HIGH = "too_high"
    NOT_TOLD = "not_told"


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """A learning rate range test: the rate rises exponentially, from the run's initial weights.

    Attributes:
        lrs, losses: learning rate of each step, and the smoothed training loss before it.
        low, high: rates at which the loss starts and stops falling; None: not found.
        suggested: a learning rate well inside the range; None: not found.
        lr: learning rate of the run.
        verdict: the run's learning rate compared with the range.
        took_s: duration in seconds.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    low: float | None
    high: float | None
    suggested: float | None
    lr: float
    verdict: LrVerdict
    took_s: float


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """Trainings on subsets of the data, and the predicted gain of more data.

        error(n) = a n^-b + c

    Attributes:
        sizes: training examples of each training.
        errors: validation error of each training: error rate, or mean loss.
        is_share: whether errors are error rates.
        a, b, c: parameters of the fit; c is the error that more data cannot remove.
        error_now: error of the fit with all data.
        error_at_double, low_at_double, high_at_double: with twice the data, and 90 % interval.
        gain, low_gain, high_gain: error_now minus error_at_double, and 90 % interval.
        num_seeds: number of trainings of each size.
        took_s: duration in seconds.
    """

    sizes: tuple[int, ...]
    errors: tuple[float, ...]
    is_share: bool
    a: float
    b: float
    c: float
    error_now: float
    error_at_double: float
    low_at_double: float
    high_at_double: float
    gain: float
    low_gain: float
    high_gain: float
    num_seeds: int
    took_s: float


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A remedy to try.

    Attributes:
        name: its name; the name of the rung that tries it, if there is one.
        against: "training error" or "validation error".
        why: the evidence, in one sentence with numbers.
        options: options to set, by dotted name; empty if a climb finds them.
        command: command to run.
    """

    name: str
    against: str
    why: str
    options: Mapping[str, Json] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelStage:
    """A network of a chain.

    Attributes:
        name: its name in the Task.
        seconds: time for all examples.
        time_frac: fraction of the time of all stages, in [0, 1].
        own_error: mean error of its own output; None: the Task does not report it.
        end_error: mean error at the end of the chain if this stage were perfect; None: the Task has
            no ground truth for it.
        gain, gain_sem: reduction of the error at the end if this stage and those before it were
            perfect, and its standard error over the examples; None: not known.
    """

    name: str
    seconds: float
    time_frac: float
    own_error: float | None = None
    end_error: float | None = None
    gain: float | None = None
    gain_sem: float | None = None


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The stages of a Task that is a chain of networks.

    Attributes:
        stages: in order.
        end_error: mean error at the end.
        improve_first: the stage with the largest gain, by more than twice its noise; None: no stage
            stands out.
        num_examples: number of validation examples evaluated.
    """

    stages: tuple[ModelStage, ...]
    end_error: float
    improve_first: str | None
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class Use:
    """Use of one part of the machine by a run.

    Attributes:
        name: such as "CPU".
        unit: unit of the numbers.
        mean, low, high: mean, 5th and 95th percentile over the samples.
        num_samples: number of samples.
    """

    name: str
    unit: str
    mean: float
    low: float
    high: float
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """Use of the machine during a run, and the bottleneck.

    Attributes:
        uses: CPU, GPU, memory, disk and network, if sampled.
        phases: fraction of the training time by phase, the largest first.
        energy_wh: energy of the whole run; None: not measured.
        held_by: the bottleneck: "data wait", "host work", "validation", "checkpoints", "small
            batch", "the final evaluation" or another part of the run; None: no bottleneck, or
            not known.
        said: explanations, in sentences with numbers.
    """

    uses: tuple[Use, ...]
    phases: Mapping[str, float]
    energy_wh: float | None
    held_by: str | None
    said: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """diagnosis.json: the diagnosis of a run and its remedies.

    Attributes:
        run: name of its folder.
        status: finished, interrupted, diverged, or running (or killed).
        fit: how well it fits.
        terms: how the training error was measured, in words.
        remedies: in the order to try them.
        machine: use of the machine.
        range_test, learning_curve, chain: None: not measured.
        num_norms: number of normalisation layers of the model; None: it was not built.
        findings: other findings, such as whether the run beats a trivial baseline.
        could_not: what could not be measured or read and why, one sentence each.
        took_s: total duration in seconds.
    """

    run: str
    status: str
    fit: Fit
    terms: str
    remedies: tuple[Remedy, ...]
    machine: MachineUse
    range_test: RangeTest | None = None
    learning_curve: LearningCurve | None = None
    chain: Chain | None = None
    num_norms: int | None = None
    findings: tuple[Finding, ...] = ()
    could_not: tuple[str, ...] = ()
    took_s: float = 0.0

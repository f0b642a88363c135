"""diagnosis.json: how well a run fits its data, what would help, and what its machine did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from stepladder.records.files import Json
from stepladder.records.findings import Finding


class FitKind(StrEnum):
    """How well a model fits its data.

    UNDERFIT: it is wrong on much of what it was shown.
    GOOD_FIT: it learnt what it was shown, and held-out data has not become worse.
    OVERFIT: held-out data became worse while training went on improving.
    NOT_YET_KNOWN: the curves do not tell.
    """

    UNDERFIT = "underfit"
    GOOD_FIT = "good_fit"
    OVERFIT = "overfit"
    NOT_YET_KNOWN = "not_yet_known"


class Confidence(StrEnum):
    """How far a statement can be trusted.

    SURE: far outside the noise, on equal terms.
    LIKELY: outside the noise.
    WEAK: something that it needs was not measured, or had to be assumed.
    """

    SURE = "sure"
    LIKELY = "likely"
    WEAK = "weak"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What the curves of a run say.

    Attributes:
        kind: the finding.
        confidence: how far to trust it.
        is_overconfident: validation loss rose while accuracy rose too: probabilities became too
            sure, not wrong more often. It is no overfit where accuracy was still rising at the end.
        is_learning_rate_too_high: training stays poor and its loss jumps, or is no number.
        is_still_improving: validation was still becoming better at the end.
        best_step, best_epoch: where validation was best; None: there is no validation.
        evidence: sentences with their numbers.
        numbers: the same for programs, by name.
    """

    kind: FitKind
    confidence: Confidence
    is_overconfident: bool = False
    is_learning_rate_too_high: bool = False
    is_still_improving: bool = False
    best_step: int | None = None
    best_epoch: float | None = None
    evidence: tuple[str, ...] = ()
    numbers: Mapping[str, Json] = field(default_factory=dict)


class LrVerdict(StrEnum):
    """Where a run's learning rate lies in the range that a range test found usable.

    NOT_TOLD: the loss never fell by more than its noise, so that there is no range.
    """

    TOO_LOW = "too_low"
    IN_RANGE = "in_range"
    TOO_HIGH = "too_high"
    NOT_TOLD = "not_told"


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """A training whose learning rate rises exponentially, from the run's first weights.

    Attributes:
        lrs, losses: learning rate of each step, and the smoothed training loss before it.
        low, high: where the loss begins to fall, and where it falls no more; None: not found.
        suggested: a learning rate well inside the range; None: not found.
        lr: that of the run.
        verdict: where it lies.
        took_s: seconds.
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
    """Trainings on parts of the data, and what more data would give.

        error(n) = a n^-b + c

    Attributes:
        sizes: training examples of each training.
        errors: validation error of each: share of wrong examples, or mean loss.
        is_share: whether errors are shares.
        a, b, c: of the fit; c is what no amount of data removes.
        error_now: the fit at all of the data.
        error_at_double, low_at_double, high_at_double: at twice as much, with its 90 % interval.
        gain, low_gain, high_gain: error now less error at twice as much, with its 90 % interval.
        num_seeds: trainings of each size.
        took_s: seconds.
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
    """One thing to try.

    Attributes:
        name: what it is called; that of the rung that tries it, where there is one.
        against: "training error" or "validation error".
        why: the evidence, in one sentence with its numbers.
        options: options that it would set, by dotted name; empty: a climb finds them.
        command: what to type.
    """

    name: str
    against: str
    why: str
    options: Mapping[str, Json] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelStage:
    """One network of a chain.

    Attributes:
        name: as the Task calls it.
        seconds: it took for all examples.
        time_frac: its share of the time of all stages, in [0, 1].
        own_error: mean error of its own output against the truth; None: the Task gives none.
        end_error: mean error at the end of the chain if this stage were perfect; None: the Task
            gives no truth for it.
        gain, gain_sem: by how much the error at the end falls if this stage, besides those before
            it, were perfect, and its standard error over the examples; None: not known.
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
        stages: in their order.
        end_error: mean error at the end as it is.
        improve_first: the stage whose perfection would gain most, beyond twice its noise; None:
            none stands out.
        num_examples: validation examples that were looked at.
    """

    stages: tuple[ModelStage, ...]
    end_error: float
    improve_first: str | None
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a run did with one part of its machine.

    Attributes:
        name: such as "CPU".
        unit: of the numbers.
        mean, low, high: mean, 5th and 95th percentile over the samples.
        num_samples: how many.
    """

    name: str
    unit: str
    mean: float
    low: float
    high: float
    num_samples: int


@dataclass(frozen=True, kw_only=True)
class MachineUse:
    """How the machine was used over a run, and what held it back.

    Attributes:
        uses: CPU, GPU, memory, disk and network, as far as they were sampled.
        phases: share of the training time by phase of the clock, the largest first.
        energy_wh: of the whole run; None: not measured.
        held_by: what the time goes to beside computing: "data wait", "host work", "validation",
            "checkpoints", "small batch", "the final evaluation" or another part of the
            run; None: nothing stands out, or it is not known.
        said: what it means, in sentences with their numbers.
    """

    uses: tuple[Use, ...]
    phases: Mapping[str, float]
    energy_wh: float | None
    held_by: str | None
    said: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """diagnosis.json: what is known of a run, and what would make it better.

    Attributes:
        run: name of its folder.
        status: finished, interrupted, diverged, or running (it goes on, or was killed).
        fit: how well it fits.
        terms: what the judgement of training rests on, in words.
        remedies: in the order to try them.
        machine: use of the machine.
        range_test, learning_curve, chain: None: not measured.
        num_norms: normalisation layers of the model; None: it was not built.
        findings: whether it beats what needs no training, and the like.
        could_not: what could not be measured or read, and why, a sentence each.
        took_s: seconds of everything.
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

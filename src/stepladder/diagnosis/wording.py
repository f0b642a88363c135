"""A diagnosis as text."""

from __future__ import annotations

from collections.abc import Iterator

from stepladder.diagnosis.fit.remedies import said_of
from stepladder.records.diagnosis import (
    Chain,
    Confidence,
    Diagnosis,
    Fit,
    FitKind,
    LrVerdict,
    RangeTest,
)
from stepladder.records.findings import Outcome
from stepladder.training.output.wording import duration, percent

KINDS = {
    FitKind.UNDERFIT: "underfit",
    FitKind.GOOD_FIT: "good fit",
    FitKind.OVERFIT: "overfit",
    FitKind.NOT_YET_KNOWN: "not yet known",
}
_SURENESS = {
    Confidence.SURE: "surely",
    Confidence.LIKELY: "likely",
    Confidence.WEAK: "as far as it can be told",
}
_VERDICTS = {
    LrVerdict.TOO_LOW: "too low",
    LrVerdict.IN_RANGE: "within the usable range",
    LrVerdict.TOO_HIGH: "too high",
    LrVerdict.NOT_TOLD: "not told: the loss never fell by more than its noise",
}


def headline(fit: Fit) -> str:
    """Say a fit in a few words."""
    words = KINDS[fit.kind]
    if fit.is_overconfident:
        words += " and over-confident"
    if fit.kind is not FitKind.NOT_YET_KNOWN:
        words += f", {_SURENESS[fit.confidence]}"
    if fit.is_learning_rate_too_high:
        words += ": the learning rate looks too high"
    return words


def said_of_range(test: RangeTest) -> str:
    """Say what a range test found."""
    verdict = _VERDICTS[test.verdict]
    if test.verdict is LrVerdict.IN_RANGE and test.low is not None and test.lr < test.low:
        verdict = "a little below the usable range, and it may learn all the same"
    said = f"learning rate {test.lr:.3g}: {verdict}"
    if test.low is not None and test.high is not None and test.suggested is not None:
        said += (
            f" ({test.low:.2g} to {test.high:.2g}; {test.suggested:.2g} is well inside), by "
            f"{len(test.lrs)} steps in {duration(test.took_s)}"
        )
    return said


def text_of(diagnosis: Diagnosis) -> str:
    """Give a diagnosis as text for a terminal."""
    return "\n".join(_lines(diagnosis))


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield f"{diagnosis.run} ({diagnosis.status}): {headline(diagnosis.fit)}"
    yield from (f"  {sentence}" for sentence in diagnosis.fit.evidence)
    yield f"  {diagnosis.terms}"
    if diagnosis.range_test is not None:
        yield f"  {said_of_range(diagnosis.range_test)}"
    if diagnosis.learning_curve is not None:
        yield f"  {said_of(diagnosis.learning_curve)}"
    for finding in diagnosis.findings:
        if finding.outcome is not Outcome.NOT_APPLICABLE:
            yield f"  {finding.evidence}"
    if diagnosis.remedies:
        yield ""
        yield "To try, in this order:"
        for idx, remedy in enumerate(diagnosis.remedies, start=1):
            yield f"  {idx}. {remedy.name}: {remedy.why}"
        commands = dict.fromkeys(remedy.command for remedy in diagnosis.remedies if remedy.command)
        yield from (f"     {command}" for command in list(commands)[:3])
    if diagnosis.chain is not None:
        yield ""
        yield from _chain_lines(diagnosis.chain)
    if diagnosis.machine.said:
        yield ""
        yield "The machine:"
        yield from (f"  {sentence}" for sentence in diagnosis.machine.said)
    if diagnosis.could_not:
        yield ""
        yield "Not known:"
        yield from (f"  {sentence}" for sentence in diagnosis.could_not)


def _chain_lines(chain: Chain) -> Iterator[str]:
    yield f"Stages (error at the end {chain.end_error:.4g}, {chain.num_examples:,} examples):"
    for stage in chain.stages:
        words = [f"{percent(stage.time_frac)} of the time"]
        if stage.own_error is not None:
            words.append(f"own error {stage.own_error:.4g}")
        if stage.gain is not None:
            words.append(f"if it were perfect {stage.gain:.4g} ± {stage.gain_sem:.2g} less")
        yield f"  {stage.name}: {', '.join(words)}"
    first = chain.improve_first
    yield f"  improve first: {first}" if first else "  no stage stands out from the noise"

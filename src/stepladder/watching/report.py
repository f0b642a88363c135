"""Build the report of a watched script from what was seen."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeVar

from stepladder.machine.contention import cores_missing_since
from stepladder.machine.limits import num_cores
from stepladder.machine.openmp import waiting_settings
from stepladder.records.files import Json
from stepladder.records.findings import Finding, Outcome, Severity
from stepladder.records.watch import PhaseTime, Replay, WatchReport
from stepladder.watching.advice import next_step
from stepladder.watching.causes.contract import MIN_SAMPLES
from stepladder.watching.contract import Answer, Detector, Found, Sound, Unseen
from stepladder.watching.detectors import DETECTORS
from stepladder.watching.seen.costs import OWN, StacksSeen
from stepladder.watching.seen.seen import Seen
from stepladder.watching.step_times import BACKWARD, CHECKPOINT, FORWARD, OPTIMIZER, VALIDATION
from stepladder.watching.watcher import Watcher

T = TypeVar("T")

_MAX_LOSSES: Final = 500
_OUTCOMES: Final = {
    Severity.ERROR: Outcome.FAILED,
    Severity.WARNING: Outcome.WARNED,
    Severity.INFO: Outcome.PASSED,  # reported, but not a fault
}
_ORDER: Final = (
    Outcome.FAILED,
    Outcome.WARNED,
    Outcome.COULD_NOT_RUN,
    Outcome.PASSED,
    Outcome.NOT_APPLICABLE,
)


def findings_of(seen: Seen, detectors: Sequence[Detector] = DETECTORS) -> tuple[Finding, ...]:
    """Run every detector; faults come first."""
    return sorted_findings([ask(one.name, one.severity, one.look, seen) for one in detectors])


def sorted_findings(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings with the worst outcomes first."""
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.outcome)))


def ask(name: str, severity: Severity, look: Callable[[T], Answer], seen: T) -> Finding:
    """Return the answer of a detector as a finding."""
    try:
        answer = look(seen)
    except Exception as error:
        reason = f"internal error of the detector: {type(error).__name__}: {error}"
        return Finding(check=name, outcome=Outcome.COULD_NOT_RUN, evidence=reason)
    if isinstance(answer, Unseen):
        return Finding(check=name, outcome=Outcome.NOT_APPLICABLE, evidence=answer.reason)
    if isinstance(answer, Sound):
        return Finding(check=name, outcome=Outcome.PASSED, evidence=answer.evidence)
    assert isinstance(answer, Found)
    return Finding(
        check=name,
        outcome=_OUTCOMES[answer.severity or severity],
        fault=name,
        evidence=answer.evidence,
        fix=answer.fix,
        where=answer.where,
        numbers=answer.numbers,
    )


def times_of(watcher: Watcher) -> tuple[PhaseTime, ...]:
    """Sort the time since the first steps into phases; the remainder is `unexplained`."""
    phases = watcher.phases
    span = phases.span_s
    if span <= 0 or phases.num_steps == 0:
        return ()
    totals = {name: phases.whole_s(name) for name in (FORWARD, BACKWARD, OPTIMIZER)}
    wait = validation = 0.0
    for loader in watcher.seen.loaders:
        for one in loader.passes:
            if one.is_training:
                wait += one.wait_s
            elif one.is_validation:
                validation += one.span_s
    totals = {"data_wait": wait, **totals}
    totals["validation"] = validation + phases.whole_s(VALIDATION)
    totals["checkpoint"] = phases.whole_s(CHECKPOINT)
    named = sum(totals.values())
    span = max(0.0, span - max(0.0, watcher.switch.spent_s - phases.spent_before_s))
    unexplained = max(0.0, span - named)
    totals["own_code"] = min(unexplained, span * own_share(watcher.seen.costs.stacks))
    totals["unexplained"] = unexplained - totals["own_code"]
    whole = max(span, named)
    phases.settle()
    return tuple(
        PhaseTime(
            name=name,
            total_s=total,
            share=total / whole,
            device_s=_mean(phases.device_s.get(name)),
        )
        for name, total in totals.items()
    )


def own_share(stacks: StacksSeen) -> float:
    """Return the share of samples in lines of the script between the phases."""
    whole_s = sum(one.seconds for one in stacks.samples)
    if stacks.num < MIN_SAMPLES or not whole_s:
        return 0.0
    between = (FORWARD, OPTIMIZER, OWN)  # such as a loss of its own, and zero_grad
    outside = (
        one.seconds * one.outside_s / one.followed_s
        for one in stacks.samples
        if one.spots and one.part in between and one.followed_s
    )
    return min(1.0, sum(outside) / whole_s)


def num_validations_of(watcher: Watcher) -> int:
    """Return the number of validations since steps are counted."""
    passes = (one for loader in watcher.seen.loaders for one in loader.passes)
    return watcher.phases.num_validations + sum(one.is_validation for one in passes)


def _mean(values: list[float] | None) -> float | None:
    return sum(values) / len(values) if values else None


def facts_of(watcher: Watcher) -> dict[str, Json]:
    """Return facts about the run: versions, optimizers, loader and model."""
    import torch

    seen = watcher.seen
    stepped = [one for one in seen.optimizers if one.num_steps]
    loader = next((one for one in seen.loaders if one.training), None)
    model = next((one for one in seen.models if one.num_params), None)
    facts: dict[str, Json] = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": _device(),
        "threads": torch.get_num_threads(),
        "cores": num_cores(),
        "cores_missing": round(cores_missing_since(watcher.usage), 2),
        "waiting": " ".join(f"{name}={value}" for name, value in waiting_settings().items()),
        "optimizers": ", ".join(one.kind for one in stepped),
        "is_compiled": seen.is_compiled,
        "num_backwards": seen.num_backwards,
        "num_steps_looked_at": seen.num_looked,
        "num_steps_only_counted": watcher.rest.num_steps,
    }
    if loader is not None:
        facts |= {"batch_size": loader.batch_size, "num_workers": loader.num_workers}
    if model is not None:
        facts |= {"model": model.built, "num_params": model.num_params}
    main = max(stepped, key=lambda one: one.num_steps, default=None)
    facts["fused"] = main.is_fused if main is not None else None
    return facts


def _device() -> str:
    import torch

    from stepladder.watching.step_times import has_gpu

    if has_gpu():
        return str(torch.cuda.get_device_name())
    return "cpu"


def not_seen_of(watcher: Watcher) -> tuple[str, ...]:
    """Return a sentence for each thing that could not be inspected."""
    seen, switch = watcher.seen, watcher.switch
    has_steps = seen.num_steps > 0
    has_times = watcher.phases.num_steps > 0
    has_validation = any(one.validation for one in seen.loaders)
    lines = (
        (not has_steps, "No step of a torch optimizer was seen: training was not checked."),
        (
            not has_steps and seen.num_processes > 0,
            f"The script started {seen.num_processes} processes, which are not watched.",
        ),
        (has_steps and not has_times, "Too few steps for times: the first three are not timed."),
        (
            has_steps and not seen.loaders,
            "No torch DataLoader: the time for reading data is part of `unexplained`.",
        ),
        (has_steps and not has_validation, "No validation over a loader."),
        (
            seen.is_compiled,
            "Layers inside a compiled model: only the outermost module is inspected.",
        ),
        (
            has_steps and not seen.losses,
            "No loss function of torch.nn.functional: the script's own loss is not inspected.",
        ),
        (seen.world_size > 1, "Other ranks: each watched process reports for itself."),
        (
            switch.num_elsewhere > 0,
            f"{switch.num_elsewhere} calls from threads other than the training thread.",
        ),
        (switch.error is not None, f"Everything after step {watcher.step}: {switch.error}"),
    )
    return tuple(line for is_so, line in lines if is_so)


def losses_of(seen: Seen) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the losses of the optimizer with the most steps, thinned out."""
    main = max(seen.optimizers, key=lambda one: one.num_steps, default=None)
    if main is None or not main.losses:
        return (), ()
    every = -(-len(main.losses) // _MAX_LOSSES)
    kept = main.losses[::every]
    return tuple(step for step, _ in kept), tuple(value for _, value in kept)


def report_of(
    watcher: Watcher,
    *,
    script: str,
    args: Sequence[str],
    ending: str = "",
    exit_code: int | None = None,
    is_complete: bool = False,
    probe_s: float | None = None,
    replays: Sequence[Replay] = (),
    wall_s: float | None = None,
) -> WatchReport:
    """Build the report."""
    seen = watcher.seen
    seen.is_over = is_complete
    seen.was_cut = seen.was_cut or bool(exit_code)
    times, facts = times_of(watcher), facts_of(watcher)
    steps = watcher.phases.num_steps
    advice = next_step(
        times,
        steps,
        facts,
        replays,
        seen=seen,
        block_s=watcher.phases.block_s,
        num_validations=num_validations_of(watcher),
    )
    loss_steps, loss_values = losses_of(seen)
    span = sum(time.total_s for time in times)
    return WatchReport(
        script=script,
        args=tuple(args),
        is_complete=is_complete,
        ending=ending,
        exit_code=exit_code,
        num_steps=seen.num_steps,
        wall_s=perf_counter() - watcher.began if wall_s is None else wall_s,
        watched_s=span,
        times=times,
        step_s=span / steps if steps else None,
        block_s=watcher.phases.block_s,
        overhead_s=watcher.switch.spent_s + seen.costs.stacks.spent_s,
        probe_s=probe_s,
        next=advice.next,
        is_bound=advice.is_bound,
        others=advice.others,
        findings=findings_of(seen),
        not_seen=(
            *not_seen_of(watcher),
            *(f"One cause of slow steps, because of an internal error: {e}" for e in advice.errors),
        ),
        loss_steps=loss_steps,
        loss_values=loss_values,
        replays=tuple(replays),
        clearing=seen.clearing,
        facts=facts,
        watcher_error=watcher.switch.error,
    )


def unwatched(
    script: str,
    args: Sequence[str],
    *,
    ending: str,
    exit_code: int | None,
    wall_s: float,
    error: str | None = None,
) -> WatchReport:
    """Return the report of a script that never imported torch, or that could not be watched."""
    reason = "The script did not import torch: nothing was checked."
    return WatchReport(
        script=script,
        args=tuple(args),
        is_complete=True,
        ending=ending,
        exit_code=exit_code,
        wall_s=wall_s,
        not_seen=(reason if error is None else f"Everything: {error}",),
        watcher_error=error,
    )

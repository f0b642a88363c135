"""The climb: predict and try one rung after another, and keep each only if it pays off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from stepladder.config.options import LadderConfig
from stepladder.config.recipe import Recipe
from stepladder.errors import StepladderError
from stepladder.ladder.joint import Joint, compare_together
from stepladder.ladder.keys import options_key, recipe_key
from stepladder.ladder.lab import Lab
from stepladder.ladder.ledger import Ledger
from stepladder.ladder.limits.budget import plan_words
from stepladder.ladder.limits.feasibility import why_no_time, why_not_here, why_too_long
from stepladder.ladder.limits.guard import (
    TrialFailed,
    faults_told,
    job_faults_told,
)
from stepladder.ladder.paired_rungs import with_enabled
from stepladder.ladder.revisit import is_replaced, may_now_decide, on_other_ground
from stepladder.ladder.scaling import efficiency_words, measure_scaling
from stepladder.ladder.summary.wording import gain_range, others_words, together_row
from stepladder.ladder.timing.epoch_range import predict_over_seeds, time_bounds_s
from stepladder.ladder.timing.patience import allowance_s
from stepladder.ladder.trial import TrialResult, apply_change, run_trial
from stepladder.machine import MAX_CORES_MISSING, Usage, cores_missing_since
from stepladder.machine.activity import doing
from stepladder.measuring.profile import PROFILE_S, ProfileMemory, refuse_workers, take_profile
from stepladder.measuring.ranks.probe import probe_devices
from stepladder.records import Json, to_json, write_json
from stepladder.records.climb import FitErrors, JointChange
from stepladder.records.ladder import Aim, Decision, Prediction, Trial, Verdict
from stepladder.records.profile import Devices, Profile
from stepladder.records.scaling import SCALING_FILE
from stepladder.rungs.contract import Rung
from stepladder.rungs.devices.more_gpus import on_several_devices
from stepladder.training.output.display import Display

_LATER: Final = 0.5
"""Time of a later profile over that of the first: parts of earlier profiles are reused."""
_PROFILE_FRAC: Final = 0.1  # of the budget, for the first profile
_SCALING_FRAC: Final = 0.1  # of the time left, to split the efficiency of several devices
_LEAST_SCALING_S: Final = 10.0
_RESERVE_FRAC: Final = 0.2  # of the budget, at most, for the training at the end


def with_changes(recipe: Recipe, kept: tuple[Trial, ...]) -> Recipe:
    """Apply the changes of trials to a recipe, in order.

    Raises:
        UsageError: if the changes do not fit together.
    """
    for trial in kept:
        recipe = apply_change(recipe, trial.change)
    return recipe


def _num_devices(trial: Trial) -> Json:
    """Return the number of devices that a trial changed to; None: it changed something else."""
    change = trial.change.get("device.count")
    return None if change is None else change[1]


def undone_trial(trial: Trial, reason: str) -> Trial:
    """Return a kept trial as one that was dropped later."""
    verdict = replace(trial.verdict, decision=Decision.DROPPED, reason=reason)
    return replace(trial, verdict=verdict, is_undone=True)


class NoAdvice(StepladderError):  # noqa: N818  (a finding)
    """The measured times of a job do not add up, so nothing can be predicted from them."""


@dataclass(kw_only=True)
class Climb:
    """A climb in progress.

    Attributes:
        lab: shared by its trials.
        ledger: where everything is recorded.
        show: called with each trial, and with each rung that is not tried, once it is decided.
        job, machine: keys for which a verdict is valid.
        recipe: the recipe with all rungs kept so far.
        profile: of that recipe.
        trials: the latest verdict on each rung, in the order of the decisions.
        reads_ledger: reuse verdicts of earlier climbs on the same job and machine.
        why_no_advice: why the climb stopped after the last kept rung; None: it did not.
        disk: a folder on the disk that would hold the artefacts; None: the cache of the lab.
        aim: of the climb.
        least_together: minimum number of rungs to test together against the original job.
        left: rungs that were due for a second trial, but there was no time.
        trial_times_s: duration of each trial of this process.
        together: what all kept rungs change; None: fewer than two may lose any accuracy.
    """

    aim: ClassVar[Aim] = Aim.TIME
    least_together: ClassVar[int] = 2

    lab: Lab
    ledger: Ledger
    display: Display
    show: Callable[[Trial], None]
    job: str
    machine: str
    recipe: Recipe
    rungs: tuple[Rung, ...]
    reads_ledger: bool = True
    trials: list[Trial] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    num_from_ledger: int = 0
    together: JointChange | None = None
    disk: Path | None = None
    why_no_advice: str | None = None
    left: list[str] = field(default_factory=list)
    trial_times_s: list[float] = field(default_factory=list)
    _known: ProfileMemory = field(default_factory=ProfileMemory)
    _is_warned: bool = False
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._as_written = self.recipe

    @property
    def profile(self) -> Profile:
        """The profile of the recipe so far."""
        return self.profiles[-1]

    @property
    def options(self) -> LadderConfig:
        """The user's options."""
        return self.lab.job.ladder

    def measure(self) -> Profile:
        """Profile the current recipe and record it; a profile in the ledger is reused.

        Raises:
            NoAdvice: if the timelines do not close.
            StepladderError: if the original job cannot be measured.
        """
        if not self.trials:
            refuse_workers(self.recipe)
        key = recipe_key(self.recipe)
        earlier = self.ledger.find_profile(key) if self.reads_ledger else None
        if earlier is not None and earlier.no_advice_because is None:
            profile = earlier  # recorded again: the last profile of a ledger is of the result
            if not self.profiles:
                self._allow_waiting(profile)
        else:
            if self.recipe.is_alone:
                self.display.message("measuring the job …")
            told = nullcontext() if self.profiles else job_faults_told(self.lab.task)
            with doing("measuring the job", left_s=self.profile_s()), told:
                is_one = self.recipe.is_alone
                profile = self._taken() if is_one else self._of_several()
        self.profiles.append(profile)
        self.lab.reserve_s = min(profile.time.total_s, _RESERVE_FRAC * self.lab.budget_s)
        at_s = time.monotonic() - self._started
        self.ledger.profile(profile, recipe=key, at_s=at_s)
        if profile.no_advice_because is not None:
            raise NoAdvice(
                "it cannot be predicted what would make this job faster: "
                f"{profile.no_advice_because}",
                why="Predictions from times that do not add up would be guesses.",
                fix="Look for work that is not part of a training step, such as hooks, threads or "
                "other processes, then try again without it.",
            )
        return profile

    def _of_several(self) -> Profile:
        """Return the profile of a recipe on several devices, from the trial that was kept last.

        A profile is taken in one process, so it cannot be repeated.
        """
        trial, before = self.trials[-1], self.profile
        time = trial.after or (trial.prediction.time if trial.prediction else None) or before.time
        return on_several_devices(before, time)

    def _taken(self) -> Profile:
        """Take a profile that no other process disturbs, as far as the climb's patience reaches.

        How long a climb may wait depends on the original job's time, which the first one shows.
        """
        patience = self.lab.patience
        self.lab.expected_epochs(self.recipe)  # trainings, whose time does not matter
        self.lab.curve(self.recipe)
        patience.wait()
        profile, known = patience.undisturbed(self._profile_once)
        if not self.profiles:
            self._allow_waiting(profile)
            if patience.was_disturbed:
                patience.wait()
                profile, known = patience.undisturbed(self._profile_once)
        self._known = known
        return profile

    def _allow_waiting(self, profile: Profile) -> None:
        """Set how long the climb may wait for quiet moments, from the original job's time."""
        self.lab.patience.left_s = allowance_s(profile.time.total_s, self.options.budget_s)

    def _profile_once(self) -> tuple[Profile, ProfileMemory]:
        """Take a profile; return it with what later ones need not measure again."""
        known = self._known.copy()
        epochs, num_validations, _ = self.lab.expected_epochs(self.recipe)
        material = self.lab.material(self.recipe)
        profile = take_profile(
            self.recipe,
            material.task,
            material.sources,
            device=self.lab.device,
            cache=self.disk or self.lab.cache,
            saves=self.lab.cache,
            epochs=epochs,
            num_validations=num_validations,
            curve=self.lab.curve(self.recipe),
            known=known,
            checkpoint_every_s=self.lab.job.run.checkpoint_every_s,
            budget_s=self.profile_s(),
        )
        return replace(profile, epoch_range=self.lab.epoch_range(self.recipe)), known

    def measure_devices(self) -> None:
        """Add several devices to the profile, if the climb may use them and has not yet.

        Raises:
            StepladderError: if their processes fail.
        """
        num = self.options.devices
        if num == 1 or not self.recipe.is_alone or self.profile.devices is not None:
            return
        devices = self._probed_devices(num, f"{num} devices")
        self.profiles[-1] = replace(self.profile, devices=devices)

    def measure_machines(self) -> None:
        """Add the devices of all machines to the profile, if a launcher has started several.

        Raises:
            StepladderError: if their processes fail.
        """
        num = self._num_on_machines
        is_used = num <= self.recipe.device.count or self.recipe.asynchronous.is_on
        if is_used or self.profile.machines is not None:
            return
        machines = self._probed_devices(num, f"{num} devices of all machines")
        self.profiles[-1] = replace(self.profile, machines=machines)

    @property
    def _num_on_machines(self) -> int:
        """The number of devices of all machines; 1: there is no launcher."""
        return 1 if self.lab.fleet is None else self.lab.fleet.size

    def _probed_devices(self, num: int, what: str) -> Devices:
        recipe = replace(self.recipe, device=replace(self.recipe.device, count=1))
        material = self.lab.material(recipe)
        self.display.message(f"measuring {what} …")
        with doing(f"measuring {what}"):
            return probe_devices(
                num,
                recipe,
                material.task,
                device=self.lab.device,
                folder=self.lab.cache / f"devices-{num}",
                copies=self.lab.copies,
                exchanged_bytes=self.profile.trainable_bytes,
                fleet=self.lab.fleet,
            )

    def profile_s(self) -> float:
        """Return the seconds for the next profile: at most a tenth of the budget for the first."""
        limit_s = self.options.budget_s
        first_s = PROFILE_S if limit_s is None else min(PROFILE_S, _PROFILE_FRAC * limit_s)
        return _LATER * first_s if self.profiles else first_s

    def run(self) -> Recipe:
        """Try all rungs, retry those decided on an earlier recipe, then test the kept ones.

        A rung is retried before another one that would prevent it (`Rung.looks_first`).

        Returns:
            The recipe with all kept rungs.
        """
        if not self.profiles:
            self.measure()
        for rung in self.in_order():
            self._look_again(rung.looks_first)
            self._take(rung)
        self._look_again([rung.name for rung in self.rungs])
        self._test_together()
        return self.recipe

    def in_order(self) -> Iterator[Rung]:
        """Yield the rungs in the order in which they are tried."""
        yield from self.rungs

    def _look_again(self, names: Sequence[str]) -> None:
        """Retry those of these rungs that were decided on an earlier recipe and may pay off now."""
        due = [rung for rung in self.worth_another_look() if rung.name in names] if names else []
        for rung in due:
            if self.why_no_advice is not None:
                break  # without sound times, the first verdicts are final
            if why_no_time(self.lab.time_left(), self.options) is None:
                self._take(rung)
            elif rung.name not in self.left:
                self.left.append(rung.name)

    def _take(self, rung: Rung) -> None:
        if self.why_no_advice is not None:
            self._decided(self._untried(rung, Decision.UNTRIED, self.why_no_advice, None))
            return
        try:
            with faults_told("error in the rung:"):
                trial, after = self.consider(rung)
        except TrialFailed as failure:
            trial = self._untried(rung, Decision.DROPPED, failure.what, None)
        self._decided(trial)
        if trial.verdict.decision is Decision.KEPT:
            self._go_on_from(after, trial)

    def _decided(self, trial: Trial) -> None:
        self.trials = [t for t in self.trials if not is_replaced(t, by=trial)] + [trial]
        self.show(trial)

    def _go_on_from(self, after: Recipe, trial: Trial) -> None:
        """Profile the recipe after a kept rung; roll it back if it cannot be measured.

        If its times do not add up, the climb stops: the rung stays kept.
        """
        before, self.recipe = self.recipe, after
        try:
            with faults_told("rolled back, as its profile failed:"):
                self._measure_or_stop()
            plan = plan_words(self.lab, time_bounds_s(self.profile))
            if plan is not None:
                self.display.message(plan)
        except TrialFailed as failure:
            self.recipe = before
            dropped = undone_trial(trial, failure.what)
            self.ledger.trial(dropped)
            self._decided(dropped)

    def consider(self, rung: Rung) -> tuple[Trial, Recipe]:
        """Decide on one rung: refuse, skip, or predict and try it."""
        if rung.needs_devices:
            self.measure_devices()
        if rung.needs_machines:
            self.measure_machines()
        refusal = self.why_not(rung)
        if refusal is not None:
            return self._untried(rung, Decision.NOT_HERE, refusal, None), self.recipe
        if rung.is_enabler:
            rung = with_enabled(rung, self.profile, self.recipe)
        prediction = predict_over_seeds(
            lambda profile: rung.predict(profile, self.recipe), self.profile
        )
        self.ledger.prediction(prediction, recipe=recipe_key(self.recipe))
        if rung.is_prediction_only:
            reason = f"predicted only: {prediction.note}"
            return self._untried(rung, Decision.NOT_HERE, reason, prediction), self.recipe
        known = self._from_ledger(rung, prediction)
        if known is not None:
            return known
        too_small = None if self.options.try_all else self.why_skip(rung, prediction)
        if too_small is not None:
            return self._untried(rung, Decision.SKIPPED, too_small, prediction), self.recipe
        no_time = why_no_time(self.lab.time_left(), self.options, self.profile, prediction)
        if no_time is not None:
            return self._untried(rung, Decision.UNTRIED, no_time, prediction), self.recipe
        number, left_s = self._number_of_trial(rung)
        self.display.message(f"{number}: {rung.name}, predicted {gain_range(prediction)}")
        start, patience = Usage.now(), self.lab.patience
        patience.counted.clear()
        with doing(f"{number}, {rung.name}", left_s=left_s):
            found = run_trial(
                self.lab,
                rung,
                self.profile,
                self.recipe,
                prediction,
                on_prediction=lambda chosen: self._probed(rung, chosen),
            )
        self.trial_times_s.append(time.monotonic() - start.wall_s)
        result = self.reconsidered(rung, found)
        is_timed = bool(patience.counted)
        trial = replace(
            result.trial,
            took_s=time.monotonic() - start.wall_s,
            cores_missing=patience.cores_missing if is_timed else cores_missing_since(start),
            **self._ground(),
        )
        self.ledger.trial(trial)
        self._warn_of_others(trial.cores_missing)
        if rung.needs_devices and trial.verdict.speed is not None:
            self._split_efficiency(rung.apply(self.profile, self.recipe))
        return trial, result.recipe

    def _split_efficiency(self, recipe: Recipe) -> None:
        """Measure what several devices lose, and write scaling.json; a failure only skips it."""
        limit_s = self.lab.allowed_s(_SCALING_FRAC)
        if limit_s < _LEAST_SCALING_S:
            self.display.message("no time to measure what several devices lose")
            return
        job, num = self.lab.job, recipe.device.count
        try:
            with doing("measuring what several devices lose"):
                found = measure_scaling(
                    job,
                    recipe,
                    self.lab.material(recipe).task,
                    name=job.run.dir.name,
                    counts=(1, num),
                    device=self.lab.device,
                    folder=self.lab.cache,
                    copies=self.lab.copies,
                    budget_s=limit_s / 2,
                    message=self.display.message,
                )
        except StepladderError as error:
            self.display.message(f"the efficiency could not be split into its parts: {error.what}")
            return
        write_json(job.run.dir / SCALING_FILE, to_json(found))
        self.display.message(efficiency_words(found.measured[-1]))

    def _number_of_trial(self, rung: Rung) -> tuple[str, float | None]:
        """Return `trial 3 of about 8`, and the estimated seconds until the last one has ended."""
        number = len(self.trial_times_s) + 1
        decided = {trial.rung for trial in self.trials} | {rung.name}
        later = sum(self._may_pay(r) for r in self.rungs if r.name not in decided)
        known = self.trial_times_s
        left_s = (1 + later) * sum(known) / len(known) if known else None
        return f"trial {number} of about {number + later}", left_s

    def reconsidered(self, rung: Rung, found: TrialResult) -> TrialResult:  # noqa: ARG002
        """Return the result of a trial as this climb uses it; by default unchanged."""
        return found

    def _probed(self, rung: Rung, prediction: Prediction) -> None:
        """Record and show the prediction of the variant that a probe chose."""
        self.ledger.prediction(prediction, recipe=recipe_key(self.recipe))
        said = f"predicted {gain_range(prediction)}"
        said += f" ({prediction.note})" if prediction.note else ""
        self.display.message(f"{rung.name}: a probe chose another variant, {said}")

    def _warn_of_others(self, cores_missing: float) -> None:
        """Warn once that times cannot be trusted."""
        if cores_missing <= MAX_CORES_MISSING or self._is_warned:
            return
        self._is_warned = True
        self.display.message(others_words(cores_missing))

    def why_not(self, rung: Rung) -> str | None:
        """Return why a rung cannot be tried now, or None."""
        return why_not_here(rung, self.profile, self.recipe, self.options)

    def fit_of(self, recipe: Recipe) -> FitErrors | None:  # noqa: ARG002
        """Return the errors of a recipe; None where this climb does not measure them."""
        return None

    def why_skip(self, rung: Rung, prediction: Prediction) -> str | None:
        """Return why a rung is not worth a trial, or None."""
        least = 1 + self.options.min_gain
        if rung.aim is not Aim.TIME:
            return None
        if prediction.gain_at_price >= least:
            known_s = self.trial_times_s
            trial_s = sum(known_s) / len(known_s) if known_s else 0.0
            return why_too_long(trial_s, prediction, self.profile.time.total_s)
        because = f": {prediction.note}" if prediction.note else ""
        below = "" if prediction.gain >= least else f", below {least:.2f}×"
        return f"predicted {prediction.gain:.2f}×{below}{because}"

    def _from_ledger(self, rung: Rung, prediction: Prediction) -> tuple[Trial, Recipe] | None:
        if not self.reads_ledger:
            return None
        found = self.ledger.find(rung=rung.name, **self._keys())
        if found is None or may_now_decide(found, self.options.budget_s):
            return None
        if not self._is_same_hardware(rung, found, prediction):
            return None
        after = self.recipe
        if found.verdict.decision is Decision.KEPT:
            try:
                after = apply_change(after, found.change)
            except (StepladderError, TypeError, ValueError):
                return None  # a line of another version, or changed by hand
        self.num_from_ledger += 1
        self.ledger.trial(found)  # recorded again, so that this ledger holds the whole climb
        return found, after

    def _is_same_hardware(self, rung: Rung, found: Trial, prediction: Prediction) -> bool:
        """Return True if an earlier trial used as many devices, at the same price."""
        if found.prediction is not None and found.prediction.price != prediction.price:
            return False
        if rung.needs_devices:
            return _num_devices(found) == self.options.devices
        return not rung.needs_machines or _num_devices(found) == self._num_on_machines

    def _untried(
        self, rung: Rung, decision: Decision, reason: str, prediction: Prediction | None
    ) -> Trial:
        trial = Trial(
            rung=rung.name,
            level=rung.level,
            change={},
            prediction=prediction,
            verdict=Verdict(decision=decision, reason=reason),
            **self._ground(),
        )
        self.ledger.trial(trial)
        return trial

    def _ground(self) -> dict[str, Any]:
        return {**self._keys(), "budget_s": self.options.budget_s}

    def _keys(self) -> dict[str, Any]:
        return {
            "options": options_key(self.options),
            "job": self.job,
            "machine": self.machine,
            "recipe": recipe_key(self.recipe),
            "commit": self.lab.commit,
        }

    def worth_another_look(self) -> list[Rung]:
        """List the rungs that were decided on an earlier recipe and may pay off now."""
        changed = on_other_ground(self.rungs, self.trials, recipe=recipe_key(self.recipe))
        return [rung for rung in changed if self._may_pay(rung)]

    def _may_pay(self, rung: Rung) -> bool:
        try:
            with faults_told("error in the rung:"):
                if self.why_not(rung) is not None:
                    return False
                prediction = rung.predict(self.profile, self.recipe)
                return self.options.try_all or self.why_skip(rung, prediction) is None
        except TrialFailed:
            return False

    def _test_together(self) -> None:
        """Compare with the original job, and undo rungs from the last one while too much is lost.

        Exact rungs and rungs for accuracy stay.
        """
        losing = [trial for trial in self._kept() if self.may_lose(trial)]
        if len(losing) < self.least_together:
            return
        undone: list[str] = []
        found = self._compare_together()
        while found.loses is not None and losing:
            last = losing.pop()
            others = ", ".join(trial.rung for trial in losing)
            along = f"together with {others} " if others else ""
            self._undo(last, f"tested {along}against the original job: {found.loses}")
            undone.append(last.rung)
            found = self._compare_together()
        if undone:
            try:
                with faults_told("the remaining recipe could not be measured: it"):
                    self._measure_or_stop()
            except TrialFailed as failure:  # it was tested, so it is trained nevertheless
                self.display.message(f"{failure.what}.")
        self.together = replace(found.change, undone=tuple(undone))
        values = {"event": "together", **to_json(self.together)}
        self.display.table(together_row(self.together), values)

    def _measure_or_stop(self) -> None:
        try:
            self.measure()
        except NoAdvice as finding:
            self.why_no_advice = finding.what

    def _compare_together(self) -> Joint:
        self.display.message("testing all kept rungs against the original job …")
        with doing("testing all kept rungs"):
            return compare_together(self.lab, self._as_written, self.recipe)

    def _kept(self) -> tuple[Trial, ...]:
        return tuple(t for t in self.trials if t.verdict.decision is Decision.KEPT)

    def may_lose(self, trial: Trial) -> bool:
        """Return True if a kept rung was judged on held-out examples."""
        is_statistical = trial.verdict.accuracy is not None or trial.verdict.loss is not None
        aims = {rung.name: rung.aim for rung in self.rungs}
        return is_statistical and aims[trial.rung] is not Aim.ACCURACY

    def _undo(self, trial: Trial, reason: str) -> None:
        """Drop a kept trial; the changes of the others are applied again, in order."""
        dropped = undone_trial(trial, reason)
        self.ledger.trial(dropped)
        self._decided(dropped)
        self.recipe = with_changes(self._as_written, self._kept())

"""Climb with an unmodified script: try speed-ups from outside, one by one, and keep what pays."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import stepladder
from stepladder.config.options import LadderConfig
from stepladder.errors import UsageError
from stepladder.ladder.keys import code_key, machine_key
from stepladder.ladder.ledger import Ledger, came_of_failure
from stepladder.ladder.timing.patience import Patience, allowance_s
from stepladder.ladder.verdict import Finding, judge_speed
from stepladder.machine import Usage, cores_missing_since
from stepladder.records import read_json, write_json
from stepladder.records.files import Json
from stepladder.records.from_json import from_json
from stepladder.records.ladder import Decision, Exactness, Interval, Trial, Verdict
from stepladder.records.script import PATCH_FILE, SCRIPT_FILE, ScriptClimb, ScriptFacts
from stepladder.records.watch import WATCH_FILE, WatchReport
from stepladder.scripts.arm import ScriptEndedError, opened
from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.inside.scout import FACTS_FILE
from stepladder.scripts.inside.spec import Mode
from stepladder.scripts.learning import Learnt, compare_one, same
from stepladder.scripts.options import ScriptOptions
from stepladder.scripts.patch import Patch, patch_of
from stepladder.scripts.race import Plan, Raced, race
from stepladder.scripts.rungs import SCRIPT_RUNGS
from stepladder.scripts.seeds import Version, compare_over_seeds, num_compared
from stepladder.scripts.settings import Settings
from stepladder.scripts.workplace import WORK, Workplace
from stepladder.watching.script.notebook import source_of

SETTINGS_FILE: Final = "settings.json"
_OF_VERDICT: Final = (
    "min_gain",
    "num_seeds",
    "num_blocks",
    "num_steps",
    "metric",
    "is_higher_better",
)
_MIN_STEPS: Final = 16
_PROMISED: Final = 0.9
_MUCH: Final = 1.2
_MAX_COUNT_S: Final = 180.0
"""Seconds that a script is run to see whether it takes enough steps for a change to pay off."""
_COUNT_BLOCKS: Final = 20
_COUNT_BLOCK_S: Final = 2.0
"""At most, of the blocks in which these steps are counted: only whole ones are."""
AGAIN: Final = f"{WORK}/again"
_FOREVER: Final = float("inf")


@dataclass(kw_only=True)
class ScriptRun:
    """A climb with a script.

    Args:
        script: path, or name of a module.
        args: its arguments.
        is_module: as with `python -m`.
        folder: for the ledger, the diff and the pages.
        options: how it climbs.
        say: prints a line of progress.
        show: prints a trial.
    """

    script: str
    args: tuple[str, ...]
    is_module: bool
    folder: Path
    options: ScriptOptions
    say: Callable[[str], None]
    show: Callable[[Trial], None]
    _trials: list[Trial] = field(default_factory=list)
    _notes: list[str] = field(default_factory=list)
    _kept: list[ScriptRung] = field(default_factory=list)

    def climb(self) -> ScriptClimb:
        """Watch the script, try the rungs, write the diff, and prove it.

        Raises:
            UsageError: if the script fails, takes too few steps, or writes where it may not.
        """
        self._began = time.monotonic()
        self._work = Workplace(
            script=self.script,
            args=self.args,
            is_module=self.is_module,
            folder=self.folder.resolve(),
            allows_writes=self.options.allows_writes,
        )
        self._work.clean()
        try:
            return self._climb()
        finally:
            self._work.clean()

    def _climb(self) -> ScriptClimb:
        facts, report = self._scout()
        self._facts = facts
        self._patience = Patience(left_s=allowance_s(_FOREVER, self.options.budget_s))
        self._ledger = Ledger(self.folder)
        self._keys = self._ledger_keys()
        self._ledger.begin(
            job=self._keys["job"],
            machine=self._keys["machine"],
            options=self._keys["options"],
            commit=self._keys["commit"],
            is_fresh=self.options.is_fresh,
        )
        self.say("timing the script against itself …")
        original = self._against_itself()
        self._is_repeatable = same(*original.losses)
        if not self._is_repeatable:
            self._notes.append(
                "Two runs with the same seed have different losses, so every change is compared "
                "over several seeds."
            )
        settings, kept = Settings(), self._kept
        only = self.options.only
        for rung in SCRIPT_RUNGS:
            if only and rung.name not in only:
                continue
            trial, changed = self._try(rung, settings)
            self._trials.append(trial)
            self._ledger.trial(trial)
            self.show(trial)
            if trial.verdict.decision is Decision.KEPT:
                settings = changed
                kept.append(rung)
                self._look_again(trial, settings)
        found = ScriptClimb(
            script=self.script,
            args=self.args,
            step_s=original.step_s[0] or None,
            kept=tuple(rung.name for rung in kept),
            settings=_changes(settings.seen_from(Path.cwd())),
            is_repeatable=self._is_repeatable,
            num_alarms=len(report.alarms),
        )
        if kept:
            found = self._prove(found, kept, settings)
        found = replace(found, notes=tuple(self._notes), climb_s=time.monotonic() - self._began)
        write_json(self.folder / SETTINGS_FILE, settings.seen_from(Path.cwd()))
        write_json(self.folder / SCRIPT_FILE, found)
        return found

    def _against_itself(self) -> Raced:
        """Time the script against itself; if it ends too soon, in blocks that are short enough."""
        version = Version(settings=Settings())
        found = self._race(version, version)
        if not found.num_steps or found.speed is not None:
            return found
        num_steps = max(found.num_steps, self._facts.num_steps)
        self._facts = replace(self._facts, num_steps=num_steps, is_whole=True)
        return self._race(version, version)

    def _look_again(self, trial: Trial, settings: Settings) -> None:
        """Measure again where the time of a step goes, if it has changed much."""
        speed = trial.verdict.speed
        if speed is None or speed.estimate < _MUCH or self._time_left() <= 0:
            return
        self.say("watching the script with it …")
        try:
            facts = self._watched(settings, self.folder / AGAIN)
        except UsageError:
            return  # the facts from before still hold, but for their shares
        self._facts = replace(
            self._facts,
            step_s=facts.step_s,
            shares=facts.shares,
            kernel_share=facts.kernel_share,
        )

    def _watched(self, settings: Settings, folder: Path) -> ScriptFacts:
        """Watch the first steps of the script, and write watch.json and the facts to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in (FACTS_FILE, WATCH_FILE):
            (folder / name).unlink(missing_ok=True)
        with self._work.arm(settings, mode=Mode.SCOUT, folder=folder) as arm:
            arm.wait_for_success(wait_s=self.options.max_wait_s)
        if not (folder / FACTS_FILE).is_file():
            raise self._no_step()
        return from_json(ScriptFacts, read_json(folder / FACTS_FILE))

    def _scout(self) -> tuple[ScriptFacts, WatchReport]:
        """Watch the script as it is.

        Raises:
            UsageError: if it fails, or takes too few steps of an optimizer.
        """
        self.say("watching the first steps …")
        facts = self._watched(Settings(), self.folder)
        report = from_json(WatchReport, read_json(self.folder / WATCH_FILE))
        if not facts.num_steps:
            raise self._no_step()
        if facts.is_whole and facts.num_steps < _MIN_STEPS:
            raise UsageError(
                f"the script takes {facts.num_steps} steps in all; at least {_MIN_STEPS} are "
                "needed to compare versions of it",
                where=self.script,
                fix="Let it train longer, for example with more epochs, after --.",
            )
        if not facts.is_guarded:
            self._notes.append(
                "This kernel has no Landlock: files that native code overwrites, other than by "
                "torch.save and safetensors, are not protected."
            )
        if facts.is_whole:
            self._notes.append(f"The script takes {facts.num_steps} steps in all.")
        return facts, report

    def _no_step(self) -> UsageError:
        return UsageError(
            "the script takes no step of an optimizer of torch",
            where=self.script,
            fix="Pass the script that trains, with the arguments with which it does.",
        )

    def _ledger_keys(self) -> dict[str, str]:
        options = dataclasses.asdict(self.options)
        of_verdict = {name: options[name] for name in _OF_VERDICT}
        return {
            "job": _digest([self.script, self.args, self._texts()]),
            "machine": machine_key(),
            "options": _digest(of_verdict),
            "commit": code_key(Path(stepladder.__file__).parent),
        }

    def _texts(self) -> list[str]:
        """Return the text of the script and of the files that make its optimizer and loaders."""
        places = [one.place for one in self._facts.optimizers]
        places += [one.place for one in self._facts.loaders]
        files = {Path(place.file) for place in places if place is not None}
        if not self.is_module:
            files.add(Path(self.script).resolve())
        return [source_of(file) for file in sorted(files)]

    def _plan(self, rung: ScriptRung | None) -> Plan:
        facts = self._facts
        rungs = [*self._kept, *([rung] if rung is not None else [])]
        return Plan(
            wanted_warm_up=max((one.warm_up(facts) for one in rungs), default=0),
            step_s=facts.step_s,
            num_steps=facts.num_steps if facts.is_whole else None,
            num_blocks=self.options.num_blocks,
            wait_s=self.options.max_wait_s,
            patience=self._patience,
            time_left=self._time_left,
        )

    def _time_left(self) -> float:
        if self.options.budget_s is None:
            return _FOREVER
        return self.options.budget_s - (time.monotonic() - self._began)

    def _race(
        self,
        before: Version,
        after: Version,
        *,
        rung: ScriptRung | None = None,
        steps_ratio: int = 1,
    ) -> Raced:
        one = self._work.arm(before.settings, instead=before.instead)
        two = self._work.arm(after.settings, instead=after.instead)
        return race(
            one,
            two,
            self._plan(rung),
            what="starting the script twice",
            steps_ratio=steps_ratio,
            times_start=rung is not None and rung.costs_once,
        )

    def _try(self, rung: ScriptRung, settings: Settings) -> tuple[Trial, Settings]:
        """Return the trial of a rung, and the settings with it."""
        facts = self._facts
        why_not = rung.why_not(facts, settings)
        if why_not is None and rung.needs_metric and self.options.metric is None:
            why_not = "only the end of training shows whether it learns as well: pass --metric"
        if why_not is not None:
            return self._untried(rung, Decision.NOT_HERE, why_not), settings
        prediction = rung.predict(facts, settings)
        changed = rung.apply(facts, settings)
        trial = replace(
            self._untried(rung, Decision.UNTRIED, "the budget is used up"),
            prediction=prediction,
            change=_differences(settings, changed),
            recipe=_digest(dataclasses.asdict(settings)),
            job=self._keys["job"],
            machine=self._keys["machine"],
            options=self._keys["options"],
            commit=self._keys["commit"],
        )
        least = 1 + self.options.min_gain
        if prediction.gain < least and not self.options.try_all:
            reason = f"predicted {prediction.gain:.2f}×, below {least:.2f}×"
            verdict = Verdict(decision=Decision.SKIPPED, reason=reason)
            return replace(trial, verdict=verdict), settings
        known = self._known(trial)
        if known is not None:
            return known, changed
        if self._time_left() <= 0:
            return trial, settings
        self._ledger.prediction(prediction, recipe=trial.recipe)
        self.say(f"{rung.name}, predicted at most {prediction.gain:.2f}× …")
        return self._tried(rung, trial, settings, changed), changed

    def _known(self, trial: Trial) -> Trial | None:
        """Return the trial of an earlier climb, if its verdict still holds."""
        if self.options.is_fresh:
            return None
        found = self._ledger.find(
            job=trial.job,
            machine=trial.machine,
            options=trial.options,
            commit=trial.commit,
            recipe=trial.recipe,
            rung=trial.rung,
        )
        return found if found is not None and not came_of_failure(found) else None

    def _tried(
        self, rung: ScriptRung, trial: Trial, settings: Settings, changed: Settings
    ) -> Trial:
        began, usage = time.monotonic(), Usage.now()
        versions = Version(settings=settings), Version(settings=changed)
        ratio = rung.steps_ratio(changed)
        try:
            raced = self._race(
                *versions, rung=rung, steps_ratio=ratio // rung.steps_ratio(settings)
            )
        except (UsageError, ScriptEndedError) as error:
            verdict = Verdict(decision=Decision.DROPPED, reason=f"with it, {error.what}")
            return replace(trial, verdict=verdict, took_s=time.monotonic() - began)
        self._count_steps(raced)
        speed = _with_one_time(raced, self._total)
        learnt = self._learnt(rung, raced, versions, speed)
        verdict = _verdict(
            speed, raced, learnt, self.options, total=self._total, seen=self._facts.num_steps
        )
        if verdict.decision is Decision.KEPT and rung.remark:
            reason = "; ".join(part for part in (verdict.reason, rung.remark) if part)
            verdict = replace(verdict, reason=reason)
        return replace(
            trial,
            verdict=verdict,
            before_s=tuple(raced.before_s),
            after_s=tuple(raced.after_s),
            took_s=time.monotonic() - began,
            cores_missing=cores_missing_since(usage),
        )

    @property
    def _total(self) -> int | None:
        """The number of all steps of the script, if it is known."""
        if self.options.num_steps is not None:
            return self.options.num_steps
        return self._facts.num_steps if self._facts.is_whole else None

    def _count_steps(self, raced: Raced) -> None:
        """Run the script until what a change does once has paid off, or for some minutes.

        If it ends before, the number of all its steps is known.
        """
        facts, num = self._facts, _steps_to_pay_off(raced)
        limit_s = min(_MAX_COUNT_S, self._time_left())
        speed = raced.speed
        is_fast = speed is not None and speed.low > 1
        num = min(num, int(limit_s / max(facts.step_s, 1e-9)))
        if self._total is not None or not is_fast or num <= facts.num_steps:
            return
        self.say(f"running the script for {num:,} steps, to see whether it takes so many …")
        arm, done = self._work.arm(Settings()), 1
        in_time = math.ceil(_COUNT_BLOCK_S / max(facts.step_s, 1e-9))
        block = max(1, min(in_time, math.ceil(num / _COUNT_BLOCKS)))
        try:
            with opened((arm,), wait_s=self.options.max_wait_s, what="starting the script"):
                while done < num:
                    part = min(num - done, block)
                    arm.block(part, wait_s=2 * limit_s)
                    done += part
            self._facts = replace(facts, num_steps=num)  # it takes so many at least
        except ScriptEndedError:
            self._facts = replace(facts, num_steps=max(done, facts.num_steps), is_whole=True)
            self._notes.append(f"The script takes about {self._facts.num_steps:,} steps in all.")

    def _learnt(
        self,
        rung: ScriptRung,
        raced: Raced,
        versions: tuple[Version, Version],
        speed: Interval | None,
    ) -> Learnt | None:
        """Return whether a change learns as well; None if it is not faster anyway."""
        options = LadderConfig(min_gain=self.options.min_gain)
        if judge_speed(speed, options).decision is not Decision.KEPT:
            return None
        is_exact = rung.exactness is not Exactness.STATISTICAL
        if is_exact and self._is_repeatable:
            return compare_one(*raced.losses, rung.exactness)
        if is_exact:
            one = compare_one(*raced.losses, Exactness.ROUNDING)
            if one.decision is Decision.KEPT:
                return one
        facts = self._facts
        return compare_over_seeds(
            self._work,
            *versions,
            options=self.options,
            steps=num_compared(facts.step_s, facts.num_steps if facts.is_whole else None),
            say=self.say,
        )

    def _prove(
        self, found: ScriptClimb, kept: Sequence[ScriptRung], settings: Settings
    ) -> ScriptClimb:
        """Time the original and the result in turn, write the diff, and time what it makes."""
        self.say("timing the original and the result in turn …")
        self._ratio = settings.batch_factor
        raced = self._race(
            Version(settings=Settings()), Version(settings=settings), steps_ratio=self._ratio
        )
        self._notes += raced.problems
        speed = raced.speed
        gains = {
            trial.rung: trial.verdict.speed
            for trial in self._trials
            if trial.verdict.decision is Decision.KEPT
        }
        patch = patch_of(kept, self._facts, settings, gains, script=self._script_file())
        found = replace(
            found,
            step_s=raced.step_s[0],
            result_s=raced.step_s[1],
            speedup=speed,
            num_pairs=len(raced.before_s),
            steps_per_block=raced.steps_per_block,
            only_outside=patch.only_outside,
        )
        (self.folder / PATCH_FILE).unlink(missing_ok=True)
        if not patch.texts:
            return found
        return self._prove_patch(found, patch)

    def _prove_patch(self, found: ScriptClimb, patch: Patch) -> ScriptClimb:
        """Run the patched script, and write the diff if it runs."""
        self.say("timing the patched script …")
        before = Version(settings=Settings())
        after = Version(settings=Settings(), instead=patch.texts)
        try:
            raced = self._race(before, after, steps_ratio=self._ratio)
        except (UsageError, ScriptEndedError) as error:
            self._notes.append(f"The diff is not written, because with it {error.what}.")
            return found
        if why_not := self._why_not_learnt(raced):
            self._notes.append(f"The diff is not written, because with it {why_not}.")
            return found
        (self.folder / PATCH_FILE).write_text(patch.diff, encoding="utf-8", newline="")
        patched = raced.speed
        promised = found.speedup if not patch.only_outside else None
        if promised and patched and patched.high < _PROMISED * promised.estimate:
            self._notes.append(
                f"The patched script is {patched.estimate:.2f}× as fast, less than the "
                f"{promised.estimate:.2f}× from outside."
            )
        return replace(found, patch=patch.diff, patched=patched)

    def _why_not_learnt(self, raced: Raced) -> str:
        """Return how a patched script learns otherwise than the original; empty: it does not."""
        found = {rung.exactness for rung in self._kept}
        if not self._is_repeatable or Exactness.STATISTICAL in found:
            return ""
        is_rounding = Exactness.ROUNDING in found
        exactness = Exactness.ROUNDING if is_rounding else Exactness.BITWISE
        learnt = compare_one(*raced.losses, exactness)
        return learnt.reason if learnt.decision is Decision.DROPPED else ""

    def _script_file(self) -> Path | None:
        return None if self.is_module else Path(self.script).resolve()

    def _untried(self, rung: ScriptRung, decision: Decision, reason: str) -> Trial:
        return Trial(
            rung=rung.name,
            level=rung.level,
            change={},
            prediction=None,
            verdict=Verdict(decision=decision, reason=reason),
        )


def _verdict(
    speed: Interval | None,
    raced: Raced,
    learnt: Learnt | None,
    options: ScriptOptions,
    *,
    total: int | None,
    seen: int,
) -> Verdict:
    if raced.problems:
        return Verdict(decision=Decision.DROPPED, reason=raced.problems[0], speed=speed)
    if speed is None:
        finding = Finding(
            Decision.DROPPED if raced.ended.startswith("several") else Decision.UNDECIDED,
            raced.ended,
        )
    else:
        finding = judge_speed(speed, LadderConfig(min_gain=options.min_gain))
    decision, reason = finding
    if learnt is not None and decision is Decision.KEPT:
        decision, reason = learnt.decision, learnt.reason
        if decision is Decision.KEPT and total is None:
            decision, reason = _if_it_pays(raced, seen)
    return Verdict(
        decision=decision,
        reason=reason,
        speed=speed,
        exactness=learnt.found if learnt is not None else "",
    )


def _with_one_time(raced: Raced, total: int | None) -> Interval | None:
    """Return the speed-up of all steps, with what is done once, if their number is known."""
    speed = raced.speed
    if speed is None or total is None or raced.one_time_s < 1.0:
        return speed
    after = raced.step_s[1]
    share = total * after / (total * after + raced.one_time_s)
    return replace(
        speed, estimate=speed.estimate * share, low=speed.low * share, high=speed.high * share
    )


def _steps_to_pay_off(raced: Raced) -> int:
    """Return the steps after which what is done once has paid off; 0: at once, or never."""
    before, after = raced.step_s
    if raced.one_time_s < 1.0 or after >= before:
        return 0
    return math.ceil(raced.one_time_s / (before - after))


def _if_it_pays(raced: Raced, seen: int) -> Finding:
    """Return whether a change with a cost at the start is kept, if the steps are not known.

    Args:
        seen: steps that the script takes at least.
    """
    num = _steps_to_pay_off(raced)
    if not num:
        return Finding(Decision.KEPT, "")
    pays = f"its {raced.one_time_s:.0f} s at the start pay off after {num:,} steps"
    if num <= seen:
        return Finding(Decision.KEPT, pays)
    return Finding(
        Decision.UNDECIDED, f"{pays}, and {seen:,} were run: pass --steps with all of them"
    )


def _changes(settings: Settings) -> dict[str, Json]:
    """Return what differs from the script as it is."""
    return {name: after for name, (_, after) in _differences(Settings(), settings).items()}


def _differences(before: Settings, after: Settings) -> dict[str, tuple[Json, Json]]:
    one, two = dataclasses.asdict(before), dataclasses.asdict(after)
    return {name: (one[name], two[name]) for name in one if one[name] != two[name]}


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]

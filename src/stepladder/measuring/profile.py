"""Profile a job with a recipe: measure everything that predictions need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import torch

from stepladder.config.recipe import Recipe
from stepladder.errors import UsageError
from stepladder.measuring.blocks.block import BlockTimes, training_time
from stepladder.measuring.blocks.cold import cold_compiler, measure_compile
from stepladder.measuring.facts import (
    machine_facts,
    model_facts,
    source_pixels,
    store_encoding,
    stored_bytes,
)
from stepladder.measuring.model.flops import Peaks, measure_peaks, model_flops_utilisation
from stepladder.measuring.model.gradients import measure_gradients
from stepladder.measuring.model.head import (
    TrunkTime,
    look_again,
    measure_trunk,
    on_features,
    try_trunk,
)
from stepladder.measuring.model.job_size import job_size
from stepladder.measuring.model.larger_trunks import larger_trunks
from stepladder.measuring.model.noise_scale import NoiseScale
from stepladder.measuring.model.operations import (
    MAX_NOISE_GRADIENTS,
    Flops,
    estimate_noise_scale,
    measure_flops,
    measure_replays,
)
from stepladder.measuring.profile_memory import ProfileMemory, memory_key
from stepladder.measuring.reading.disk import measure_disk
from stepladder.measuring.reading.example_time import ReadingCost, loader_facts, measure_reading
from stepladder.measuring.reading.link import measure_link
from stepladder.measuring.reading.validation import measure_validation
from stepladder.measuring.saving import SaveTimes, checkpoints_s, measure_saves
from stepladder.measuring.steps import StepTimes, input_bytes, measure_steps
from stepladder.measuring.subject import Subject, open_subject
from stepladder.measuring.sweep import Sweep, choose_sizes, measure_sweep
from stepladder.measuring.watchdog import MIN_DEADLINE_S, PROBE_S, attempt
from stepladder.records.model_size import ModelSize
from stepladder.records.profile import Curve, Gradient, Profile, Provenance, is_mostly_conv
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification
from stepladder.training.features.feature_pass import batch_size_on, num_views
from stepladder.training.setup.build import Sources
from stepladder.training.setup.memory import require_memory

__all__ = ["PROFILE_S", "ProfileMemory", "take_profile"]

Value = TypeVar("Value")

PROFILE_S: Final = 12.0
"""Approximate seconds of a profile."""
_SHARES = {  # of the time budget
    "steps": 0.4,
    "sweep": 0.15,
    "replays": 0.25,
    "trunk": 0.05,
    "validation": 0.05,
    "noise": 0.08,
    "peaks": 0.03,
}


_READ = (
    "num_train",
    "num_val",
    "num_test",
    "is_built_in",
    "has_head",
    "is_trunk_frozen",
    "is_random_before_head",
    "default_threads",
    "is_pretrained",
    "num_conv2d",
    "num_batchnorm",
    "num_norms",
    "num_blocks",
    "weight_bytes",
    "trainable_bytes",
    "example_bytes",
    "feature_bytes",
    "store_encoding",
    "source_pixels",
    "stored_bytes",
    "is_store_near",
    "device",
    "device_name",
    "num_cores",
    "has_cuda",
    "has_bf16",
    "has_compiler",
    "free_memory_bytes",
    "free_host_bytes",
    "free_disk_bytes",
    "larger_trunks",
)
_MODELLED = ("time", "step_fixed_s", "step_per_example_s", "mfu", "noise_scale")
_REPLAYED = ("head_step_s", "head_validation_s", "op_replays")
_SILENT = (  # text; and the curve has its own provenance
    "provenance",
    "no_advice_because",
    "noise_scale_unknown_because",
    "curve",
)


def provenance_of(profile: Profile) -> Mapping[str, Provenance]:
    """Return for each known number whether it was measured, read, assumed or computed."""
    found: dict[str, Provenance] = {}
    for item in fields(profile):
        value = getattr(profile, item.name)
        if item.name in _SILENT or value is None or value in ({}, ()):
            continue
        found[item.name] = _provenance(item.name)
    if not profile.is_built_in:
        found["is_pretrained"] = Provenance.ASSUMED
    return found


def _provenance(name: str) -> Provenance:
    if name in _READ:
        return Provenance.READ
    if name in _MODELLED:
        return Provenance.MODELLED
    return Provenance.REPLAYED if name in _REPLAYED else Provenance.MEASURED


def take_profile(
    recipe: Recipe,
    task: Task,
    sources: Sources,
    *,
    device: torch.device,
    cache: Path,
    saves: Path | None = None,
    epochs: float,
    num_validations: float,
    curve: Curve | None,
    known: ProfileMemory | None = None,
    checkpoint_every_s: float | None = None,
    budget_s: float = PROFILE_S,
) -> Profile:
    """Profile a recipe on this machine, without changing anything of the job.

    A separate model is built from the recipe's seed and discarded; random states and compute
    threads are restored in any case. If there are two stages, the last one is measured.

    Args:
        sources: the original examples, even if features are cached.
        cache: folder for artifacts; only its free space is checked.
        saves: a private folder on the disk of the run, in which a checkpoint is saved and removed;
            None: no checkpoint is saved.
        epochs, num_validations: until training ends, measured elsewhere.
        curve: the learning curve, measured elsewhere.
        known: results of earlier profiles of the same job. If the recipe compiles, the first
            profile compiles cold and takes longer.
        checkpoint_every_s: seconds between two checkpoints; 0: after every step; None: only one at
            the end.
        budget_s: approximate seconds for the profile; determines the number of repetitions.

    Raises:
        UsageError: if the recipe caches features and they cannot be cached, or if workers train.
        StepladderError: any error that training itself would raise in its first steps.
    """
    refuse_workers(recipe)
    known = known if known is not None else ProfileMemory()
    with ExitStack() as stack:
        is_new = recipe.device.compile and not known.knows(memory_key("compile", recipe))
        if is_new:
            folder = stack.enter_context(TemporaryDirectory(prefix="stepladder-compile-"))
            stack.enter_context(cold_compiler(recipe.device, Path(folder), device))
        subject = stack.enter_context(open_subject(recipe, task, sources, device=device))
        if known.is_new and not recipe.features.cached:  # later, freed memory is kept
            require_memory(recipe, task, subject.model, sources, device=device)
        measuring = _Measuring(
            subject=subject,
            known=known,
            budgets_s={name: share * budget_s for name, share in _SHARES.items()},
        )
        found = measuring.measure(cache)
        saving = measuring.saves(saves) if saves is not None else None
        time = training_time(
            measuring.block(),
            batch_size=recipe.batch.global_batch_size,
            num_train=subject.num_train,
            num_val=found["num_val"],
            epochs=epochs,
            num_validations=num_validations,
            one_time_s=measuring.one_time_s(),
        )
    save_s = None
    if saving is not None:
        save_s = saving.first_s
        time = replace(time, checkpoint_s=checkpoints_s(saving, time, every_s=checkpoint_every_s))
    profile = Profile(time=time, curve=curve, save_s=save_s, **found)
    return replace(profile, provenance=provenance_of(profile))


def refuse_workers(recipe: Recipe) -> None:
    """Check that a recipe can be profiled.

    Raises:
        UsageError: if workers take its steps.
    """
    if recipe.asynchronous.is_on:
        raise UsageError(
            "a step of asynchronous workers has no phases that a profile could measure",
            where="asynchronous.method",
            fix="Leave it out: a climb tries local_sgd itself where that can pay off.",
        )


class _Measuring:
    """The parts of a profile in the order of measurement; later ones use earlier ones."""

    def __init__(
        self, *, subject: Subject, known: ProfileMemory, budgets_s: Mapping[str, float]
    ) -> None:
        self.subject = subject
        self.recipe = subject.recipe
        self._known = known
        self._budgets_s = budgets_s
        self._pass_size = batch_size_on(subject.device)
        self._facts = model_facts(subject)
        self.compile_s = 0.0
        if self.recipe.device.compile:  # first: nothing may have been compiled before
            self.compile_s = self._once("compile", lambda: measure_compile(subject))
        self.trunk: TrunkTime | None = self._once("trunk", self._measure_trunk)
        self.head: Subject | None = None
        if self.trunk is not None and subject.is_trunk_frozen:
            self.head = on_features(subject, self.trunk)
        self.stepping = self._stepping()
        self.steps: StepTimes = measure_steps(self.stepping, budget_s=budgets_s["steps"])
        self.trunk = self._once("trunk, later", self._look_at_trunk_again)
        self.example_s = self.steps.replay_device_s / subject.batch_size
        self.validation_s = self._once("validation", self._measure_validation) or 0.0
        self.reading = self._reading()

    def _stepping(self) -> Subject:
        if not self.recipe.features.cached:
            return self.subject
        if self.head is None:
            raise UsageError(
                "features cannot be cached: the model has no frozen part (trunk) that returns a "
                "single tensor for a batch",
                where="features.cached",
                fix="Train with --features.no-cached.",
            )
        return self.head

    def measure(self, cache: Path) -> dict[str, Any]:
        """Return the fields of a Profile, without its time, curve and provenance."""
        subject, recipe, steps = self.subject, self.recipe, self.steps
        val, test = subject.sources.val, subject.sources.test
        flops: Flops | None = self._once("flops", self._measure_flops)
        conv_frac = flops.conv_frac if flops is not None else None
        has_conv = is_mostly_conv(conv_frac)
        peaks = self._once("peaks", lambda: self._measure_peaks(has_conv=has_conv))
        forward, step = (flops.forward, flops.step) if flops is not None else (None, None)
        sweep: Sweep = self._once("sweep", self._measure_sweep)
        noise = self._once("noise", self._measure_noise)
        is_built_in = isinstance(subject.task, ImageClassification)
        return {
            **asdict(machine_facts(subject.device, cache)),
            **asdict(self._facts),
            **self._head_times(),
            "num_train": subject.num_train,
            "num_val": len(val) if val is not None else 0,
            "num_test": len(test) if test is not None else 0,
            "no_advice_because": steps.no_advice_because,
            "example_bytes": self._example_bytes(),
            "size": self._once("size", self._measure_size),
            "gradients": self._once("gradients", self._measure_gradients),
            "store_encoding": store_encoding(subject.task),
            "source_pixels": self._once("source_pixels", lambda: source_pixels(subject.task)),
            "stored_bytes": stored_bytes(subject.task),
            "disk_bytes_per_s": self._once("disk", lambda: measure_disk(subject.task)),
            "link_bytes_per_s": self._once("link", lambda: measure_link(subject.task)),
            "peak_flops_per_s": peaks.flops_per_s if peaks is not None else None,
            "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s if peaks is not None else None,
            "phases_s": steps.phases_s,
            "unexplained_frac": steps.unexplained_frac,
            "replay_host_s": steps.replay_host_s,
            "replay_device_s": steps.replay_device_s,
            "loader_per_s": steps.loader_per_s,
            **loader_facts(self.reading, subject.sources.train),
            "step_by_batch_s": sweep.step_s,
            "step_fixed_s": sweep.fixed_s,
            "step_per_example_s": sweep.per_example_s,
            "memory_by_batch": sweep.memory_bytes,
            "forward_flops": forward,
            "step_flops": step,
            "forward_bytes": self._forward_bytes(flops),
            "conv_frac": conv_frac,
            "mfu": self._mfu(peaks, forward, step),
            "op_replays": self._once("replays", self._measure_replays) or {},
            "noise_scale": noise.examples,
            "noise_scale_unknown_because": noise.unknown_because,
            "larger_trunks": larger_trunks(recipe.model) if is_built_in else (),
        }

    def block(self) -> BlockTimes:
        """Return the measured parts of the training time."""
        times = BlockTimes(step_s=self.steps.step_s, num_steps=1, validation_s=self.validation_s)
        if not self.recipe.features.cached or self.trunk is None:
            return times
        held_out_s = trunk_s = self.trunk.example_s
        if views := num_views(self.recipe.features, self.subject.task):
            trunk_s = views * (trunk_s + self.trunk.augment_s)
        return replace(
            times,
            trunk_s=self._with_reading(trunk_s),
            held_out_trunk_s=self._with_reading(held_out_s),
        )

    def one_time_s(self) -> dict[str, float]:
        """Return the seconds of one-time work by name, without features."""
        found = {"load": self._load_s(), "compile": self.compile_s}
        return {name: seconds for name, seconds in found.items() if seconds > 0}

    def saves(self, folder: Path) -> SaveTimes | None:
        """Time the checkpoints of a training, once per set of trained weights."""

        def measure() -> SaveTimes | None:
            return attempt(
                lambda: measure_saves(self.stepping, folder),
                foretold_s=0.0,
                at_least_s=MIN_DEADLINE_S,
            ).value

        return self._once("save", measure)

    def _mfu(self, peaks: Peaks | None, forward: float | None, step: float | None) -> float | None:
        """Return the FLOPs utilization of a step, or of the trunk if features are cached."""
        if peaks is None or forward is None or step is None:
            return None
        flops, seconds = step * self.subject.batch_size, self.steps.step_s
        if self.recipe.features.cached and self.trunk is not None:
            flops, seconds = forward, self.trunk.example_s
        return model_flops_utilisation(flops, seconds, peak_flops_per_s=peaks.flops_per_s)

    def _forward_bytes(self, flops: Flops | None) -> float | None:
        if flops is None:
            return None
        is_cached = self.recipe.features.cached
        size = self._pass_size if is_cached else self.subject.batch_size
        return flops.activation_bytes + flops.weight_bytes / size

    def _load_s(self) -> float:
        """Return the seconds to load train, and val at its first use, into memory once."""
        val = self.subject.sources.val
        num_train = self.subject.num_train
        return (self.steps.load_s or 0.0) * (1 + (len(val) if val is not None else 0) / num_train)

    def _with_reading(self, trunk_s: float) -> float:
        """Return the seconds to read an example and run the trunk on it.

        On a CPU the reading threads share the cores, so the times add up; with a GPU the slower of
        the two determines the time.
        """
        read_s = (self.reading.cpu_s if self.reading else 0.0) / self.subject.reading_threads
        return trunk_s + read_s if self.subject.device.type == "cpu" else max(trunk_s, read_s)

    # -- parts ------------------------------------------------------------------------------

    def _measure_trunk(self) -> TrunkTime | None:
        measure = measure_trunk if self.recipe.features.cached else try_trunk
        return measure(self.subject, budget_s=self._budgets_s["trunk"])

    def _look_at_trunk_again(self) -> TrunkTime | None:
        if self.trunk is None:
            return None
        return look_again(self.subject, self.trunk, budget_s=self._budgets_s["trunk"])

    def _measure_validation(self) -> float | None:
        return measure_validation(self.stepping, budget_s=self._budgets_s["validation"])

    def _measure_peaks(self, *, has_conv: bool) -> Peaks | None:
        return attempt(
            lambda: measure_peaks(
                self.subject.device,
                self.recipe.device.precision,
                has_conv=has_conv,
                budget_s=self._budgets_s["peaks"],
            ),
            foretold_s=self._budgets_s["peaks"],
            at_least_s=MIN_DEADLINE_S,  # as for replays
        ).value

    def _measure_flops(self) -> Flops | None:
        def measure() -> Flops:
            whole = measure_flops(self.subject)
            if self.stepping is self.subject:
                return whole
            return replace(whole, step=measure_flops(self.stepping).step)

        return attempt(measure, foretold_s=self.steps.step_s, at_least_s=MIN_DEADLINE_S).value

    def _measure_sweep(self) -> Sweep:
        budget_s = self._budgets_s["sweep"]
        sizes = choose_sizes(
            self.subject.batch_size,
            num_examples=self.stepping.num_train,  # only some features are synthesized
            example_s=self.example_s,
            budget_s=budget_s,
            min_size=self.subject.min_batch_size,
        )
        return measure_sweep(self.stepping, sizes, budget_s=budget_s)

    def _measure_replays(self) -> dict[str, float] | None:
        example_s = self.example_s
        if self.recipe.features.cached and self.trunk is not None:
            example_s = self.trunk.example_s
        return attempt(
            lambda: measure_replays(
                self.subject,
                is_cached=bool(self.recipe.features.cached),
                example_s=example_s,
                budget_s=self._budgets_s["replays"],
            ),
            foretold_s=self._budgets_s["replays"] + self.steps.step_s,
            at_least_s=MIN_DEADLINE_S,  # emulated 16-bit operations on a CPU are slow
        ).value

    def _measure_size(self) -> ModelSize | None:
        """Return what decides how the model is divided; None if a pass of two examples fails."""
        found = attempt(
            lambda: job_size(self.subject),
            foretold_s=4 * self.steps.step_s,
            at_least_s=PROBE_S,
        )
        return found.value

    def _measure_gradients(self) -> tuple[Gradient, ...]:
        """Return when gradients are known; nothing if the model is compiled, or a pass fails."""
        if self.recipe.device.compile or self.stepping.parts.divided is not None:
            return ()
        found = attempt(
            lambda: measure_gradients(self.stepping),
            foretold_s=4 * self.steps.step_s,
            at_least_s=PROBE_S,
        )
        return found.value or ()

    def _measure_noise(self) -> NoiseScale:
        has_features = self.head is not None and self.trunk is not None
        found = attempt(
            lambda: estimate_noise_scale(
                self.subject,
                self.head,
                example_s=self.trunk.example_s if has_features and self.trunk else self.example_s,
                budget_s=self._budgets_s["noise"],
            ),
            foretold_s=self._budgets_s["noise"] + MAX_NOISE_GRADIENTS * self.steps.step_s,
            at_least_s=PROBE_S,
        )
        return found.value or NoiseScale(
            unknown_because=f"computing its gradients {found.failed_because}"
        )

    def _reading(self) -> ReadingCost | None:
        """Return the time of one thread to read an original example, not its features."""
        if not self.recipe.features.cached:
            return self.steps.reading
        source = self.subject.sources.train
        return self._once("read", lambda: measure_reading(source, self._pass_size))

    def _head_times(self) -> dict[str, float | None]:
        times: dict[str, float | None] = {"trunk_s": None, "feature_bytes": None}
        if self.trunk is not None:
            times = {"trunk_s": self.trunk.example_s, "feature_bytes": self.trunk.feature_bytes}
        if self.head is None:
            return times
        if self.stepping is self.head:
            step_s, validation_s = self.steps.step_s, self.validation_s
        else:
            step_s, validation_s = self._once("head", self._measure_head)
        return {**times, "head_step_s": step_s, "head_validation_s": validation_s}

    def _measure_head(self) -> tuple[float, float]:
        assert self.head is not None
        budget_s = self._budgets_s["validation"]
        step_s = measure_steps(self.head, budget_s=budget_s).step_s
        return step_s, measure_validation(self.head, budget_s=budget_s) or 0.0

    def _example_bytes(self) -> int:
        if self.stepping is self.subject:
            batch = self.steps.batches[0]
        else:
            batch = self._once("example", lambda: self.subject.batch_of(1))
        return input_bytes(batch.inputs) // max(1, batch.ids.numel())

    def _once(self, name: str, measure: Callable[[], Value]) -> Value:
        return self._known.once(memory_key(name, self.recipe), measure)

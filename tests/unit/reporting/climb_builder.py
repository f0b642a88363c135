"""Builds the ledger of a climb from the records that a climb writes; the numbers are invented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.records import to_json
from stepladder.records.climb import Baseline, ClimbSummary, NextStep, Result
from stepladder.records.files import Json
from stepladder.records.ladder import Decision, Interval, Prediction, Trial, Verdict
from stepladder.records.profile import Curve, Profile, Provenance, TrainingTime

NOT_TRIED = (
    ("pretrained", 2, None, Decision.NOT_HERE, "already on"),
    ("gpu", 3, None, Decision.NOT_HERE, "no GPU on this machine (a T4: at most 14×)"),
    ("compile", 6, 0.61, Decision.SKIPPED, "predicted 0.61×: 28 s to compile, 5 s of work left"),
    ("fused_optimizer", 6, 1.01, Decision.SKIPPED, "predicted 1.01×, below 1.03×"),
    ("gradient_checkpointing", 7, None, Decision.NOT_HERE, "memory limits nothing"),
    ("loader_threads", 8, 1.0, Decision.SKIPPED, "predicted 1.00×, below 1.03×"),
    ("streaming", 8, None, Decision.NOT_HERE, "the pictures fit in memory"),
    ("all_data", 8, None, Decision.UNTRIED, "the budget ended before"),
)


class ClimbBuilder:
    """Adds trials, each based on the last kept one."""

    def __init__(self, seed: int, num_blocks: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_blocks = num_blocks
        self.lines: list[dict[str, Any]] = []
        self.time = TrainingTime(
            one_time_s={"load": 0.7},
            epochs=60,
            steps_per_epoch=337.5,
            step_s=0.0677,
            num_validations=60,
            validation_s=1.31,
        )

    def profile(self, **changes: Any) -> None:
        profile = replace(PROFILE, time=self.time, **changes)
        self.lines.append(
            {"kind": "profile", "recipe": "r" * 16, "profile": to_json(profile), "at_s": 3.1}
        )

    def tried(
        self,
        rung: str,
        level: int,
        predicted: float,
        after: TrainingTime,
        decision: Decision = Decision.KEPT,
        reason: str = "",
        *,
        change: dict[str, tuple[Json, Json]],
        noise: float = 0.03,
        epochs: tuple[tuple[float, ...], tuple[float, ...]] = ((), ()),
        **verdict: Any,
    ) -> None:
        before_s, after_s = (
            time.total_s * np.exp(self.rng.normal(0, noise, self.num_blocks))
            for time in (self.time, after)
        )
        ratios = np.log(before_s / after_s)
        mean, error = ratios.mean(), 1.9 * ratios.std(ddof=1) / np.sqrt(len(ratios))
        estimate, low, high = (float(np.exp(v)) for v in (mean, mean - error, mean + error))
        prediction = Prediction(
            rung=rung,
            gain=predicted,
            time=after,
            provenance=Provenance.REPLAYED,
            inputs={"step_s": self.time.step_s, "epochs_now": 60.0, "ratio": 1 / predicted},
            note="the head alone was trained on features to find the number of epochs",
        )
        trial = Trial(
            rung=rung,
            level=level,
            change=change,
            prediction=prediction,
            before=self.time,
            after=after,
            before_s=tuple(before_s.tolist()),
            after_s=tuple(after_s.tolist()),
            before_epochs=epochs[0],
            after_epochs=epochs[1],
            verdict=Verdict(
                decision=decision,
                reason=reason,
                speed=Interval(estimate=estimate, low=low, high=high),
                **verdict,
            ),
            took_s=14.2,
            seed=3,
            commit="0.1.0",
            machine="m" * 16,
            job="j" * 16,
            recipe="r" * 16,
        )
        self._write(prediction, trial)
        if decision is Decision.KEPT:
            self.time = after
            self.profile(
                phases_s={"data_wait": 1e-5, "forward": 1.1e-4, "backward": 2e-4},
                replay_host_s=after.step_s / 1.02,
                step_flops=2.1e5,
                mfu=0.006,
            )

    def untried(
        self, rung: str, level: int, gain: float | None, decision: Decision, reason: str
    ) -> None:
        prediction = None
        if gain is not None:
            prediction = Prediction(rung=rung, gain=gain, provenance=Provenance.MODELLED)
        verdict = Verdict(decision=decision, reason=reason)
        self._write(
            prediction,
            Trial(rung=rung, level=level, change={}, prediction=prediction, verdict=verdict),
        )

    def _write(self, prediction: Prediction | None, trial: Trial) -> None:
        if prediction is not None:
            value = to_json(prediction)
            self.lines.append({"kind": "prediction", "rung": trial.rung, "prediction": value})
        self.lines.append({"kind": "trial", "trial": to_json(trial)})


def build_climb(folder: Path, *, seed: int = 0, num_blocks: int = 8, ended: bool = True) -> Path:
    """Write trials.jsonl and climb.json, like a climb of the demo on two cores."""
    folder.mkdir(parents=True, exist_ok=True)
    build = ClimbBuilder(seed, num_blocks)
    build.lines.append({"kind": "climb", "job": "j" * 16, "machine": "m" * 16})
    start = build.time
    build.profile()
    for values in NOT_TRIED[:2]:
        build.untried(*values)
    _tried(build)
    for values in NOT_TRIED[2:]:
        build.untried(*values)
    text = "".join(json.dumps(line) + "\n" for line in build.lines)
    (folder / "trials.jsonl").write_text(text)
    if ended:
        summary = _summary(start.total_s, build.time.total_s * 1.08)
        (folder / "climb.json").write_text(json.dumps(to_json(summary), indent=2))
    return folder


def _tried(build: ClimbBuilder) -> None:
    time = build.time
    stopped = replace(time, epochs=11, num_validations=11)
    build.tried(
        "early_stopping", 4, 4.9, stopped, change={"stopping.early": (False, True)},
        accuracy=Interval(estimate=-0.001, low=-0.006, high=0.004), num_epochs=11.0,
        is_replayed=True, epochs=((60,) * 5, (10, 11, 12, 11, 11)),
    )  # fmt: skip
    cached = replace(
        stopped, one_time_s={"load": 0.7, "features": 23.1}, step_s=0.00041, validation_s=0.002
    )
    build.tried(
        "cached_features", 5, 9.0, cached, change={"features.cached": (False, True)},
        exactness="same to 1e-5",
    )  # fmt: skip
    laid_out = replace(cached, one_time_s={"load": 0.7, "features": 11.6})
    build.tried(
        "channels_last", 6, 1.8, laid_out, exactness="same to 1e-5",
        change={"device.memory_format": ("contiguous", "channels_last")},
    )  # fmt: skip
    folded = replace(laid_out, one_time_s={"load": 0.7, "features": 11.5})
    build.tried(
        "folded_trunk", 6, 1.09, folded, Decision.UNDECIDED,
        "the noise is larger than the effect", noise=0.08,
        change={"model.fold_batchnorm": (False, True)}, exactness="same to 1e-5",
    )  # fmt: skip
    halved = replace(laid_out, one_time_s={"load": 0.7, "features": 4.6})
    build.tried(
        "mixed_precision", 6, 2.3, halved, change={"device.precision": ("fp32", "bf16")},
        accuracy=Interval(estimate=0.0, low=-0.002, high=0.002), num_epochs=11.2,
        is_replayed=True, epochs=((10, 11, 12, 11, 11), (11, 11, 12, 11, 11)),
    )  # fmt: skip
    wider = replace(halved, epochs=17, num_validations=17, steps_per_epoch=10.5, step_s=0.0021)
    build.tried(
        "larger_batch", 7, 1.21, wider, Decision.DROPPED,
        "accuracy may fall by more than 1.0 points",
        change={"batch.global_batch_size": (2, 64), "batch.lr": (0.001, 0.0057)},
        accuracy=Interval(estimate=-0.014, low=-0.022, high=-0.005), num_epochs=17.0,
        is_replayed=True, epochs=((10, 11, 12, 11, 11), (16, 18, 17, 17, 17)),
    )  # fmt: skip


def _summary(before_s: float, after_s: float) -> ClimbSummary:
    return ClimbSummary(
        baseline=Baseline(
            total_s=before_s, measured_epochs=3.0, epochs=60, global_batch_size=2,
            is_extrapolated=True, val_accuracy=0.649, test_accuracy=0.75,
            provenance=Provenance.REPLAYED,
        ),
        result=Result(total_s=after_s, epochs=17, val_accuracy=0.66, test_accuracy=0.753),
        climb_s=170.2,
        num_test=661,
        test_change=Interval(estimate=0.003, low=-0.006, high=0.012),
        speedup=before_s / after_s,
        next=NextStep(
            rung="larger_gpu", gain=3.1,
            text="a GPU with 65 TFLOP/s would compute the features in 0.4 s instead of 4.6 s",
        ),
        untried=("all_data",),
        budget_s=600.0,
        machine={
            "model": "Some Processor", "num_cores": 2, "num_cores_of_machine": 64,
            "instructions": ["avx2", "fma"], "threads": 2, "threads_before": 2,
            "waiting": {"GOMP_SPINCOUNT": "3000"},
        },
        max_accuracy_loss=0.01,
        min_gain=0.03,
    )  # fmt: skip


PROFILE = Profile(
    time=TrainingTime(epochs=60, steps_per_epoch=337.5, step_s=0.0677),
    num_train=675, num_val=57, is_built_in=True, has_head=True, is_trunk_frozen=True,
    is_random_before_head=False, is_pretrained=True, num_conv2d=49, num_batchnorm=49,
    weight_bytes=13_500_000, trainable_bytes=71_736, example_bytes=150_528, feature_bytes=5_120,
    store_encoding="pixels", device="cpu", device_name="Some Processor", num_cores=2,
    has_cuda=False, has_bf16=True, has_compiler=True, free_memory_bytes=6 * 2**30,
    free_disk_bytes=20 * 2**30, peak_flops_per_s=1.62e11, bandwidth_bytes_per_s=1.1e10,
    phases_s={
        "data_wait": 0.0006, "to_device": 0.0001, "augment": 0.0, "forward": 0.0611,
        "backward": 0.0031, "optimizer": 0.0011,
    },
    unexplained_frac=0.025, replay_host_s=0.0671, replay_device_s=0.0671, loader_per_s=2950.0,
    loader_cpu_s=0.00033, step_by_batch_s={2: 0.068, 8: 0.24, 32: 0.94}, step_fixed_s=0.0097,
    step_per_example_s=0.029, memory_by_batch={2: 60_000_000, 32: 610_000_000},
    forward_flops=7.7e8, step_flops=7.71e8, mfu=0.14, trunk_s=0.029, head_step_s=0.0004,
    head_validation_s=0.002, op_replays={"channels_last": 0.52, "bf16": 0.47},
    curve=Curve(epochs=60, val_losses=(1.9, 1.4, 1.2), epochs_to_stop=11.0,
                provenance=Provenance.REPLAYED),
    noise_scale=41.0,
    provenance={
        "step_s": Provenance.MEASURED, "phases_s": Provenance.MEASURED,
        "forward_flops": Provenance.MODELLED, "step_flops": Provenance.MODELLED,
        "peak_flops_per_s": Provenance.MEASURED, "bandwidth_bytes_per_s": Provenance.MEASURED,
        "mfu": Provenance.MODELLED, "noise_scale": Provenance.MEASURED,
        "loader_per_s": Provenance.MEASURED, "trunk_s": Provenance.MEASURED,
    },
)  # fmt: skip

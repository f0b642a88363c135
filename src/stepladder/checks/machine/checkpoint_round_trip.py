"""Checkpoints are complete: a resumed run continues as if it had never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepladder.checks.contract import (
    Answer,
    Check,
    Tier,
    could_not_run,
    found,
    not_applicable,
    passed,
)
from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import CheckedJob
from stepladder.checks.machine.fresh_load import BATCH_FILE, ERROR_FILE, OUTPUTS_FILE
from stepladder.checks.machine.restart import Reached, take_steps
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.reading.datasets import is_stochastic
from stepladder.data.reading.examples import ArrivalSource
from stepladder.records.findings import Severity
from stepladder.task.load import BUILT_IN
from stepladder.training.checkpoint.checkpoint import load_last

NUM_BEFORE, NUM_AFTER = 3, 2  # steps before and after the restart
_NUM_HELD_OUT = 8
_CUDA_TOLERANCE = 1e-3  # on a GPU, kernels may add in another order
_FRESH_TOLERANCE = 1e-5  # another process may use other threads or kernels
_MAX_FRESH_S = 120.0
_FIX = "Add it to the state_dict: register_buffer() for tensors, get_extra_state() for the rest."


def checkpoint_round_trip(job: CheckedJob) -> Answer:
    """Save after a few steps, load in a new process on the CPU, resume, and compare.

    - The model that a new process loads, from config and checkpoint alone, has the same outputs on
    a held-out batch as the one in memory.
    - k steps, a restart and m steps have the same result as k + m steps: weights, optimizer, random
    states, early stopping, position; bitwise equal on a CPU.
    """
    train = job.sources.train
    if isinstance(train, ArrivalSource):
        return not_applicable("training on an IterableDataset cannot be resumed exactly")
    if is_stochastic(train):
        return not_applicable("the dataset reads examples at random, so no resume is exact")
    batch = _held_out(job)
    with tempfile.TemporaryDirectory(prefix="stepladder-check-") as temporary:
        root = Path(temporary)
        through, before, after = (root / name for name in ("through", "before", "after"))
        for folder in (through, before, after):
            folder.mkdir()
        first = take_steps(job, before, until=NUM_BEFORE, batch=batch, saves=True)
        with closing(_FreshLoad(job, before, batch)) as load:  # the other steps are taken meanwhile
            whole = take_steps(job, through, until=NUM_BEFORE + NUM_AFTER, batch=batch)
            second = take_steps(
                job, after, until=NUM_BEFORE + NUM_AFTER, batch=batch, loaded=load_last(before)
            )
            fresh = load.compare(first)
    if fresh.problem is not None:
        return _incomplete(f"a new process cannot use the checkpoint: {fresh.problem}", first)
    lost = _differences(whole, second, is_exact=job.device.type == "cpu")
    if lost:
        if not _repeats(job, whole, batch):
            return found(
                "not_reproducible",
                f"{NUM_BEFORE + NUM_AFTER} steps without a restart differ when repeated with the "
                "same seed, so a resumed run cannot be compared with them",
                fix="Draw random numbers from torch's global generator, or from one seeded with "
                "(seed, epoch, ids).",
                severity=Severity.WARNING,
            )
        return _incomplete(
            f"after {NUM_BEFORE} steps, a restart and {NUM_AFTER} more, {lost[0]} differs from "
            f"that after {NUM_BEFORE + NUM_AFTER} steps without a restart",
            first,
            differences=lost[:20],
        )
    text = (
        f"{NUM_BEFORE} steps, a restart and {NUM_AFTER} more equal {NUM_BEFORE + NUM_AFTER} steps "
        f"without a restart, {'bitwise' if job.device.type == 'cpu' else 'up to rounding'}"
    )
    return _alike(text, fresh, first)


def _alike(text: str, fresh: _Fresh, first: Reached) -> Answer:
    if not fresh.is_told:
        return could_not_run(
            f"{fresh.words}; in this process, {text}",
            fix="Check what the Task's file does on import, or use a longer --budget.",
        )
    return passed(
        f"{text}; {fresh.words}",
        coverage=fresh.coverage,
        groups=", ".join(sorted(first.tensors)),
        checkpoint_bytes=first.num_bytes,
    )


def _repeats(job: CheckedJob, whole: Reached, batch: Batch) -> bool:
    """Repeat the steps without a restart, and compare."""
    with tempfile.TemporaryDirectory(prefix="stepladder-check-") as folder:
        again = take_steps(job, Path(folder), until=NUM_BEFORE + NUM_AFTER, batch=batch)
    return not _differences(whole, again, is_exact=job.device.type == "cpu")


@dataclass(frozen=True, kw_only=True)
class _Fresh:
    words: str = ""
    problem: str | None = None
    coverage: str | None = None
    is_told: bool = True


def _incomplete(evidence: str, first: Reached, **numbers: Any) -> Answer:
    loose = loose_tensors(first.model)
    held = f"; tensors outside the state_dict: {', '.join(loose[:5])}" if loose else ""
    return found("checkpoint_incomplete", f"{evidence}{held}", fix=_FIX, **numbers)


def loose_tensors(model: nn.Module) -> list[str]:
    """List tensors that are plain attributes of modules, which are not saved in checkpoints."""
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]


def _held_out(job: CheckedJob) -> Batch:
    split = Split.VAL if job.sources.val is not None else Split.TRAIN
    if split is Split.TRAIN:
        batch = job.train_batches(1)[0]
    else:
        batch = next(iter(job.held_out_batches(split, 1)))
    return _first(batch, _NUM_HELD_OUT)


def _first(batch: Batch, num: int) -> Batch:
    if not isinstance(batch.inputs, Tensor) or len(batch.ids) <= num:
        return batch
    targets = batch.targets
    cut = targets[:num] if isinstance(targets, Tensor) else targets
    return Batch(batch.inputs[:num], cut, batch.ids[:num])


class _FreshLoad:
    """A new process that loads the checkpoint of a folder, and runs the model on a batch.

    None is started if the Task is not in a file.
    """

    def __init__(self, job: CheckedJob, folder: Path, batch: Batch) -> None:
        self._job, self._folder, self._num_examples = job, folder, len(batch.ids)
        self._process: subprocess.Popen[bytes] | None = None
        file = Path(job.task_name.rpartition(":")[0])
        if job.task_name != BUILT_IN and not file.is_file():
            return
        on_cpu = batch.to(torch.device("cpu"))
        torch.save((on_cpu.inputs, on_cpu.targets, on_cpu.ids), folder / BATCH_FILE)
        command = [sys.executable, "-m", "stepladder.checks.machine.fresh_load", str(folder)]
        self._limit_s = min(_MAX_FRESH_S, max(10.0, job.left_s()))
        self._started = time.monotonic()
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, str(torch.get_num_threads())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            )

    @property
    def _errors(self) -> Path:
        return self._folder / "stderr.txt"

    def compare(self, first: Reached) -> _Fresh:
        """Wait for the process, and compare the outputs of its model with those of this one."""
        if self._process is None:
            return _Fresh(
                words="not loaded in a new process, as the Task is not in a file",
                coverage="this process only",
            )
        try:
            left_s = self._started + self._limit_s - time.monotonic()
            self._process.wait(max(0.0, left_s))
        except subprocess.TimeoutExpired:
            limit = f"{self._limit_s:.0f} s"
            return _Fresh(
                words=f"a new process did not load the checkpoint within {limit}", is_told=False
            )
        if (self._folder / ERROR_FILE).exists():
            return _Fresh(problem=(self._folder / ERROR_FILE).read_text(encoding="utf-8")[:400])
        if not (self._folder / OUTPUTS_FILE).exists():
            lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return _Fresh(problem=(lines or ["it exited"])[-1][:400])
        fresh = torch.load(self._folder / OUTPUTS_FILE, weights_only=True)
        return _compared(self._job, fresh, first, num_examples=self._num_examples)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _compared(job: CheckedJob, outputs: Tensor, first: Reached, *, num_examples: int) -> _Fresh:
    """Compare the outputs of two processes on the same examples, unless they are random."""
    if first.is_drawn:
        return _Fresh(
            words="a new process on the CPU loads the checkpoint; outputs were not compared, as "
            "they are random"
        )
    largest = float((outputs - first.outputs).abs().max())
    scale = max(1.0, float(first.outputs.abs().max()))
    limit = _FRESH_TOLERANCE if job.recipe.device.precision.value == "fp32" else 0.1
    if not largest <= limit * scale:
        return _Fresh(problem=f"outputs on a held-out batch differ by up to {largest:.3g}")
    return _Fresh(
        words=f"a new process on the CPU has the same outputs on {num_examples} held-out examples"
    )


def _differences(a: Reached, b: Reached, *, is_exact: bool) -> list[str]:
    """List what differs between two results: tensors by group and name, then values."""
    differing = [
        f"{group} {name}"
        for group, members in a.tensors.items()
        for name, value in members.items()
        if not _same(value, b.tensors.get(group, {}).get(name), is_exact=is_exact)
    ]
    differing += [
        name
        for name in ("position", "stopping", "scaler", "optimizer")
        if a.state.get(name) != b.state.get(name)
    ]
    if not _same(a.outputs, b.outputs, is_exact=is_exact):
        differing.append("the output on held-out examples")
    return differing


def _same(a: Tensor, b: Tensor | None, *, is_exact: bool) -> bool:
    if b is None or a.shape != b.shape:
        return False
    if is_exact or not a.is_floating_point():
        return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return torch.allclose(a, b, rtol=_CUDA_TOLERANCE, atol=_CUDA_TOLERANCE)


def broken() -> Example:
    """A running scale that is a plain attribute and not in the state_dict."""

    class Scaled(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.scale = torch.ones(())

        def forward(self, pictures: Tensor) -> Tensor:
            if self.training:
                self.scale = 0.9 * self.scale + 0.2 * pictures.detach().abs().mean()
            scores: Tensor = self.inner(pictures) * self.scale
            return scores

    class Forgetful(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            return Scaled(super().build_model(recipe))

    return Example(task=Forgetful())


CHECK = Check(
    name="checkpoint_round_trip",
    reason="An incomplete checkpoint is noticed only after a crash, when it is too late.",
    source="checkpoint contract, docs/design.md; faults of resuming in Lightning #1463, #18727 and "
    "Composer #3725",
    severity=Severity.ERROR,
    tier=Tier.FULL,
    faults=("checkpoint_incomplete", "not_reproducible"),
    run=checkpoint_round_trip,
    broken=broken,
    least_s=8.0,
    needs_loss=True,
)

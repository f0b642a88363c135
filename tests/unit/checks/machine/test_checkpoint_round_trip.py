"""Save, load in another process, and resume: whatever is lost is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from stepladder.checks.examples import Example, SoundPictures
from stepladder.checks.job import open_job
from stepladder.checks.machine import checkpoint_round_trip
from stepladder.checks.machine.checkpoint_round_trip import CHECK, loose_tensors
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.load import load_task

_FILE = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from stepladder import Task

CALLS = []

class Mine(Task):
    def build_model(self, recipe):
        CALLS.append(1)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, {width}))

    def data(self, split):
        x = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, (x[:, 0] > 0).long())

    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""


def look(task: SoundPictures, folder: Path) -> Finding:
    example = Example(task=task)
    job = open_job(example.config(folder), task, task_name="example")
    return run_check(CHECK, job)


def look_at_file(text: str, folder: Path) -> Finding:
    file = folder / "mine.py"
    file.write_text(text)
    name = f"{file}:Mine"
    task = load_task(name, store=folder)
    job = open_job(Example().config(folder), task, task_name=name)
    return run_check(CHECK, job)


def test_a_fresh_process_that_takes_too_long_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_round_trip, "_MAX_FRESH_S", 0.01)
    finding = look_at_file(_FILE.format(width="2"), tmp_path)
    assert finding.outcome is Outcome.COULD_NOT_RUN
    assert "did not load the checkpoint" in finding.evidence
    assert "--budget" in finding.fix


def test_a_task_of_no_file_says_that_no_fresh_process_was_there(tmp_path: Path) -> None:
    finding = look(SoundPictures(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.coverage == "this process only"


def test_a_task_of_a_file_is_loaded_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    text = _FILE.format(width="4")
    text = text.replace("return TensorDataset(x, (x[:, 0] > 0).long())", "return Rows(x)")
    text = text.replace(
        'F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")',
        "(model(batch.inputs) - batch.inputs).square().mean(1)",
    )
    text += "\n\nclass Rows(torch.utils.data.Dataset):\n"
    text += "    def __init__(self, x):\n        self.x = x\n\n"
    text += "    def __len__(self):\n        return len(self.x)\n\n"
    text += "    def __getitem__(self, row):\n        return self.x[row]\n"
    finding = look_at_file(text, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding.evidence
    assert (
        "a new process on the CPU has the same outputs on 8 held-out examples" in finding.evidence
    )


def test_a_model_that_draws_in_evaluation_mode_is_not_compared(tmp_path: Path) -> None:
    text = _FILE.format(width="2").replace(
        "F.cross_entropy(model(batch.inputs), ",
        "F.cross_entropy(model(batch.inputs + torch.randn_like(batch.inputs)), ",
    )
    finding = look_at_file(text, tmp_path)
    assert finding.outcome is Outcome.PASSED, finding.evidence
    assert "not compared, as they are random" in finding.evidence


def test_a_model_that_another_process_builds_otherwise_is_found(tmp_path: Path) -> None:
    width = "2 + int(__import__('os').environ.get('CUDA_VISIBLE_DEVICES') == '')"
    finding = look_at_file(_FILE.format(width=width), tmp_path)
    assert finding.fault == "checkpoint_incomplete"
    assert "a new process cannot use the checkpoint" in finding.evidence
    assert "do not fit the model" in finding.evidence


def test_a_task_that_counts_in_itself_is_found(tmp_path: Path) -> None:
    class Counts(SoundPictures):
        num_calls = 0

        def loss(self, model: nn.Module, batch: Batch) -> Tensor:
            self.num_calls += 1
            return super().loss(model, batch) * (1 + self.num_calls)

    finding = look(Counts(), tmp_path)
    assert finding.fault == "checkpoint_incomplete"
    assert "a restart and" in finding.evidence


def test_data_that_are_random_or_arrive_have_no_exact_resume(tmp_path: Path) -> None:
    class Noisy(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, int]]:
            class Draws(Dataset[tuple[Tensor, int]]):
                def __len__(self) -> int:
                    return 64

                def __getitem__(self, row: int) -> tuple[Tensor, int]:
                    return torch.randn(3, 12, 12), row % 4

            return Draws()

    class Arrives(SoundPictures):
        def data(self, split: Split) -> Dataset[tuple[Tensor, int]]:
            class Stream(IterableDataset[tuple[Tensor, int]]):
                def __len__(self) -> int:
                    return 64

                def __iter__(self):  # type: ignore[no-untyped-def]
                    return iter([(torch.randn(3, 12, 12), 1)] * 64)

            return Stream()

    assert look(Noisy(), tmp_path).outcome is Outcome.NOT_APPLICABLE
    assert look(Arrives(), tmp_path).outcome is Outcome.NOT_APPLICABLE


def test_tensors_outside_the_state_dict_are_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert loose_tensors(model) == []
    model[0].scale = torch.ones(2)
    assert loose_tensors(model) == ["0.scale"]


class DrawsAnew(SoundPictures):
    """Noise in training from an unseeded generator."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        drawn = np.random.default_rng().normal(0, 0.1, tuple(batch.inputs.shape))
        return batch._replace(inputs=batch.inputs + torch.from_numpy(drawn).float())


def test_a_run_that_differs_from_itself_says_nothing_of_its_checkpoint(tmp_path: Path) -> None:
    finding = look(DrawsAnew(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "not_reproducible"), finding
    assert "differ when repeated with the same seed" in finding.evidence

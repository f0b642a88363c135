"""Faults across splits and in random reading, and sound look-alikes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stepladder.checks.contract import Check
from stepladder.checks.data import distribution, duplicates, label_alignment, worker_draws
from stepladder.checks.evidence.copies import contents
from stepladder.checks.evidence.spread import described, spread_sample
from stepladder.checks.examples import Example, SoundPictures, draw, labelled
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.run import run_check
from stepladder.checks.validation import validation_repeats
from stepladder.config.choices import Split
from stepladder.data.batch import Batch
from stepladder.data.reading.examples import Source
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task


def job_of(task: Task, folder: Path) -> CheckedJob:
    config = Example(task=task).config(folder)  # type: ignore[arg-type]
    return open_job(config, task, task_name="example")


def look(check: Check, task: Task, folder: Path) -> Finding:
    return run_check(check, job_of(task, folder))


# --- duplicates


class Constant(SoundPictures):
    """Most training pictures are identical."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        if split is Split.TRAIN:
            pictures = torch.where(
                (torch.arange(len(numbers)) % 4 > 0)[:, None, None, None], pictures[:1], pictures
            )
        return labelled(pictures, numbers)


class Repeated(SoundPictures):
    """A tenth of train is duplicated, one picture with two labels."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        if split is Split.TRAIN:
            pictures = torch.cat([pictures, pictures[:26]])
            numbers = torch.cat([numbers, numbers[:26]])
            numbers[0] = (numbers[0] + 1) % 4
        return labelled(pictures, numbers)


class Grouped(SoundPictures):
    """Validation patients are in train."""

    first_held_out = 60

    def data(self, split: Split) -> Dataset[Any]:
        data = labelled(*draw(split))
        offset = 0 if split is Split.TRAIN else self.first_held_out
        data.group_ids = offset + np.arange(len(data)) // 4  # type: ignore[attr-defined, arg-type]
        return data


class Few(SoundPictures):
    """One training picture is in test: too few to report."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        if split is Split.TEST:
            pictures[0] = draw(Split.TRAIN)[0][0]
        return labelled(pictures, numbers)


class ChosenOnTest(SoundPictures):
    """A quarter of test is in validation as well, and neither is in train."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        if split is Split.TEST:
            some = len(numbers) // 4
            pictures = torch.cat([draw(Split.VAL)[0][:some], pictures[some:]])
            numbers = torch.cat([draw(Split.VAL)[1][:some], numbers[some:]])
        return labelled(pictures, numbers)


class GroupsOfTest(Grouped):
    """Test patients are in validation, and neither are in train."""

    first_held_out = 1000


@pytest.mark.parametrize(
    ("kind", "fault", "outcome"),
    [
        (ChosenOnTest, "split_leakage", Outcome.WARNED),
        (GroupsOfTest, "split_leakage", Outcome.WARNED),
        (Constant, "duplicated_inputs", Outcome.FAILED),
        (Repeated, "duplicated_inputs", Outcome.WARNED),
        (Grouped, "split_leakage", Outcome.WARNED),
        (Few, None, Outcome.PASSED),
    ],
)
def test_copies(kind: type[Task], fault: str | None, outcome: Outcome, tmp_path: Path) -> None:
    finding = look(duplicates.CHECK, kind(), tmp_path)
    assert (finding.fault, finding.outcome) == (fault, outcome)


def test_test_examples_that_are_in_validation_are_named_with_their_twins(tmp_path: Path) -> None:
    finding = look(duplicates.CHECK, ChosenOnTest(), tmp_path)
    assert "also in val" in finding.evidence
    assert finding.examples[0] == "test row 0 = val row 0"
    groups = look(duplicates.CHECK, GroupsOfTest(), tmp_path)
    assert "groups of test are also in val" in groups.evidence


def test_copies_name_both_sides_and_labels_that_contradict(tmp_path: Path) -> None:
    finding = look(duplicates.CHECK, Repeated(), tmp_path)
    assert finding.numbers["num_copies"] == 26
    assert finding.numbers["num_conflicts"] == 1
    assert finding.examples[0] == "train row 0 = train row 256"


def test_rows_of_a_small_table_leak_if_their_targets_are_equal_too(tmp_path: Path) -> None:
    class Table(SoundPictures):
        is_leaking = True

        def data(self, split: Split) -> Dataset[Any]:
            x = torch.randn(300, 5, generator=torch.Generator().manual_seed(1))
            y = x.argmax(1) % 4
            start = {"train": 0, "val": 100 if self.is_leaking else 200, "test": 250}[split]
            rows = slice(start, start + (200 if split is Split.TRAIN else 50))
            return TensorDataset(x[rows], y[rows])

    assert look(duplicates.CHECK, Table(), tmp_path).fault == "split_leakage"
    sound = Table()
    sound.is_leaking = False
    assert look(duplicates.CHECK, sound, tmp_path).fault is None


def test_small_examples_of_few_values_are_alike_by_nature(tmp_path: Path) -> None:
    class Coins(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            draws = torch.Generator().manual_seed(list(Split).index(split))
            x = torch.randint(2, (200, 6), generator=draws).float()
            return TensorDataset(x, x[:, 0].long())

    finding = look(duplicates.CHECK, Coins(), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE


# --- distribution


def test_labels_of_test_are_never_used(tmp_path: Path) -> None:
    class Sealed(Dataset[Any]):
        def __len__(self) -> int:
            return len(draw(Split.TEST)[0])

        def __getitem__(self, row: int) -> Any:
            return draw(Split.TEST)[0][row], torch.nan

    class Hidden(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            return Sealed() if split is Split.TEST else super().data(split)

    job = job_of(Hidden(), tmp_path)
    for check in (distribution.CHECK, duplicates.CHECK):
        assert run_check(check, job).outcome is Outcome.PASSED
    kept = spread_sample(job, Split.TEST), described(job, Split.TEST), contents(job, Split.TEST)
    assert all(part is not None for part in kept)
    assert kept[0] is not None
    assert all(batch.targets is None for batch in kept[0].batches)
    assert [getattr(part, "targets", None) for part in kept[1:]] == [None, None]


def test_train_against_validation_is_a_warning(tmp_path: Path) -> None:
    class OtherTrain(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            return labelled(pictures + (0.5 if split is Split.TRAIN else 0), numbers)

    finding = look(distribution.CHECK, OtherTrain(), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "distribution_shift")
    assert {name.split()[0] for name in finding.examples} == {"train", "val"}


def test_splits_that_are_too_small_are_not_compared(tmp_path: Path) -> None:
    class Tiny(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            pictures, numbers = draw(split)
            return labelled(pictures[:12] + list(Split).index(split), numbers[:12])

    assert look(distribution.CHECK, Tiny(), tmp_path).outcome is Outcome.NOT_APPLICABLE


# --- labels and inputs


class Rolled(SoundPictures):
    """Every label belongs to the previous picture, in train only, without a validation split."""

    def data(self, split: Split) -> Any:
        if split is not Split.TRAIN:
            return None
        pictures, numbers = draw(split)
        return labelled(pictures, numbers.roll(1))


class ValApart(SoundPictures):
    """Validation labels are shuffled separately."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(4))
        return labelled(pictures, numbers[order] if split is Split.VAL else numbers)


class Renumbered(SoundPictures):
    """Validation numbers its classes in another order."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        names = torch.tensor([1, 2, 3, 0])
        return labelled(pictures, names[numbers] if split is Split.VAL else numbers)


class AllApart(SoundPictures):
    """Labels of all splits are shuffled separately; only clusters of pictures show it."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        order = torch.randperm(len(numbers), generator=torch.Generator().manual_seed(4))
        return labelled(pictures, numbers[order])


class MovesInputs(SoundPictures):
    """Augmentation that rolls pictures through the batch."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        return batch._replace(inputs=batch.inputs.roll(1, dims=0))


@pytest.mark.parametrize(
    ("kind", "outcome", "word"),
    [
        (Rolled, Outcome.FAILED, "1 row before"),
        (ValApart, Outcome.FAILED, "a probe fitted to validation fails too"),
        (Renumbered, Outcome.FAILED, "number their classes differently"),
        (AllApart, Outcome.WARNED, "clusters"),
        (MovesInputs, Outcome.FAILED, "augment"),
    ],
)
def test_labels_that_do_not_match_inputs(
    kind: type[Task], outcome: Outcome, word: str, tmp_path: Path
) -> None:
    finding = look(label_alignment.CHECK, kind(), tmp_path)
    assert (finding.fault, finding.outcome) == ("labels_misaligned", outcome), finding
    assert word in finding.evidence


def test_a_batch_that_moves_as_a_whole_is_fine(tmp_path: Path) -> None:
    class MovesBoth(SoundPictures):
        def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
            return Batch(batch.inputs.roll(1, 0), batch.targets.roll(1, 0), batch.ids)

    assert look(label_alignment.CHECK, MovesBoth(), tmp_path).outcome is Outcome.PASSED


# --- random reading


class _Stream(IterableDataset[Any]):
    def __len__(self) -> int:
        return 128

    def __iter__(self) -> Any:
        pictures, numbers = draw(Split.VAL)
        return ((pictures[row], numbers[row]) for row in torch.randperm(len(numbers)))


def test_a_validation_stream_that_is_reshuffled_is_reported(tmp_path: Path) -> None:
    class Shuffled(SoundPictures):
        def data(self, split: Split) -> Any:
            return _Stream() if split is Split.VAL else super().data(split)

    finding = look(validation_repeats.CHECK, Shuffled(), tmp_path)
    assert finding.fault == "augmented_validation"


def flip_all(self: SoundPictures, batch: Batch, *, seed: int, epoch: int) -> Batch:
    is_flipped = torch.rand((), generator=torch.Generator().manual_seed(seed + epoch)) < 0.5
    return batch._replace(inputs=batch.inputs.flip(-1)) if is_flipped else batch


def flip_each(self: SoundPictures, batch: Batch, *, seed: int, epoch: int) -> Batch:
    draws = [
        torch.rand((), generator=torch.Generator().manual_seed(seed + 77 * epoch + int(row)))
        for row in batch.ids
    ]
    mask = (torch.stack(draws) < 0.5).view(-1, 1, 1, 1)
    return batch._replace(inputs=torch.where(mask, batch.inputs.flip(-1), batch.inputs))


def scale(self: SoundPictures, batch: Batch, *, seed: int, epoch: int) -> Batch:
    return batch._replace(inputs=batch.inputs * 0.9)


@pytest.mark.parametrize(
    ("augment", "is_found"), [(flip_all, True), (flip_each, False), (scale, False)]
)
def test_augmentation_draws_for_each_example(augment: Any, is_found: bool, tmp_path: Path) -> None:
    task = type("Augmenting", (SoundPictures,), {"augment": augment})()
    assert look(worker_draws.CHECK, task, tmp_path).is_alarm is is_found


def test_draws_from_the_global_state_differ_between_workers(tmp_path: Path) -> None:
    class Global(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, row: int) -> Any:
            return torch.from_numpy(np.random.normal(size=(3, 12, 12))).float(), row % 4

    class Noisy(SoundPictures):
        def data(self, split: Split) -> Source | Any | None:
            return Global() if split is Split.TRAIN else super().data(split)

    finding = look(worker_draws.CHECK, Noisy(), tmp_path)
    assert finding.outcome is Outcome.PASSED
    assert finding.numbers["num_different"] == 8


# --- inputs that come along unread


class Indexed(SoundPictures):
    """Each example includes its row number; splits differ in size."""

    def data(self, split: Split) -> Dataset[Any]:
        pictures, numbers = draw(split)
        num = {Split.TRAIN: 256, Split.VAL: 64, Split.TEST: 128}[split]
        return Rows(pictures[:num], numbers[:num])

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures = batch.inputs["picture"]
        return F.cross_entropy(model(pictures), batch.targets, reduction="none")


class IndexRead(Indexed):
    """The same, and the loss reads the row number."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return super().loss(model, batch) + 1e-3 * batch.inputs["row"]


class Rows(Dataset[Any]):
    def __init__(self, pictures: Tensor, numbers: Tensor) -> None:
        self.pictures, self.numbers = pictures, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> Any:
        return {"picture": self.pictures[row], "row": row}, self.numbers[row]


def test_an_index_that_the_loss_never_reads_does_not_distinguish_splits(tmp_path: Path) -> None:
    finding = look(distribution.CHECK, Indexed(), tmp_path)
    assert finding.outcome is Outcome.PASSED, finding
    assert look(distribution.CHECK, IndexRead(), tmp_path).fault == "distribution_shift"

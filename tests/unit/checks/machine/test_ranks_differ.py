"""What ranks must have in common, and what must differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from stepladder.checks.examples import Example, SoundPictures, draw
from stepladder.checks.job import CheckedJob, open_job
from stepladder.checks.machine import ranks, ranks_differ
from stepladder.checks.machine.ranks import alike, views_of
from stepladder.checks.optimisation import reproducible
from stepladder.checks.run import run_check
from stepladder.config.choices import OrderMode, Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.order.order import Order
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task
from stepladder.task.load import load_task, name_of

Item = tuple[Tensor, Tensor]


def job_of(task: Task, folder: Path, name: str = "example") -> CheckedJob:
    return open_job(Example(task=task).config(folder), task, task_name=name)


def look(task: Task, folder: Path) -> Finding:
    return run_check(ranks_differ.CHECK, job_of(task, folder))


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


class Seeded(SoundPictures):
    """Weights seeded with the rank."""

    def build_model(self, recipe: Recipe) -> nn.Module:
        torch.manual_seed(recipe.seed + rank())
        return super().build_model(recipe)


def test_weights_of_their_own_are_an_error_where_there_are_several_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    finding = look(Seeded(), tmp_path)
    assert finding.outcome is Outcome.FAILED
    assert finding.fault == "ranks_differ"
    assert "6 of 6 initial weights" in finding.evidence
    assert (os.environ["WORLD_SIZE"], os.environ["RANK"]) == ("4", "3")


def test_weights_that_no_seed_reaches_are_left_to_another_check(tmp_path: Path) -> None:
    class Unseeded(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            model = super().build_model(recipe)
            weight = next(model.parameters())
            drawn = np.random.default_rng().normal(size=tuple(weight.shape))
            weight.data.copy_(torch.from_numpy(drawn))
            return model

    finding = look(Unseeded(), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE
    assert "see the check `seeds`" in finding.evidence


def shard(pictures: Tensor, labels: Tensor) -> Dataset[Any]:
    return TensorDataset(pictures[rank() :: 2][rank() :], labels[rank() :: 2][rank() :])


def other_rows(pictures: Tensor, labels: Tensor) -> Dataset[Any]:
    return TensorDataset(pictures.roll(rank(), 0), labels.roll(rank(), 0))


def other_classes(pictures: Tensor, labels: Tensor) -> Dataset[Any]:
    return TensorDataset(pictures, (labels + rank()) % 4)


class Stream(IterableDataset[Item]):
    """Every second example, for a loader that does not split batches by rank."""

    def __init__(self, pictures: Tensor, labels: Tensor) -> None:
        self.items = list(zip(pictures, labels, strict=True))[rank() :: 2]

    def __len__(self) -> int:
        return 128

    def __iter__(self) -> Any:
        return iter(self.items)


@pytest.mark.parametrize(
    ("make", "wrong", "words"),
    [
        (shard, Split.TRAIN, "examples and rank 1 has "),
        (shard, Split.VAL, "examples and rank 1 has "),
        (other_rows, Split.TRAIN, "16 of 16 compared examples have different inputs"),
        (other_classes, Split.VAL, "16 of 16 compared examples have different targets"),
        (Stream, Split.TRAIN, "16 of 16 compared examples have different inputs"),
    ],
)
def test_data_must_be_the_same_on_all_ranks(
    make: Callable[[Tensor, Tensor], Dataset[Any]], wrong: Split, words: str, tmp_path: Path
) -> None:
    class ByRank(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            return make(*draw(split)) if split is wrong else super().data(split)

    finding = look(ByRank(), tmp_path)
    assert finding.fault == "ranks_differ"
    assert finding.outcome is Outcome.WARNED
    assert f"data({wrong.value})" in finding.evidence
    assert words in finding.evidence


# --- random draws


class Noisy(Dataset[Item]):
    """Pictures with noise from some generator."""

    def __init__(self, noise: Callable[[int, int], np.ndarray]) -> None:
        self.pictures, self.labels = draw(Split.TRAIN)
        self.noise, self.num_read = noise, [0] * len(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Item:
        self.num_read[row] += 1
        noise = self.noise(row, self.num_read[row])
        return self.pictures[row] + torch.from_numpy(noise).float(), self.labels[row]


def noisy(make: Callable[[], Callable[[int, int], np.ndarray]]) -> SoundPictures:
    class WithNoise(SoundPictures):
        def data(self, split: Split) -> Dataset[Any]:
            return Noisy(make()) if split is Split.TRAIN else super().data(split)

    return WithNoise()


SHAPE = (3, 12, 12)


def of_one_seed() -> Callable[[int, int], np.ndarray]:
    random = np.random.default_rng(0)
    return lambda _row, _count: random.normal(size=SHAPE)


def of_row_and_count() -> Callable[[int, int], np.ndarray]:
    return lambda row, count: np.random.default_rng((row, count)).normal(size=SHAPE)


def of_the_global_state() -> Callable[[int, int], np.ndarray]:
    return lambda _row, _count: np.random.normal(size=SHAPE)


def of_the_system() -> Callable[[int, int], np.ndarray]:
    random = np.random.default_rng()
    return lambda _row, _count: random.normal(size=SHAPE)


def test_a_generator_of_one_seed_draws_alike_on_every_rank(tmp_path: Path) -> None:
    finding = look(noisy(of_one_seed), tmp_path)
    assert finding.fault == "seeds_wrong"
    assert finding.outcome is Outcome.WARNED
    assert "read one example 8 times" in finding.evidence


@pytest.mark.parametrize("make", [of_row_and_count, of_the_global_state, of_the_system])
def test_draws_of_each_rank_or_each_example_are_sound(
    make: Callable[[], Callable[[int, int], np.ndarray]], tmp_path: Path
) -> None:
    finding = look(noisy(make), tmp_path)
    assert finding.outcome is Outcome.PASSED, finding


@pytest.mark.parametrize(("by_id", "fault"), [(False, "seeds_wrong"), (True, None)])
def test_augmentation_must_draw_by_example(by_id: bool, fault: str | None, tmp_path: Path) -> None:
    class Augmented(SoundPictures):
        def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
            places = batch.ids.tolist() if by_id else range(len(batch.ids))
            noise = [
                torch.randn(SHAPE, generator=torch.Generator().manual_seed(7 * p + seed + epoch))
                for p in places
            ]
            return batch._replace(inputs=batch.inputs + torch.stack(noise))

    finding = look(Augmented(), tmp_path)
    assert finding.fault == fault, finding
    assert finding.is_alarm is (fault is not None)


# --- processes

TASK = """
import torch
from torch.utils.data import TensorDataset
from stepladder.checks.examples import SoundPictures, draw

NAMES = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "jay", "kid", "lamb", "mole"]


class Animals(SoundPictures):
    def data(self, split):
        pictures, _ = draw(split)
        kinds = {order}(set(NAMES))
        labels = [kinds.index(NAMES[row % 12]) % 4 for row in range(len(pictures))]
        return TensorDataset(pictures, torch.tensor(labels))
"""


def animals(folder: Path, order: str) -> CheckedJob:
    """Return the job of a Task in a file, as the command line does."""
    file = folder / "animals.py"
    file.write_text(TASK.replace("{order}", order))
    name = f"{file}:Animals"
    return job_of(load_task(name, store=folder), folder, name)


@pytest.mark.parametrize(("order", "fault"), [("list", "ranks_differ"), ("sorted", None)])
def test_an_order_that_differs_by_process_is_found_where_the_task_is_in_a_file(
    order: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    job = animals(tmp_path, order)
    finding = run_check(ranks_differ.CHECK, job)
    assert finding.fault == fault, finding
    assert finding.outcome is (Outcome.PASSED if fault is None else Outcome.WARNED)
    if fault is not None:
        assert "different targets in rank 1" in finding.evidence
        assert run_check(reproducible.CHECK, job).fault == "not_reproducible"


def test_without_forks_a_task_in_a_file_is_checked_in_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "can_fork", lambda: False)  # as when CUDA is in use
    assert look(SoundPictures(), tmp_path).outcome is Outcome.NOT_APPLICABLE
    first, second = views_of(animals(tmp_path, "list"), 0, num_looks=2)
    assert first == second, "the order is stable within a process"
    assert len(first.data["train"].targets) == 16


def test_a_fresh_process_that_fails_says_why(tmp_path: Path) -> None:
    job = animals(tmp_path, "sorted")
    with (tmp_path / "animals.py").open("a") as file:
        file.write("\nraise OSError('no such disk')\n")
    with pytest.raises(RuntimeError, match=r"as rank 1: UsageError: .*no such disk"):
        views_of(job, 1, fresh=True)


def test_a_task_created_in_python_is_not_created_again_from_its_file(tmp_path: Path) -> None:
    made = SoundPictures()
    assert not ranks.has_file(job_of(made, tmp_path, name_of(made)))
    assert ranks.has_file(animals(tmp_path, "sorted"))


def test_a_task_that_waits_for_the_others_could_not_be_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Joined(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            if int(os.environ.get("WORLD_SIZE", "1")) > 1:
                dist.init_process_group("gloo")
            return super().build_model(recipe)

    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29555")
    finding = look(Joined(), tmp_path)
    assert finding.outcome is Outcome.COULD_NOT_RUN
    assert "MASTER_ADDR" in finding.evidence


def test_a_rank_that_dies_is_reported(tmp_path: Path) -> None:
    class Dying(SoundPictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            if os.environ.get("RANK") == "1":
                os._exit(3)
            return super().build_model(recipe)

    finding = look(Dying(), tmp_path)
    assert finding.outcome is Outcome.COULD_NOT_RUN
    assert "rank 1 exited without a message" in finding.evidence


# --- arithmetic


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_each_example_of_an_epoch_goes_to_one_rank(size: int) -> None:
    order = Order(seed=1, num_examples=33, mode=OrderMode.GLOBAL, fingerprint="f")
    counts = ranks_differ.given(order, size, 33)
    assert counts.tolist() == [1] * 33


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ((1.0, 2.0), (1.0, 2.0 + 1e-7), True),
        ((1.0, float("nan")), (1.0, float("nan")), True),
        ((), (), True),
        ((1.0,), (1.0, 1.0), False),
        ((3.0, 90_000.0), (4.0, 90_000.0), False),
        ((0.5, float("inf")), (0.6, float("inf")), False),
    ],
)
def test_numbers_are_compared_but_for_rounding(
    a: tuple[float, ...], b: tuple[float, ...], same: bool
) -> None:
    assert alike(a, b) is same

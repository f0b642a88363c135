"""Cost of checkpoints: real saves that leave nothing, and how many a training makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from torch import Tensor

from stepladder.config.choices import TrainMode
from stepladder.config.recipe import Recipe
from stepladder.measuring import saving
from stepladder.measuring.saving import SaveTimes, checkpoints_s, measure_saves
from stepladder.measuring.subject import Subject
from stepladder.records.profile import TrainingTime
from stepladder.task import Task
from stepladder.training.checkpoint.checkpoint import Checkpoints, SavedInfo

Open = Callable[[Recipe, Task], AbstractContextManager[Subject]]


@pytest.fixture(name="saved")
def record_saves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, set[str], set[str]]]:
    """Return the names of all saves, with the weights in each and the frozen ones next to them."""
    found: list[tuple[str, set[str], set[str]]] = []
    save = Checkpoints.save

    def noted(
        self: Checkpoints,
        name: str,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, object],
        frozen: Mapping[str, Tensor],
    ) -> SavedInfo:
        found.append((name.partition("-")[0], set(tensors["model"]), set(frozen)))
        return save(self, name, tensors, state, frozen)  # type: ignore[arg-type]

    monkeypatch.setattr(Checkpoints, "save", noted)
    return found


@pytest.mark.parametrize(("slow_s", "num_commits"), [(1e9, 2), (0.0, 1)], ids=["fast", "slow"])
def test_a_commit_is_saved_twice_unless_it_is_slow_and_nothing_is_left(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    open_on: Open,
    tmp_path: Path,
    saved: list[tuple[str, set[str], set[str]]],
    monkeypatch: pytest.MonkeyPatch,
    slow_s: float,
    num_commits: int,
) -> None:
    monkeypatch.setattr(saving, "_SLOW_S", slow_s)
    with open_on(recipe(), pictures()) as subject:
        found = measure_saves(subject, tmp_path)
    assert found is not None
    assert found.first_s > 0
    assert found.later_s > 0
    assert (found.first_s == found.later_s) == (num_commits == 1), "one is used for both"
    assert list(tmp_path.iterdir()) == []
    assert [kind for kind, *_ in saved] == ["step", "best"] * num_commits
    for _, learned, frozen in saved:
        assert learned == {"head.1.weight", "head.1.bias"}
        assert "trunk.0.weight" in frozen


def test_all_weights_are_saved_where_all_learn_and_no_best_ones_without_validation(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    open_on: Open,
    tmp_path: Path,
    saved: list[tuple[str, set[str], set[str]]],
) -> None:
    with open_on(recipe(train=TrainMode.ALL), pictures(num_val=0)) as subject:
        assert measure_saves(subject, tmp_path) is not None
    assert [kind for kind, *_ in saved] == ["step"] * 2
    assert saved[0][1] >= {"head.1.weight", "trunk.0.weight"}
    assert saved[0][2] == set()


def test_without_a_folder_or_room_nothing_is_saved(
    pictures: Callable,
    recipe: Callable[..., Recipe],
    open_on: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: list[tuple[str, set[str], set[str]]],
) -> None:
    with open_on(recipe(), pictures()) as subject:
        assert measure_saves(subject, tmp_path / "not there") is None
        monkeypatch.setattr(saving, "disk_free_bytes", lambda _: 1)
        assert measure_saves(subject, tmp_path) is None
    assert saved == []
    assert list(tmp_path.iterdir()) == []


SAVES = SaveTimes(first_s=3.0, later_s=0.5)
TIME = TrainingTime(
    one_time_s={"features": 500.0},
    epochs=10.0,
    steps_per_epoch=100.0,
    step_s=0.3,
    num_validations=10.0,
    validation_s=1.0,
)
"""310 s of steps and validations."""


@pytest.mark.parametrize(
    ("every_s", "num_later"),
    [
        (None, 0),
        (60.0, 5),
        (1000.0, 0),
        (1.0, 12),  # if saves would take more than 2 %, they are 25 s apart
        (0.0, 999),  # after every step, the last one at the end
    ],
)
def test_saves_go_by_the_clock_and_one_is_at_the_end(every_s: float | None, num_later: int) -> None:
    assert checkpoints_s(SAVES, TIME, every_s=every_s) == 3.0 + num_later * 0.5

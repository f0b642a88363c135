"""Decisions about a training stage that depend only on its position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from stepladder.config.choices import ScheduleKind, TrainMode
from stepladder.config.recipe import Recipe, ScheduleConfig, StoppingConfig
from stepladder.data.reading.datasets import as_source
from stepladder.data.reading.reader import Reader
from stepladder.training.course import Course
from stepladder.training.stage import Stage
from stepladder.training.stopping import ValidationRule


def make_course(*, stopping: StoppingConfig | None = None, **schedule: Any) -> Course:
    """Return a course of ten examples in batches of four: three steps per epoch."""
    reader = Reader(
        as_source(TensorDataset(torch.zeros(10, 1), torch.zeros(10))),
        seed=0,
        global_batch_size=4,
    )
    stopping = stopping or StoppingConfig(early=False)
    return Course(
        recipe=Recipe(schedule=ScheduleConfig(**schedule), stopping=stopping),
        stage=Stage(learns=TrainMode.HEAD, lr=0.5),
        train_reader=reader,
        val_reader=reader,
        rule=ValidationRule(stopping),
    )


def walk(course: Course) -> tuple[list[int], int, str]:
    """Step to the end; return the steps after which a validation is due, their number, and why."""
    due = []
    for step in range(1, 100):
        sizes = (4, 4, 2)
        is_epoch_end = course.count(sizes[(step - 1) % 3])
        assert is_epoch_end == (step % 3 == 0)
        if course.is_validation_due(is_epoch_end):
            due.append(step)
        if (reason := course.reason_to_stop()) is not None:
            return due, step, reason
    raise AssertionError("it never ends")


@pytest.mark.parametrize(
    ("stopping", "schedule", "wanted"),
    [
        ({}, {"max_epochs": 2}, ([3, 6], 6, "max_epochs")),
        ({"validate_every_epochs": 2}, {"max_epochs": 5}, ([6, 12], 15, "max_epochs")),
        ({"validate_every_steps": 2}, {"max_steps": 5}, ([2, 4], 5, "max_steps")),
        ({}, {"max_epochs": 1, "max_steps": 3}, ([3], 3, "max_epochs")),
    ],
)
def test_validations_and_the_end_follow_from_the_steps_taken(
    stopping: dict[str, Any], schedule: dict[str, Any], wanted: tuple[list[int], int, str]
) -> None:
    course = make_course(stopping=StoppingConfig(early=False, **stopping), **schedule)
    assert walk(course) == wanted


def test_steps_counted_at_once_lead_where_single_ones_do() -> None:
    one, many = make_course(max_epochs=9), make_course(max_epochs=9)
    assert [one.count(size) for size in (4, 4, 2, 4)][2]
    assert many.count(10, num_steps=3)
    assert not many.count(4)
    assert many.position == one.position
    assert (many.position.step, many.position.epoch, many.position.offset) == (4, 1, 4)


def test_without_a_validation_split_none_is_due() -> None:
    course = make_course(max_epochs=2)
    course.val_reader = None
    assert walk(course) == ([], 6, "max_epochs")


def test_the_rate_is_that_of_the_next_step() -> None:
    course = make_course(max_epochs=2, kind=ScheduleKind.COSINE, warmup_steps=2)
    assert course.lr() == 0.25
    course.count(4)
    assert course.lr() == 0.5 == course.lr_at(1)

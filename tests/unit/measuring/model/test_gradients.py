"""When a backward pass has the gradients of the trained weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from stepladder.config.choices import TrainMode
from stepladder.measuring.model.gradients import grouped, measure_gradients
from stepladder.measuring.subject import Subject
from stepladder.records.profile import Gradient

Opened = Callable[..., AbstractContextManager[Subject]]


def test_gradients_of_all_weights_are_known_in_the_end(
    open_on: Opened, recipe: Callable[..., Any], pictures: type[Any]
) -> None:
    with open_on(recipe(train=TrainMode.ALL), pictures()) as subject:
        before = {name: value.clone() for name, value in subject.model.state_dict().items()}
        found = measure_gradients(subject)
        weights = [one for one in subject.model.parameters() if one.requires_grad]
        after = subject.model.state_dict()
    assert sum(one.num_bytes for one in found) == sum(one.nbytes for one in weights)
    places = [one.ready_frac for one in found]
    assert places == sorted(places)
    assert (places[0] < 1, places[-1]) == (True, 1)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(weight.grad is None for weight in weights)


def test_gradients_that_are_known_almost_at_once_are_one() -> None:
    found = grouped([(4, 0.10), (8, 0.101), (2, 0.5), (1, 1.0)])
    assert found == (
        Gradient(num_bytes=12, ready_frac=0.101),
        Gradient(num_bytes=2, ready_frac=0.5),
        Gradient(num_bytes=1, ready_frac=1.0),
    )
    assert grouped([]) == ()

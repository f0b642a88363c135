"""Functions timed in turn."""

from __future__ import annotations

import torch

from stepladder.measuring.blocks.timing import lower_median, seconds_of, time_in_turn

CPU = torch.device("cpu")


def test_functions_take_turns_after_a_round_that_does_not_count() -> None:
    calls: list[str] = []
    functions = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    times = time_in_turn(functions, CPU, budget_s=0.0, min_rounds=3)
    assert calls == list("abababab")
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_rounds_end_at_the_most_that_is_asked_for() -> None:
    times = time_in_turn({"a": lambda: None}, CPU, budget_s=60.0, max_rounds=4)
    assert len(times["a"]) == 4


def test_the_slower_half_does_not_count() -> None:
    assert lower_median([9.0, 1.0, 3.0, 100.0]) == 2.0  # of 1 and 3
    assert lower_median([9.0, 1.0, 3.0]) == 2.0  # of 1 and 3
    assert lower_median([5.0]) == 5.0


def test_the_time_of_one_call_is_positive() -> None:
    assert seconds_of(lambda: sum(range(1000)), CPU) > 0

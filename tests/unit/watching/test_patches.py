"""Wrappers of the same attribute, installed and removed in any order, and the script's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from stepladder.watching.hooks.patches import Patches, Switch


class Parent:
    def double(self, value: int) -> int:
        return 2 * value


class Child(Parent): ...


@pytest.fixture
def switch() -> Switch:
    switch = Switch()
    switch.is_on = True
    return switch


def counting(switch: Switch, owner: Any, name: str = "double") -> tuple[Patches, list[int]]:
    calls: list[int] = []
    patches = Patches(switch)
    patches.wrap(owner, name, before=lambda args, _: calls.append(args[-1]))
    return patches, calls


@pytest.mark.parametrize("owner", [Parent, Child])
@pytest.mark.parametrize("is_first_removed_first", [True, False])
def test_two_wrappers_leave_nothing_in_any_order(
    switch: Switch, owner: type, is_first_removed_first: bool
) -> None:
    before = dict(vars(owner))
    first, calls = counting(switch, owner)
    second, others = counting(switch, owner)
    assert Child().double(1) == 2
    assert (calls, others) == ([1], [1])
    one, other = (first, second) if is_first_removed_first else (second, first)
    one.lay_down()
    assert Child().double(2) == 4
    assert (2 in calls) is not is_first_removed_first
    assert (2 in others) is is_first_removed_first
    other.lay_down()
    assert dict(vars(owner)) == before
    other.take_up()
    one.take_up()
    assert Child().double(3) == 6
    assert (calls.count(3), others.count(3)) == (1, 1)
    one.undo()
    other.undo()
    assert dict(vars(owner)) == before


def test_a_wrapper_under_another_one_is_put_back_once(switch: Switch) -> None:
    first, calls = counting(switch, Parent)
    second, _ = counting(switch, Parent)
    for _ in range(3):
        first.lay_down()
        first.take_up()
    assert Parent().double(1) == 2
    assert calls == [1]
    first.undo()
    second.undo()


@pytest.mark.parametrize("is_class", [True, False])
def test_a_wrapper_of_the_script_stays(switch: Switch, is_class: bool) -> None:
    owner: Any = type("Own", (Parent,), {}) if is_class else ModuleType("own")
    if not is_class:
        owner.double = lambda value: 2 * value
    patches, calls = counting(switch, owner)

    def wrapped(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def added(*args: Any) -> int:
            return function(*args) + 1

        return added

    owner.double = mine = wrapped(owner.double)
    call = owner().double if is_class else owner.double
    patches.lay_down()
    assert call(1) == 3
    assert calls == []
    patches.take_up()
    assert call(2) == 5
    assert calls == [2]
    patches.undo()
    assert owner.double is mine
    assert call(3) == 7
    assert calls == [2]

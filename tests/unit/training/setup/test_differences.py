"""Conditions that break bit-identity at a resume are reported; other data is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stepladder.errors import DataError
from stepladder.training.setup.attempt import Conditions, differences, refuse_other_classes

RUN = Path("runs/first")
OLD = Conditions(
    threads=2,
    world_size=1,
    device="cpu",
    instruction_set="x86_64 AVX2",
    data={"train": "aa", "val": "bb"},
    num_examples={"train": 20, "val": 5},
    versions={"torch": "2.13.0", "timm": "1.0.20"},
)


def test_the_same_conditions_have_no_differences_through_json() -> None:
    measured = Conditions.measure(
        device=torch.device("cpu"), world_size=1, data={"train": "aa"}, num_examples={"train": 9}
    )
    again = Conditions.from_state(json.loads(json.dumps(measured.to_state())))
    assert differences(again, measured, folder=RUN) == []
    assert measured.threads == torch.get_num_threads()
    assert measured.versions["torch"] == torch.__version__


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (replace(OLD, threads=4), ["threads 2 -> 4"]),
        (replace(OLD, world_size=2), ["world size 1 -> 2"]),
        (replace(OLD, device="NVIDIA H100"), ["device cpu -> NVIDIA H100"]),
        (
            replace(OLD, instruction_set="x86_64 AVX512"),
            ["instruction set x86_64 AVX2 -> x86_64 AVX512"],
        ),
        (
            replace(OLD, versions={"torch": "2.15.0", "new": "1"}),
            ["new none -> 1", "timm 1.0.20 -> none", "torch 2.13.0 -> 2.15.0"],
        ),
    ],
)
def test_each_difference_is_said(new: Conditions, said: list[str]) -> None:
    assert differences(OLD, new, folder=RUN) == said


@pytest.mark.parametrize("data", [{"train": "xx", "val": "bb"}, {"train": "aa"}, {}], ids=str)
def test_other_data_is_refused_unless_accepted(data: dict[str, str]) -> None:
    new = replace(OLD, data=data)
    with pytest.raises(DataError, match="--accept-new-data"):
        differences(OLD, new, folder=RUN)
    said = differences(OLD, new, folder=RUN, accept_new_data=True)
    assert said
    assert all(sentence.startswith("data ") for sentence in said)


def test_other_data_is_told_in_examples() -> None:
    new = replace(OLD, data={"train": "f" * 64}, num_examples={"train": 24})
    with pytest.raises(DataError) as caught:
        differences(OLD, new, folder=RUN)
    assert caught.value.why == (
        "data train: 20 examples (aa) -> 24 examples (ffffffffffff)\n"
        "  data val: 5 examples (bb) -> none"
    )


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (["a", "c", "b"], ["1: b -> c", "2: c -> b"]),
        (["a", "b", "c", "d"], ["3: none -> d"]),
        (["a", "b"], ["2: c -> none"]),
    ],
    ids=["order", "more", "fewer"],
)
def test_classes_of_another_name_or_place_are_refused(now: list[str], told: list[str]) -> None:
    old = {"classes": ["a", "b", "c"]}
    refuse_other_classes(old, {"classes": ["a", "b", "c"]})
    refuse_other_classes(old, {"size": 8})
    with pytest.raises(DataError, match="classes of the data have changed") as caught:
        refuse_other_classes(old, {"classes": now})
    assert caught.value.why is not None
    assert caught.value.why.split("\n  ") == told


def test_a_state_without_conditions_is_refused_by_name() -> None:
    state = OLD.to_state()
    del state["threads"]
    with pytest.raises(DataError, match="threads"):
        Conditions.from_state(state)

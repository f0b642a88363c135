"""Held-out pictures that nearly equal one of train, none of them an exact copy."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from stepladder.checks.data import duplicates
from stepladder.checks.examples import Example, labelled
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Split
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task

NUM_CLASSES = 4
NUM = {Split.TRAIN: 100, Split.VAL: 40, Split.TEST: 40}
HEIGHT, WIDTH = 60, 80
PAIRS = {3: 17, 9: 40, 20: 90}  # held-out row: train row

Pixels = NDArray[np.float64]
Pictures = dict[Split, list[Pixels]]


def scene(seed: int) -> Pixels:
    """Draw a coarse scene (h, w, 3), like a blurred photograph of a place."""
    coarse = np.random.default_rng(seed).uniform(20, 235, size=(6, 8, 3))
    return np.kron(coarse, np.ones((10, 10, 1)))


def all_different() -> Pictures:
    return {
        split: [scene(1000 * place + idx) for idx in range(NUM[split])]
        for place, split in enumerate(Split)
    }


@dataclass
class Scenes(Task):
    """Pictures (n, 3, h, w) of scenes; rows 0 and 1 are of one class, and so on."""

    pictures: Pictures = field(default_factory=all_different)
    is_float: bool = False

    def build_model(self, recipe: Recipe) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * HEIGHT * WIDTH, NUM_CLASSES))

    def data(self, split: Split) -> Dataset[Any]:
        pixels = np.stack(self.pictures[split]).round().clip(0, 255).astype(np.uint8)
        inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        if self.is_float:
            inputs = (inputs.float() / 255 - 0.45) / 0.22
        return labelled(inputs, torch.arange(len(inputs)) // 2 % NUM_CLASSES)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        scores = model(batch.inputs.float())
        return F.cross_entropy(scores, batch.targets, reduction="none")


def look(task: Task, folder: Path) -> Finding:
    job = open_job(Example(task=task).config(folder), task, task_name="example")
    return run_check(duplicates.CHECK, job)


def with_copies(
    change: Callable[[Pixels], Pixels], *, split: Split = Split.VAL, pairs: dict[int, int] = PAIRS
) -> Pictures:
    """Put transformed copies of training pictures into a held-out split."""
    pictures = all_different()
    for row, other in pairs.items():
        pictures[split][row] = change(pictures[Split.TRAIN][other])
    return pictures


def named(split: Split) -> tuple[str, ...]:
    return tuple(f"{split.value} row {row} = train row {other}" for row, other in PAIRS.items())


# --- transformations of a copy


def noisy(pixels: Pixels) -> Pixels:
    return pixels + np.random.default_rng(5).normal(0, 5, size=pixels.shape)


def moved(pixels: Pixels) -> Pixels:
    return np.roll(pixels, 1, axis=1)


def darker(pixels: Pixels) -> Pixels:
    return 0.9 * pixels


def saved_again(pixels: Pixels) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels.round().astype(np.uint8)).save(file, "JPEG", quality=60)
    return np.asarray(Image.open(file), dtype=np.float64)


@pytest.mark.parametrize(
    ("change", "split", "is_float"),
    [
        (noisy, Split.VAL, False),
        (noisy, Split.TEST, True),
        (moved, Split.VAL, True),
        (darker, Split.TEST, False),
        (saved_again, Split.VAL, False),
    ],
)
def test_a_changed_copy_is_named_with_the_picture_it_is_of(
    change: Callable[[Pixels], Pixels], split: Split, is_float: bool, tmp_path: Path
) -> None:
    finding = look(Scenes(with_copies(change, split=split), is_float=is_float), tmp_path)
    assert (finding.outcome, finding.fault) == (Outcome.WARNED, "split_leakage"), finding
    assert finding.examples == named(split)
    assert finding.numbers == {"num_near": 3, "num_held_out": NUM[split]}
    assert [pair.names for pair in finding.pictures] == [
        tuple(name.split(" = ")) for name in named(split)
    ]
    first = finding.pictures[0].jpegs[1]
    with Image.open(io.BytesIO(base64.b64decode(first))) as image:
        assert image.size == (WIDTH, HEIGHT)
    assert f"3 of 40 pictures of {split.value}" in finding.evidence


def test_different_pictures_are_not_near(tmp_path: Path) -> None:
    for task in (Scenes(), Scenes(is_float=True)):
        finding = look(task, tmp_path)
        assert finding.outcome is Outcome.PASSED, finding


def test_one_that_is_near_is_too_few_to_speak_of(tmp_path: Path) -> None:
    finding = look(Scenes(with_copies(noisy, pairs={3: 17})), tmp_path)
    assert finding.outcome is Outcome.PASSED, finding

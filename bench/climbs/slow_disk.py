"""A Task whose pictures arrive slowly, as from a slow disk."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepladder.config.choices import Split
from stepladder.data.store.store import StoreSplit
from stepladder.task.image_classification import ImageClassification

DISK_S = 0.008
"""Simulated delay per picture: about a seek of a spinning disk."""


class SlowPictures(Dataset[tuple[Tensor, int]]):
    """A split of a store, read with a delay of DISK_S per picture."""

    def __init__(self, split: StoreSplit) -> None:
        self.split = split
        self.targets = torch.tensor(split.labels)
        self.fingerprint = f"slow {split.fingerprint}"

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        time.sleep(DISK_S)
        pixels = torch.from_numpy(self.split.picture(row).copy())
        return pixels.permute(2, 0, 1), int(self.targets[row])


class SlowDisk(ImageClassification):
    """Image classification on a store that is read with a delay."""

    def __init__(self, store: str) -> None:
        super().__init__(store)

    def data(self, split: Split) -> SlowPictures | None:  # type: ignore[override]
        pictures = self.store.split(split)
        return None if pictures is None else SlowPictures(pictures)

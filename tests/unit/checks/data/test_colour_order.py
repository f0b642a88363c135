"""Color order of examples, compared with the files that they come from."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from stepladder.checks.data import colour_order
from stepladder.checks.data.colour_order import compare
from stepladder.checks.evidence.picture_files import colours, origins
from stepladder.checks.examples import NUM_CLASSES, Example, SoundPictures, sound_recipe
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Encoding, Split, TrainMode
from stepladder.config.recipe import Recipe
from stepladder.data.batch import Batch
from stepladder.data.store.store import Store
from stepladder.records.findings import Finding, Outcome
from stepladder.task.contract import Task
from stepladder.task.image_classification import ImageClassification

NUM, SIDE = 40, 12
Build = Callable[..., dict[str, np.ndarray]]


def look(task: Task, folder: Path, recipe: Recipe | None = None) -> Finding:
    config = Example(task=task, recipe=recipe or sound_recipe()).config(folder)  # type: ignore[arg-type]
    return run_check(colour_order.CHECK, open_job(config, task, task_name="example"))


def drawn(split: Split, *, colour: float = 50.0) -> list[np.ndarray]:
    """Draw pictures, each of its own color; uint8 (h, w, 3)."""
    random = np.random.default_rng(list(Split).index(split))
    ground = 120 + random.normal(0, 20, (NUM, 1, 1, 1)) + random.normal(0, colour, (NUM, 1, 1, 3))
    pictures = ground + random.normal(0, 10, (NUM, SIDE, SIDE, 1))
    return list(pictures.clip(0, 255).astype(np.uint8))


class Listed(Dataset[tuple[Tensor, int]]):
    """A dataset that lists its files in one of the usual ways.

    Args:
        names: the files that it lists.
        pictures: the pictures that it returns, (h, w, 3) each.
    """

    def __init__(self, names: list[Any], pictures: list[np.ndarray], root: Path) -> None:
        self.entries, self.root = names, root
        self._pictures = np.stack(pictures)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        pixels = torch.from_numpy(self._pictures[row].astype(np.float32))
        return pixels.permute(2, 0, 1) / 60 - 2, row % NUM_CLASSES


class Wrapped(Dataset[tuple[Tensor, int]]):
    """A dataset that transforms another one."""

    def __init__(self, inner: Dataset[Any], change: Callable[[Tensor], Tensor]) -> None:
        self.inner, self.change = inner, change

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        picture, label = self.inner[row]
        return self.change(picture), label


def encoded(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def full_paths(paths: list[Path]) -> list[Any]:
    return paths


def with_labels(paths: list[Path]) -> list[Any]:
    return [(str(path), row % NUM_CLASSES) for row, path in enumerate(paths)]


def below_the_root(paths: list[Path]) -> list[Any]:
    return [path.name for path in paths]


def as_records(paths: list[Path]) -> list[Any]:
    return [{"label": 0, "path": str(path)} for path in paths]


def as_bytes(paths: list[Path]) -> list[Any]:
    return [path.read_bytes() for path in paths]


class Pictures(SoundPictures):
    """Pictures in files, as some dataset returns them."""

    def __init__(
        self,
        folder: Path,
        *,
        names: Callable[[list[Path]], list[Any]] = full_paths,
        wrap: Callable[[Dataset[Any]], Dataset[Any]] = lambda data: data,
        colour: float = 50.0,
    ) -> None:
        self.folder, self.names, self.wrap, self.colour = folder, names, wrap, colour

    def data(self, split: Split) -> Dataset[Any]:
        folder = self.folder / split.value
        folder.mkdir(exist_ok=True)
        pictures = drawn(split, colour=self.colour)
        paths = [folder / f"{row:02d}.png" for row in range(NUM)]
        for path, picture in zip(paths, pictures, strict=True):
            path.write_bytes(encoded(picture))
        return self.wrap(Listed(self.names(paths), pictures, folder))


def turned(data: Dataset[Any]) -> Dataset[Any]:
    return Wrapped(data, lambda picture: picture.flip(0))


# --- where file names are found


@pytest.mark.parametrize(
    ("names", "is_turned"),
    [
        (full_paths, False),
        (full_paths, True),
        (with_labels, True),
        (below_the_root, True),
        (as_records, True),
        (as_bytes, True),
    ],
)
def test_the_order_is_found_wherever_the_files_are_named(
    names: Callable[[list[Path]], list[Any]], is_turned: bool, tmp_path: Path
) -> None:
    wrap = turned if is_turned else (lambda data: data)
    finding = look(Pictures(tmp_path, names=names, wrap=wrap), tmp_path)
    assert finding.outcome is (Outcome.WARNED if is_turned else Outcome.PASSED), finding
    assert finding.fault == ("channel_order" if is_turned else None)
    assert int(str(finding.numbers["num_telling"])) >= 20


def test_subsets_and_concatenations_keep_their_files(tmp_path: Path) -> None:
    def wrap(data: Dataset[Any]) -> Dataset[Any]:
        odd, even = Subset(data, list(range(1, NUM, 2))), Subset(data, list(range(0, NUM, 2)))
        return turned(ConcatDataset([odd, even]))

    finding = look(Pictures(tmp_path, wrap=wrap), tmp_path)
    assert finding.fault == "channel_order"
    (origin,) = origins(ConcatDataset([Subset(Pictures(tmp_path).data(Split.VAL), [3, 7])] * 2))
    assert [Path(str(origin(row))).name for row in range(4)] == ["03.png", "07.png"] * 2


def test_normalisation_and_crops_do_not_matter(tmp_path: Path) -> None:
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.3, -0.2, 0.9], [0.5, 1.5, 4.0]))
    wrap = lambda data: Wrapped(turned(data), lambda x: ((x - mean) / std)[:, :9, :9])  # noqa: E731
    assert look(Pictures(tmp_path, wrap=wrap), tmp_path).fault == "channel_order"


@pytest.mark.parametrize("colour", [0.0, 1.0])
def test_grey_pictures_say_nothing(colour: float, tmp_path: Path) -> None:
    finding = look(Pictures(tmp_path, wrap=turned, colour=colour), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE


def test_files_of_other_pictures_say_nothing(tmp_path: Path) -> None:
    def wrap(data: Dataset[Any]) -> Dataset[Any]:
        assert isinstance(data, Listed)
        data.entries = data.entries[::-1]
        return data

    finding = look(Pictures(tmp_path, wrap=wrap), tmp_path)
    assert finding.outcome is Outcome.NOT_APPLICABLE


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(encoded(np.full((4, 4, 3), (10, 20, 30), dtype=np.uint8)))
    bad.write_bytes(b"\x89PNG is no picture")
    found = colours([good, bad, None].__getitem__, [0, 1, 2, 0], seconds=10)
    assert found[[0, 3]].tolist() == [[10, 20, 30]] * 2
    assert np.isnan(found[[1, 2]]).all()
    assert np.isnan(colours([good].__getitem__, [0], seconds=-1)).all()


# --- severity


def test_one_split_alone_is_an_error(tmp_path: Path) -> None:
    class Halves(Pictures):
        def data(self, split: Split) -> Dataset[Any]:
            data = super().data(split)
            return turned(data) if split is Split.TRAIN else data

    finding = look(Halves(tmp_path), tmp_path)
    assert finding.outcome is Outcome.FAILED
    assert "the other split is RGB" in finding.evidence


@pytest.mark.parametrize(
    ("learnt_with_red_first", "outcome"), [(True, Outcome.FAILED), (False, Outcome.PASSED)]
)
def test_what_pretrained_weights_have_seen_counts(
    learnt_with_red_first: bool, outcome: Outcome, tmp_path: Path
) -> None:
    """Blue first is right for weights trained with blue first, such as Caffe's."""

    class Pretrained(Pictures):
        def build_model(self, recipe: Recipe) -> nn.Module:
            data = self.data(Split.TRAIN)
            seen = torch.stack([data[row][0] for row in range(NUM)])  # blue first
            stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None))
            stem(seen.flip(1) if learnt_with_red_first else seen)
            head = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES)]
            return nn.Sequential(*stem, *head)

    finding = look(Pretrained(tmp_path, wrap=turned), tmp_path)
    assert finding.outcome is outcome, finding
    assert finding.fault == "channel_order"
    assert "BatchNorm" in finding.evidence


class Turning(ImageClassification):
    """The built-in Task, with colors permuted on the way to the model."""

    def augment(self, batch: Batch, *, seed: int, epoch: int) -> Batch:
        return super().augment(batch, seed=seed, epoch=epoch)._replace(inputs=batch.inputs.flip(1))


@pytest.mark.parametrize("kind", [ImageClassification, Turning])
@pytest.mark.parametrize("encoding", list(Encoding))
def test_rows_of_a_store_are_known(
    kind: type[ImageClassification], encoding: Encoding, build_store: Build, tmp_path: Path
) -> None:
    build_store(tmp_path / "store", num_rows={"train": 30, "val": 30}, size=16, encoding=encoding)
    recipe = sound_recipe(train=TrainMode.HEAD)
    finding = look(kind(Store.open(tmp_path / "store"), recipe), tmp_path, recipe)
    assert finding.outcome is (Outcome.FAILED if kind is Turning else Outcome.PASSED), finding


# --- the comparison


def simulated(num: int = 24) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    files = 128 + random.normal(0, 25, (num, 1)) + random.normal(0, 15, (num, 3))
    return (files + random.normal(0, 3, files.shape)) / 57 - 2, files


@pytest.mark.parametrize(
    ("change", "order"),
    [
        (lambda x: x, "rgb"),
        (lambda x: x[:, ::-1], "bgr"),
        (lambda x: x[:, [1, 0, 2]], "unknown"),
        (lambda x: -x, "unknown"),
        (lambda x: x.mean(axis=1, keepdims=True).repeat(3, axis=1), "unknown"),
        (lambda x: np.roll(x, 1, axis=0), "unknown"),
        (lambda x: np.where(np.arange(24)[:, None] % 2, x, x[:, ::-1]), "unknown"),
        (lambda x: np.full_like(x, 0.5), "unknown"),
        (lambda x: np.full_like(x, np.nan), "unknown"),
    ],
)
def test_channels_follow_their_colours(
    change: Callable[[np.ndarray], np.ndarray], order: str
) -> None:
    channels, files = simulated()
    assert compare(change(channels), files).order == order


def test_one_picture_that_says_otherwise_is_enough_for_silence() -> None:
    channels, files = simulated()
    strange = int(np.abs(files[:, 0] - files[:, 2]).argmax())
    channels = channels[:, ::-1].copy()
    channels[strange] = channels[strange, ::-1]
    assert compare(channels, files).order == "unknown"


def test_few_pictures_are_no_proof() -> None:
    channels, files = simulated(9)
    assert compare(channels[:, ::-1], files).order == "unknown"

"""Near-duplicates in a store: `prepare` and the check name the same pairs, however little time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import stepladder
from stepladder.checks.data import duplicates
from stepladder.checks.examples import Example
from stepladder.checks.job import open_job
from stepladder.checks.run import run_check
from stepladder.config.choices import Encoding, Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import findings
from stepladder.data.prepare.near_file import NEAR_NAME, read_near
from stepladder.data.prepare.prepare import prepare
from stepladder.data.store.pixel_copy import pixel_copy
from stepladder.data.store.store import Store
from stepladder.records.findings import Finding, Outcome
from stepladder.task.image_classification import ImageClassification

NUM_NEAR = 5


def photograph(seed: int) -> Image.Image:
    """Draw a picture of coarse and fine detail."""
    random = np.random.default_rng(seed)
    total = np.zeros((60, 80, 3))
    for cells, strength in ((4, 60.0), (10, 40.0)):
        coarse = Image.fromarray(random.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
        total += strength * (np.asarray(coarse.resize((80, 60)), np.float64) / 128 - 1)
    return Image.fromarray((128 + total).clip(0, 255).astype(np.uint8))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Photographs with splits of their own; five of test are copies of train, encoded again."""
    root = tmp_path / "photos"
    for start, (split, num) in enumerate({"train": 40, "val": 16, "test": 20}.items()):
        for idx in range(num):
            folder = root / split / f"class {idx % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            is_copy = split == "test" and idx < NUM_NEAR
            picture = photograph(idx if is_copy else 1000 * start + idx)
            picture.save(folder / f"{idx}.jpg", quality=50 if is_copy else 92)
    return root


def look(folder: Path, run: Path, *, seconds: float) -> Finding:
    task = ImageClassification(folder)
    job = open_job(Example(task=task).config(run), task, task_name="image_classification")  # type: ignore[arg-type]
    job.deadline = time.perf_counter() + seconds
    return run_check(duplicates.CHECK, job)


def test_the_check_names_the_pairs_of_prepare(source: Path, tmp_path: Path) -> None:
    made = prepare(PrepareConfig(source=source, out=tmp_path / "store", size=64))
    (warned,) = (text for text in made.warnings if "near-duplicates" in text)
    assert warned.startswith("5 of 20 pictures of test (25.0 %) are near-duplicates")
    assert "--group-by" not in warned  # its splits are its own
    assert (
        "remove the pictures of test that are listed in the store's near_duplicates.csv" in warned
    )

    pairs = read_near(tmp_path / "store", Split.TEST)
    assert pairs is not None
    assert {(pair.path, pair.train_path) for pair in pairs} == {
        (f"test/class {idx % 2}/{idx}.jpg", f"train/class {idx % 2}/{idx}.jpg")
        for idx in range(NUM_NEAR)
    }
    for seconds in (60.0, 0.0):
        finding = look(tmp_path / "store", tmp_path / f"run {seconds}", seconds=seconds)
        assert finding.outcome is Outcome.WARNED
        assert finding.evidence in warned
        assert str(tmp_path / "store" / NEAR_NAME) in finding.fix
        assert finding.coverage is None  # prepare has compared all
        assert set(finding.examples) == {f"{pair.path} = {pair.train_path}" for pair in pairs}
        assert len(finding.pictures) == NUM_NEAR


def test_a_store_without_the_list_is_compared_again(source: Path, tmp_path: Path) -> None:
    prepare(PrepareConfig(source=source, out=tmp_path / "store", size=64))
    listed = look(tmp_path / "store", tmp_path / "run", seconds=60.0)
    (tmp_path / "store" / NEAR_NAME).unlink()
    again = look(tmp_path / "store", tmp_path / "run", seconds=60.0)
    assert again.evidence == listed.evidence
    assert again.examples == listed.examples
    assert "checks.json" in again.fix


def test_the_search_is_named_while_it_runs(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, list[str]] = {}
    for module in (findings, duplicates):
        seen = named.setdefault(module.__name__.rpartition(".")[2], [])
        monkeypatch.setattr(module, "doing", _noting(seen))
    prepare(PrepareConfig(source=source, out=tmp_path / "store", size=64))
    assert named["findings"] == [
        f"searching {split} for near-duplicates of train" for split in ("val", "test")
    ]
    (tmp_path / "store" / NEAR_NAME).unlink()
    look(tmp_path / "store", tmp_path / "run", seconds=60.0)
    assert "searching test for near-duplicates of train" in named["duplicates"]


def _noting(seen: list[str]) -> Callable[[str], AbstractContextManager[Any]]:
    def doing(what: str) -> AbstractContextManager[Any]:
        seen.append(what)
        return nullcontext()

    return doing


def test_a_decoded_copy_keeps_the_list(source: Path, tmp_path: Path) -> None:
    config = PrepareConfig(source=source, out=tmp_path / "store", size=64, encoding=Encoding.JPEG)
    prepare(config)
    copy = pixel_copy(Store.open(tmp_path / "store"))
    assert copy.path != tmp_path / "store"
    assert read_near(copy.path, Split.TEST) == read_near(tmp_path / "store", Split.TEST)


def test_a_damaged_list_is_not_used(source: Path, tmp_path: Path) -> None:
    prepare(PrepareConfig(source=source, out=tmp_path / "store", size=64))
    (tmp_path / "store" / NEAR_NAME).write_text("split,path\ntest,a.jpg\n")
    assert read_near(tmp_path / "store", Split.TEST) is None
    assert read_near(tmp_path, Split.TEST) is None


def test_the_report_of_a_training_on_it_warns(source: Path, tmp_path: Path) -> None:
    prepare(PrepareConfig(source=source, out=tmp_path / "store", size=64))
    run = stepladder.train(
        store=tmp_path / "store",
        dir=tmp_path / "run",
        **{"model.name": "resnet18", "model.weights": "none", "train": "all", "run.checks": "off"},
        **{"schedule.max_epochs": 1},
    )
    (warned,) = run.summary["warnings"]
    assert warned.startswith(
        "5 of 20 pictures of test (25.0 %) are near-duplicates of one of train"
    )
    assert warned in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")

"""The disk's read rate, measured on a store whose pages were dropped."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.data.store.store import Store
from stepladder.measuring.reading import disk as disk
from stepladder.measuring.reading.disk import measure_disk
from stepladder.task import Task
from stepladder.task.image_classification import ImageClassification

needs_fadvise = pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no posix_fadvise")


@needs_fadvise
def test_pages_of_the_largest_file_are_dropped_and_read(
    tmp_path: Path, build_store: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(disk, "_LEAST_BYTES", 1)
    monkeypatch.setattr(disk, "_PIECE", 4096)
    preadv = os.preadv

    def dropped(_: int, start: int, size: int, advice: int) -> None:
        assert (size, advice) == (4096, os.POSIX_FADV_DONTNEED)
        done.append(("dropped", start))

    def read(handle: int, buffers: list[bytearray], start: int) -> int:
        done.append(("read", start))
        return preadv(handle, buffers, start)

    monkeypatch.setattr(os, "posix_fadvise", dropped)
    monkeypatch.setattr(os, "preadv", read)
    build_store(tmp_path / "store")
    rate = measure_disk(ImageClassification(tmp_path / "store"))
    assert rate is not None
    assert rate > 0
    store = Store.open(tmp_path / "store")
    largest = max(info.size_bytes for info in store.manifest.shards)
    pieces = range(0, largest, 4096)
    assert done[-2 * len(pieces) :] == [(do, at) for at in pieces for do in ("dropped", "read")]


def test_a_tiny_store_and_a_task_without_one_say_nothing(
    tmp_path: Path, build_store: Callable, pictures: Callable[..., Task]
) -> None:
    build_store(tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert max(info.size_bytes for info in store.manifest.shards) < 1 << 20
    assert measure_disk(ImageClassification(tmp_path / "store")) is None
    assert measure_disk(pictures()) is None


def test_where_pages_cannot_be_dropped_nothing_is_claimed(
    tmp_path: Path, build_store: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_store(tmp_path / "store")
    monkeypatch.setattr(disk, "_LEAST_BYTES", 1)
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    assert measure_disk(ImageClassification(tmp_path / "store")) is None

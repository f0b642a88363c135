"""Store files have the same bytes from one thread and from several, and are written atomically."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import writer
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.quarantine import Bad
from stepladder.data.prepare.shard_work import ShardFile, ShardMaker, StoppedError
from stepladder.data.reading.threads import Inline

SIZE = 12
NUM_ROWS = 150
CONFIG = PrepareConfig(size=SIZE)


def picture(row: Row) -> bytes:
    """Draw a picture, or half of one if the path says so."""
    file = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE), (row.label, 7, 200)).save(file, "png")
    data = file.getvalue()
    return data[: len(data) // 2] if "half" in row.path else data


def plan(name: str, *, bad: frozenset[int] = frozenset()) -> ShardPlan:
    rows = tuple(
        Row(f"{'half' if idx in bad else 'a'}/{idx}.png", idx, Hashed(bytes(32), (1, 1, 1)))
        for idx in range(NUM_ROWS)
    )
    return ShardPlan(name, Split.TRAIN, rows, name, 1000)


def maker(folder: Path, pool: Executor) -> ShardMaker:
    for name in ("store", "records"):
        (folder / name).mkdir(parents=True)
    return ShardMaker(
        read=picture,
        folder=folder / "store",
        records=folder / "records",
        config=CONFIG,
        pool=pool,
        ahead=1 if isinstance(pool, Inline) else 4,
    )


def ignore(_: Bad | None) -> None:
    """Ignore all arguments."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_one_thread_and_several_give_the_same_bytes_and_records(tmp_path: Path) -> None:
    plans = [plan("train-a.parquet", bad=frozenset({3, 70})), plan("train-b.parquet")]
    here = maker(tmp_path / "here", Inline()).make(plans, on_row=ignore)
    with ThreadPoolExecutor(2) as pool:
        there = maker(tmp_path / "there", pool).make(plans, on_row=ignore)
    assert [one.key for one in here] == [one.key for one in there] == [one.name for one in plans]
    assert [len(one.bad) for one in here] == [2, 0]
    assert contents(tmp_path / "here") == contents(tmp_path / "there")
    assert len(contents(tmp_path / "here")) == 6  # of each file: the file, its index and its record


@pytest.mark.parametrize("pool", [Inline, lambda: ThreadPoolExecutor(2)], ids=["one", "several"])
def test_an_error_in_the_middle_leaves_the_files_before_it_and_no_rest(
    tmp_path: Path, pool: Callable[[], Executor]
) -> None:
    class Enough(Exception):
        pass

    told = 0

    def on_row(_: Bad | None) -> None:
        nonlocal told
        told += 1
        if told == NUM_ROWS + 100:
            raise Enough

    with pool() as threads, pytest.raises(Enough):
        maker(tmp_path, threads).make(
            [plan("train-a.parquet"), plan("train-b.parquet")], on_row=on_row
        )
    found = contents(tmp_path)
    assert [name for name in found if not name.startswith("train-a.")] == []
    assert "train-a.parquet.json" in found


def test_a_file_is_not_sealed_before_all_of_its_pictures_came(tmp_path: Path) -> None:
    file = ShardFile(
        plan("train-a.parquet"), folder=tmp_path, record=tmp_path / "record.json", config=CONFIG
    )
    file.add([Bad("a/0.png", "is empty")])
    with pytest.raises(StoppedError), file:
        file.seal()
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_bad_pictures_alone_is_a_record_alone(tmp_path: Path) -> None:
    bad = plan("train-a.parquet", bad=frozenset(range(NUM_ROWS)))
    [done] = maker(tmp_path, Inline()).make([bad], on_row=ignore)
    assert done.info is None
    assert len(done.bad) == NUM_ROWS
    assert list(contents(tmp_path)) == ["train-a.parquet.json"]


@pytest.mark.parametrize("limit", [("_PIECE_BYTES", 1), ("_PIECE_BYTES", 1000), ("_MAX_PARTS", 3)])
def test_bytes_do_not_depend_on_how_many_one_call_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int]
) -> None:
    plans = [replace(plan("train-a.parquet"), key="k")]
    maker(tmp_path / "whole", Inline()).make(plans, on_row=ignore)
    monkeypatch.setattr(writer, *limit)
    maker(tmp_path / "pieces", Inline()).make(plans, on_row=ignore)
    assert contents(tmp_path / "whole") == contents(tmp_path / "pieces")

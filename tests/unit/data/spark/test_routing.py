"""A sorted file of hashes maps a picture to the store files that need it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stepladder.config.choices import Split
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.spark.row_tasks import Routing, write_routing
from stepladder.data.spark.shard_tasks import read_shard_plan, write_shard_plan
from stepladder.data.spark.site import Superseded, open_site


def test_each_picture_finds_all_files_that_want_it(tmp_path: Path) -> None:
    hashes = [hashlib.sha256(bytes([number])).digest() for number in range(50)]
    entries = [(digest, at % 7) for at, digest in enumerate(hashes)]
    write_routing(tmp_path / "routing", [*entries, (hashes[3], 300), (hashes[3], 300)])
    routing = Routing(tmp_path / "routing")
    assert len(routing) == 51
    assert [routing.files_of(digest) for digest in hashes] == [
        [3, 300] if at == 3 else [at % 7] for at in range(50)
    ]
    for other in (b"\0" * 32, b"\xff" * 32, hashlib.sha256(b"other").digest()):
        assert routing.files_of(other) == []


def test_nothing_is_wanted_where_all_is_finished(tmp_path: Path) -> None:
    write_routing(tmp_path / "routing", [])
    assert Routing(tmp_path / "routing").files_of(b"\0" * 32) == []


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    """Paths may be any bytes, which Python represents as surrogates."""
    hashed = Hashed(b"\1" * 32, (5, 6, 7), changed_ns=8)
    rows = (Row("a/ü \udcff\n.jpg", 1, hashed), Row("b", 0, Hashed(b"\2" * 32, (1, 0, 0))))
    shard = ShardPlan("train-a.parquet", Split.TRAIN, rows, "key", 1000)
    write_shard_plan(tmp_path / "plan.json", shard)
    found = read_shard_plan(tmp_path / "plan.json")
    assert found == shard
    assert found.rows[0].hashed.changed_ns == 8


def test_a_task_that_outlives_its_driver_puts_nothing_in_place(tmp_path: Path) -> None:
    first = open_site(tmp_path / "work")
    made = tmp_path / "made"
    made.write_text("old")
    open_site(tmp_path / "work")  # of the later driver
    with pytest.raises(Superseded):
        first.publish(made, tmp_path / "target")
    assert not (tmp_path / "target").exists()

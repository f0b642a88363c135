"""Clean lists leftovers only, and changes nothing else."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepladder.cli.commands.clean import leftovers, run
from stepladder.data.remote.cache import FileCache
from stepladder.data.remote.cache_part import WantedFile
from stepladder.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run and a store next to each other, with leftovers of a dead process."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for name in (
        "run/events.jsonl",
        "run/summary.json",
        "run/checkpoints/step-000000001/manifest.json",
        f"run/checkpoints/.step-000000002.{gone.pid}.tmp/model.safetensors",
        f"run/checkpoints/.step-000000003.{os.getpid()}.tmp/model.safetensors",
        f"run/.config.yaml.{gone.pid}.tmp",
        "run/events.discarded.jsonl",
        "run/crash.txt",
        "store/manifest.json",
        "store.partial/records/one.json",
        "notes/crash.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 10)
    return tmp_path


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_leftovers_are_listed_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(folder)
    assert run([str(folder)]) == 0
    out = capsys.readouterr().out
    for name in (".step-000000002", ".config.yaml", "events.discarded", "crash", "store.partial"):
        assert name in out
    for name in (".step-000000003", "summary", "notes", "step-000000001"):
        assert name not in out
    assert names(folder) == before


def test_yes_removes_exactly_the_leftovers(folder: Path) -> None:
    listed = {path.relative_to(folder) for path in leftovers(folder)}
    before = names(folder)
    assert run([str(folder), "--yes"]) == 0
    gone = {name for name in before if any(Path(name).is_relative_to(item) for item in listed)}
    assert names(folder) == before - gone
    assert len(listed) == 5
    assert list(leftovers(folder)) == []


def test_caches_are_marked_and_may_be_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cached = folder / "store.features" / ("0" * 64)
    cached.mkdir(parents=True)
    (cached / "features.npy").write_text("x" * 10)
    assert run([str(folder)]) == 0
    out = capsys.readouterr().out
    marked = [line for line in out.splitlines() if line.endswith("(cache)")]
    assert [str(cached) in line for line in marked] == [True]
    assert run([str(folder), "--keep-caches", "--yes"]) == 0
    assert list(leftovers(folder)) == [cached]


def test_features_are_listed_with_size_and_age(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = folder / "store.features" / (64 * "a")
    place.mkdir(parents=True)
    (place / "features.npy").write_bytes(bytes(2_000_000))
    (place / "manifest.json").write_text("{}")
    an_hour_ago = time.time() - 3700
    os.utime(place, (an_hour_ago, an_hour_ago))
    assert run([str(folder)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "store.features" in line)
    assert line.split()[:5] == ["2.0", "MB", "1", "h", "old"]
    assert run([str(folder), "--yes"]) == 0
    assert not place.exists()


def test_what_a_killed_climb_kept_is_listed_and_that_of_a_running_one_is_not(folder: Path) -> None:
    (gone,) = (path.name.split(".")[-2] for path in folder.glob("run/.config.yaml.*.tmp"))
    before = set(leftovers(folder))
    for name in (f".ladder-abcd1234.{gone}.tmp", f".ladder-efgh5678.{os.getpid()}.tmp"):
        features = folder / "run" / name / "features" / (64 * "a")
        features.mkdir(parents=True)
        (features / "features.npy").write_bytes(bytes(10))
    dead = folder / "run" / f".ladder-abcd1234.{gone}.tmp"
    assert set(leftovers(folder)) - before == {dead}
    assert run([str(folder), "--yes"]) == 0
    assert [path.name for path in (folder / "run").glob(".ladder-*")] == [
        f".ladder-efgh5678.{os.getpid()}.tmp"
    ]


def test_what_a_process_holds_is_left_alone(folder: Path) -> None:
    (folder / "run" / "lock").touch()
    with (folder / "run" / "lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [path.name for path in leftovers(folder)] == ["store.partial"]


def test_a_link_is_not_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a.partial").mkdir()
    (folder / "link").symlink_to(elsewhere)
    (folder / "b.partial").symlink_to(elsewhere)
    assert run([str(folder), "--yes"]) == 0
    assert (elsewhere / "a.partial").is_dir()
    assert (folder / "b.partial").is_symlink()


def test_a_watch_report_stays_and_what_a_kill_left_of_one_goes(tmp_path: Path) -> None:
    for name in ("watch.json", "watch.html", ".watch.json.tmp"):
        (tmp_path / "watch-train").mkdir(exist_ok=True)
        (tmp_path / "watch-train" / name).write_text("{}")
    temporary = tmp_path / "watch-train" / ".watch.json.tmp"
    assert list(leftovers(tmp_path)) == []  # a running script may be about to rename it
    before = time.time() - 3600
    os.utime(temporary, (before, before))
    assert list(leftovers(tmp_path)) == [temporary]
    assert run([str(tmp_path), "--yes"]) == 0
    assert names(tmp_path) == {"watch-train", "watch-train/watch.json", "watch-train/watch.html"}


@pytest.mark.parametrize("mark", ["events.jsonl", "trials.jsonl", "checks.json"])
def test_what_was_found_of_a_job_stays_and_a_trace_goes(mark: str, tmp_path: Path) -> None:
    found = ("checks.json", "checks.html", "diagnosis.json", "diagnosis.html")
    for name in (mark, *found, "crash.txt"):
        (tmp_path / name).write_text("{}")
    assert list(leftovers(tmp_path)) == [tmp_path / "crash.txt"]


def test_a_cache_is_listed_unless_a_process_uses_it(folder: Path) -> None:
    before = names(folder)
    cache = FileCache(folder / "stepladder-cache", 1000)
    digest = hashlib.sha256(b"shard").hexdigest()
    file = WantedFile(
        name="a", sha256=digest, size_bytes=5, where="there", fetch=lambda *_: iter([b"shard"])
    )
    held = cache.get(file)
    assert cache.folder not in set(leftovers(folder))
    held.release()
    assert cache.folder in set(leftovers(folder))
    assert run([str(folder), "--yes", "--quiet"]) == 0
    assert not cache.folder.exists()
    assert names(folder) < before


def test_an_object_store_is_not_cleaned_from_here() -> None:
    with pytest.raises(
        UsageError, match="s3://photos/store: stepladder clean removes files on this machine only"
    ):
        run(["s3://photos/store"])

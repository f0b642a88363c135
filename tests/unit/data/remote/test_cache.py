from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepladder.data.remote import cache_part
from stepladder.data.remote.cache import FileCache, HeldFile, is_cache
from stepladder.data.remote.cache_folder import cache_folder
from stepladder.data.remote.cache_part import WantedFile
from stepladder.data.remote.cache_room import is_locked
from stepladder.errors import DataError, ResourceError, UsageError

KB = 1000


class Elsewhere:
    """A place with one file, which counts reads."""

    def __init__(self, name: str, *, num_bytes: int = KB, index: bytes | None = None) -> None:
        self.data = hashlib.shake_128(name.encode()).digest(num_bytes)
        self.spans: list[tuple[int, int]] = []
        self.wanted = WantedFile(
            name=name,
            sha256=hashlib.sha256(self.data).hexdigest(),
            size_bytes=num_bytes,
            where=f"s3://photos/{name}",
            fetch=self._fetch,
            fetch_index=lambda: index,
        )

    def _fetch(self, start: int, stop: int) -> Iterator[bytes]:
        self.spans.append((start, stop))
        for at in range(start, stop, 100):
            yield self.data[at : min(at + 100, stop)]


def entries(cache: FileCache) -> set[str]:
    """Return the names in the cache, without hashes."""
    return {path.name[65:] for path in cache.folder.iterdir() if path.name[64:65] == "-"}


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    return FileCache(tmp_path / "cache", 3 * KB)


def test_a_file_is_fetched_once_and_read_as_it_is(cache: FileCache) -> None:
    there = Elsewhere("a")
    for was_fetched in (True, False):
        held = cache.get(there.wanted)
        assert held.path.read_bytes() == there.data
        assert held.was_fetched is was_fetched
        held.release()
    assert there.spans == [(0, KB)]


def test_a_large_file_comes_in_parts(cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_part, "PART_BYTES", 300)
    there = Elsewhere("a")
    assert cache.get(there.wanted).path.read_bytes() == there.data
    assert sorted(there.spans) == [(0, 300), (300, 600), (600, 900), (900, 1000)]


def test_an_index_comes_and_goes_with_its_file(cache: FileCache) -> None:
    held = cache.get(Elsewhere("a", index=b"index").wanted)
    assert held.path.with_name(held.path.name + ".index").read_bytes() == b"index"
    held.release()
    cache.get(Elsewhere("large", num_bytes=3 * KB).wanted)
    assert entries(cache) == {"large"}


def test_what_was_used_least_recently_goes_first(cache: FileCache) -> None:
    files = [Elsewhere(name) for name in "abc"]
    for there in (*files, files[0]):
        cache.get(there.wanted).release()
    cache.get(Elsewhere("d").wanted).release()
    assert entries(cache) == {"a", "c", "d"}


def test_a_file_in_use_stays_and_a_limit_that_is_too_small_is_an_error(cache: FileCache) -> None:
    held = [cache.get(Elsewhere(name).wanted) for name in "abc"]
    with pytest.raises(ResourceError) as caught:
        cache.get(Elsewhere("d").wanted)
    assert "s3://photos/d (1 kB): 3 kB of 3 kB are in use" in str(caught.value)
    assert "--data.max-cache-bytes 4000" in str(caught.value)
    assert entries(cache) == {"a", "b", "c"}  # nothing was fetched in vain, and no part is left
    held[1].release()
    cache.get(Elsewhere("d").wanted)
    assert entries(cache) == {"a", "c", "d"}


def test_fetching_ahead_removes_what_was_used_but_not_what_was_fetched_ahead(
    cache: FileCache,
) -> None:
    cache.get(Elsewhere("used").wanted).release()
    assert all(cache.get_ahead(Elsewhere(name).wanted) for name in "abc")
    assert entries(cache) == {"a", "b", "c"}
    assert not cache.get_ahead(Elsewhere("d").wanted)
    assert entries(cache) == {"a", "b", "c"}
    cache.get(Elsewhere("now").wanted)  # requested now: it may
    assert len(entries(cache)) == 3


def test_other_bytes_than_named_are_refused_and_not_kept(cache: FileCache) -> None:
    there = Elsewhere("a")
    there.data = there.data[:-1] + b"?"
    with pytest.raises(DataError, match=r"s3://photos/a: the downloaded file is not the one"):
        cache.get(there.wanted)
    there.data = there.data[:-1]
    with pytest.raises(DataError, match=r"s3://photos/a: the downloaded file is not the one"):
        cache.get(there.wanted)
    assert entries(cache) == set()


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_file_is_fetched_again_with_a_warning(tmp_path: Path, damage: str) -> None:
    there = Elsewhere("a")
    held = FileCache(tmp_path, 3 * KB).get(there.wanted)
    held.release()
    if damage == "flip":
        held.path.write_bytes(b"?" + there.data[1:])
    else:
        os.truncate(held.path, 10)
    said: list[str] = []
    later = FileCache(tmp_path, 3 * KB, on_message=said.append)
    assert later.get(there.wanted).path.read_bytes() == there.data
    assert said == [f"{held.path} is damaged; downloading it again"]


def test_the_failure_of_one_part_ends_the_file(
    cache: FileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_part, "PART_BYTES", 300)
    there = Elsewhere("a")

    def fetch(start: int, stop: int) -> Iterator[bytes]:
        if start == 600:
            raise DataError("boom", fix="nothing")
        yield there.data[start:stop]

    object.__setattr__(there.wanted, "fetch", fetch)
    with pytest.raises(DataError, match="boom"):
        cache.get(there.wanted)
    assert entries(cache) == set()


def test_what_a_killed_process_left_is_removed(cache: FileCache) -> None:
    left = cache.folder / f"{Elsewhere('dead').wanted.entry}.part"
    left.write_bytes(b"half")
    cache.get(Elsewhere("a").wanted)
    assert entries(cache) == {"a"}


def test_a_folder_of_other_things_is_not_a_cache(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="contains files that are not from a cache"):
        FileCache(tmp_path, KB)
    FileCache(tmp_path / "new", KB)
    assert is_cache(tmp_path / "new")


def test_a_place_in_an_object_store_is_not_a_folder_of_a_cache() -> None:
    with pytest.raises(UsageError, match=r"s3://photos/cache: .*\n.*--data\.cache-dir"):
        cache_folder(Path("s3://photos/cache"))


OTHER = """
import hashlib, sys, time
from pathlib import Path
from stepladder.data.remote.cache import FileCache
from stepladder.data.remote.cache_part import WantedFile

data, spans = bytes(1000), []
def fetch(start, stop):
    spans.append(start)
    time.sleep(0.3)
    yield data[start:stop]

digest = hashlib.sha256(data).hexdigest()
wanted = WantedFile(name="theirs", sha256=digest, size_bytes=1000, where="there", fetch=fetch)
cache = FileCache(Path(sys.argv[1]), 2000)
print("ready", flush=True)
sys.stdin.readline()
held = cache.get(wanted)
assert held.path.read_bytes() == data
print(len(spans), flush=True)
sys.stdin.readline()
"""


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a process that opens and holds a file after receiving a line."""
    words = [sys.executable, "-c", OTHER, str(folder)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert line_of(process) == "ready\n"
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_two_processes_fetch_a_file_once(tmp_path: Path) -> None:
    with other_process(tmp_path) as first, other_process(tmp_path) as second:
        begin(first)
        begin(second)
        assert {line_of(first), line_of(second)} == {"0\n", "1\n"}


def test_a_file_that_another_process_uses_stays_until_it_dies(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 2 * KB)
    with other_process(tmp_path) as other:
        begin(other)
        line_of(other)
        for name in "ab":
            cache.get(Elsewhere(name).wanted).release()
        assert entries(cache) == {"theirs", "b"}
    for name in "cd":
        cache.get(Elsewhere(name).wanted).release()
    assert entries(cache) == {"c", "d"}


def test_many_threads_in_a_small_cache_always_read_what_they_asked_for(tmp_path: Path) -> None:
    cache = FileCache(tmp_path, 4 * KB)
    places = [Elsewhere(name) for name in "abcdefgh"]
    failures: list[BaseException] = []

    def use(seed: int) -> None:
        try:
            for step in range(40):
                there = places[(seed * 7 + step * step) % len(places)]
                held: HeldFile = cache.get(there.wanted)
                assert held.path.read_bytes() == there.data
                held.release()
        except BaseException as error:  # reported below
            failures.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(entries(cache)) <= 4
    assert not any(is_locked(path) for path in tmp_path.iterdir())

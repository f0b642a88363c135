"""Prepare by several processes: the bytes of one, whatever is killed, full or damaged."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import shard_workers as helpers
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.prepare import PreparePhase, PrepareProgress, prepare
from stepladder.data.prepare.shard_workers import Helpers, num_helpers
from stepladder.errors import DataError

NUM_PICTURES = 60
NUM_OTHERS = 2
BY_OTHERS = """
def all_by_others(self):
    while self._todo and self._helpers:
        self._look(None)
    yield from ()

helpers.Helpers._ours = all_by_others
"""
STANDING_STILL = """
import signal
from stepladder.data.prepare import shard_workers as helper
helper._try_decoding = signal.pause
helpers._END_S = 0.2
"""
# No `if __name__ == "__main__"`: a script as users write it.
SCRIPT = f"""
import resource, sys
from pathlib import Path
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import (shard_workers as helpers, plan)
from stepladder.data.prepare.prepare import prepare
from stepladder.errors import StepladderError

print("begun", flush=True)
plan.MAX_MEAN_SHARD_BYTES = 12_000
helpers.MIN_ROWS_FORKED = helpers.MIN_ROWS_STARTED = 1
{BY_OTHERS}
source, out, most_bytes, way, told = sys.argv[1:]
source, out, most_bytes = Path(source), Path(out), int(most_bytes)
helpers.may_fork = lambda may=helpers.may_fork: may() and way == "forked"
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
config = PrepareConfig(source=source, out=out, size=24, workers=3, max_bad=0.1)

def on_progress(progress):
    if told and progress.phase.value == "write" and progress.done:
        print("at work", flush=True)
        sys.stdin.readline()

try:
    prepare(config, on_progress=on_progress)
except StepladderError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pictures of two classes, one of them damaged."""
    root = tmp_path_factory.mktemp("source")
    values = np.random.default_rng(0)
    for idx in range(NUM_PICTURES):
        folder = root / f"class {idx % 2}"
        folder.mkdir(exist_ok=True)
        coarse = values.integers(0, 255, size=(4, 5, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((50, 40)).save(buffer, "JPEG")
        (folder / f"{idx}.jpg").write_bytes(buffer.getvalue()[: -20 if idx == 7 else None])
    return root


@pytest.fixture(scope="module", autouse=True)
def _many_files() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepladder.data.prepare.plan.MAX_MEAN_SHARD_BYTES", 12_000)
        yield


@pytest.fixture
def config(source: Path, tmp_path: Path) -> PrepareConfig:
    return PrepareConfig(source=source, out=tmp_path / "s", size=24, workers=3, max_bad=0.1)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What threads make."""
    out = tmp_path_factory.mktemp("threads") / "s"
    prepare(PrepareConfig(source=source, out=out, size=24, workers=3, max_bad=0.1))
    return contents(out)


@pytest.fixture
def by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all to the other processes; by itself, this one is done before they have begun."""
    use_others(monkeypatch)

    def none(self: Helpers) -> Iterator[ShardPlan]:
        while self._todo and self._helpers:
            self._look(None)
        yield from ()

    monkeypatch.setattr(Helpers, "_ours", none)


def use_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start other processes; that of the tests has threads, so none is forked from it."""
    monkeypatch.setattr(helpers, "may_fork", lambda: False)
    monkeypatch.setattr(helpers, "MIN_ROWS_STARTED", 1)


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    return files


def others_of(pid: int, way: str = "started") -> list[psutil.Process]:
    """Give the processes that make files for a prepare: its own, or those of the one it started.

    The first may be at work before the last one is forked.
    """
    until_s = time.monotonic() + 20
    while True:
        found = psutil.Process(pid).children()
        if way == "started":
            found = [child for process in found for child in process.children()]
        if len(found) >= NUM_OTHERS or time.monotonic() > until_s:
            return found
        time.sleep(0.01)


@contextlib.contextmanager
def standing_still(processes: list[psutil.Process]) -> Iterator[None]:
    """Stop processes while the block runs."""
    try:
        for process in processes:
            process.suspend()
        until_s = time.monotonic() + 20
        while any(process.status() != psutil.STATUS_STOPPED for process in processes):
            assert time.monotonic() < until_s  # one that waits for memory stops when it has it
            time.sleep(0.01)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def once_at_work(act: Callable[[], None]) -> Callable[[PrepareProgress], None]:
    """Act when the first file is finished."""
    is_done = False

    def on_progress(progress: PrepareProgress) -> None:
        nonlocal is_done
        if progress.phase is PreparePhase.WRITE and progress.done and not is_done:
            is_done = True
            act()

    return on_progress


def test_this_process_takes_part(
    config: PrepareConfig, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_others(monkeypatch)
    prepare(config)
    assert contents(config.out) == whole


@pytest.mark.usefixtures("by_others")
@pytest.mark.parametrize("num_killed", [1, NUM_OTHERS])
def test_what_a_killed_process_was_making_is_made_by_another(
    config: PrepareConfig, whole: dict[str, bytes], num_killed: int
) -> None:
    killed: list[psutil.Process] = []

    def kill() -> None:
        killed.extend(others_of(os.getpid())[:num_killed])
        for process in killed:
            process.kill()

    prepare(config, on_progress=once_at_work(kill))
    assert len(killed) == num_killed
    assert contents(config.out) == whole


@pytest.mark.usefixtures("by_others")
def test_an_interrupt_ends_the_other_processes_and_others_write_the_same_bytes(
    config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    others: list[psutil.Process] = []

    def interrupt() -> None:
        others.extend(others_of(os.getpid()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(config, on_progress=once_at_work(interrupt))
    assert len(others) == NUM_OTHERS
    assert not any(process.is_running() for process in others)
    seen: list[PrepareProgress] = []
    result = prepare(config, on_progress=seen.append)
    assert contents(config.out) == whole
    assert result.num_bad == 1
    writing = [progress for progress in seen if progress.phase is PreparePhase.WRITE]
    assert writing[-1].done == writing[-1].total == NUM_PICTURES


@pytest.mark.usefixtures("by_others")
def test_too_many_bad_pictures_stop_the_others(config: PrepareConfig) -> None:
    before = psutil.Process().children()  # such as the server of other tests
    with pytest.raises(DataError, match="1 of 60 pictures"):
        prepare(replace(config, max_bad=0.0))
    assert psutil.Process().children() == before


@pytest.fixture
def script(source: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    begun: list[subprocess.Popen[str]] = []
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)

    def begin(way: str, *, most_bytes: int = 0, told: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, str(file), str(source), str(tmp_path / "s")]
        process = subprocess.Popen(
            [*command, str(most_bytes), way, told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate(timeout=60)  # a test that failed must not keep the others waiting


@pytest.mark.parametrize("way", ["forked", "started"])
def test_other_processes_end_with_a_prepare_that_is_killed(
    script: Callable[..., subprocess.Popen[str]],
    config: PrepareConfig,
    whole: dict[str, bytes],
    way: str,
) -> None:
    process = script(way, told="told")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "at work\n"]
    others = others_of(process.pid, way)
    assert len(others) == NUM_OTHERS
    with standing_still(others):  # as if they were slow to see it
        process.kill()
        process.wait()
        again = script(way)
        assert again.stdout is not None
        assert again.stdout.readline() == "begun\n"
        time.sleep(0.5)  # it waits for them: they might still write
        assert again.poll() is None
    assert again.communicate() == ("", "")
    assert again.returncode == 0
    assert contents(config.out) == whole
    psutil.wait_procs(others, timeout=20)
    assert not any(other.is_running() for other in others)


def test_a_disk_that_is_full_for_the_others_is_told_in_words(
    script: Callable[..., subprocess.Popen[str]],
    config: PrepareConfig,
    whole: dict[str, bytes],
) -> None:
    largest = max(len(data) for name, data in whole.items() if name.endswith(".parquet"))
    full = script("started", most_bytes=largest - 1)
    out, error = full.communicate()
    assert out == "begun\n"  # and once: the script is not run by the others
    assert "the disk is full, or a file may not grow further" in error
    assert "Traceback" not in error
    prepare(config)
    assert contents(config.out) == whole


@pytest.mark.parametrize("has_thread", [False, True])
def test_threads_do_where_processes_would_not_pay(
    has_thread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1 + has_thread)
    enough = helpers.MIN_ROWS_STARTED if has_thread else helpers.MIN_ROWS_FORKED

    def plans(num_files: int, rows: int) -> list[ShardPlan]:
        row = Row("a.jpg", 0, Hashed(b"", (0, 0, 0)))
        return [ShardPlan("train-0.parquet", Split.TRAIN, (row,) * rows, "", 0)] * num_files

    assert num_helpers(plans(16, enough // 16), workers=4) == 3
    assert num_helpers(plans(16, enough // 16 - 1), workers=4) == 0  # too few to pay for a start
    assert num_helpers(plans(1, enough), workers=4) == 0  # nothing to divide
    assert num_helpers(plans(4, enough), workers=64) == 1
    assert num_helpers(plans(16, enough), workers=1) == 0


def test_a_fork_that_stands_still_is_given_nothing_and_killed(
    source: Path, config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    script = SCRIPT.replace(BY_OTHERS, STANDING_STILL)
    command = [sys.executable, "-c", script, str(source), str(config.out), "0", "forked", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n", "")
    assert contents(config.out) == whole


MEMORY_SHORT = f"""
import os
from stepladder.data.prepare import writer
parent, close = os.getpid(), writer.ShardWriter.close

def fail(self):
    if os.getpid() != parent:
        raise MemoryError
    return close(self)

writer.ShardWriter.close = fail
{BY_OTHERS}"""


def test_an_error_that_cannot_be_told_leaves_the_files_to_this_process(
    source: Path, config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    script = SCRIPT.replace(BY_OTHERS, MEMORY_SHORT)
    command = [sys.executable, "-c", script, str(source), str(config.out), "0", "forked", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "begun\n")
    assert contents(config.out) == whole


@pytest.mark.parametrize("way", ["forked", "started"])
def test_handles_that_are_closed_and_odd_places_of_modules_do_no_harm(
    source: Path, config: PrepareConfig, whole: dict[str, bytes], way: str
) -> None:
    odd = "import os, pathlib\nos.closerange(0, 3)\nsys.path.insert(0, pathlib.Path('odd'))\n"
    script = SCRIPT.replace('print("begun", flush=True)\n', odd)
    command = [sys.executable, "-c", script, str(source), str(config.out), "0", way, ""]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert contents(config.out) == whole

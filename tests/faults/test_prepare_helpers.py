"""Prepare with several processes: the bytes of one process, despite kills and full disks."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TextIO

import numpy as np
import psutil
import pytest
from PIL import Image

from stepladder.config.choices import Split
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import shard_workers as helpers
from stepladder.data.prepare.hashing import Hashed
from stepladder.data.prepare.plan import Row, ShardPlan
from stepladder.data.prepare.prepare import prepare
from stepladder.data.prepare.shard_workers import num_helpers

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
import resource, select, sys
from pathlib import Path
import psutil
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import (shard_workers as helpers, plan)
from stepladder.data.prepare.prepare import prepare
from stepladder.errors import StepladderError

print("begun", flush=True)
plan.MAX_MEAN_SHARD_BYTES = 12_000
helpers.MIN_ROWS_FORKED = helpers.MIN_ROWS_STARTED = 1
{BY_OTHERS}
source, out, max_bad, most_bytes, way, told = sys.argv[1:]
source, out, max_bad, most_bytes = Path(source), Path(out), float(max_bad), int(most_bytes)
helpers.may_fork = lambda may=helpers.may_fork: may() and way == "forked"
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
config = PrepareConfig(source=source, out=out, size=24, workers=3, max_bad=max_bad)
last = None

def on_progress(progress):
    global last, told
    if progress.phase.value == "write":
        last = progress
    if told and last and last.done:
        told = ""
        print("at work", flush=True)
        while not select.select([0], [], [], 0.05)[0]:
            pass  # a signal that comes just before an endless wait is handled only after it
        sys.stdin.readline()

try:
    result = prepare(config, on_progress=on_progress)
    print(f"{{last.done}} of {{last.total}} written, {{result.num_bad}} bad", flush=True)
except StepladderError as error:
    sys.exit(f"{{error}} {{psutil.Process().children()}}")
except KeyboardInterrupt:
    print("interrupted", psutil.Process().children(), flush=True)
"""
DONE = f"{NUM_PICTURES} of {NUM_PICTURES} written, 1 bad\n"
RUN = """
import os, runpy, sys
os.dup2(talk.fileno(), 0)
os.dup2(talk.fileno(), 1)
os.dup2(os.open(error, os.O_CREAT | os.O_WRONLY), 2)
talk.close()
sys.stdin, sys.argv = open(0, closefd=False), words
runpy.run_path(words[0], run_name="__main__")
"""


@dataclass(eq=False)
class Script:
    """A prepare in its own process, which starts with everything imported.

    Attributes:
        talk: its standard input.
        said: its standard output.
        error: the file of its standard error.
    """

    process: BaseProcess
    talk: socket.socket
    said: TextIO
    error: Path

    def end(self) -> tuple[int | None, str, str]:
        """Wait for it; return its exit code, remaining output, and errors."""
        self.talk.shutdown(socket.SHUT_WR)
        said = self.said.read()
        self.process.join(60)
        return self.process.exitcode, said, self.error.read_text()


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
    """The store that threads write."""
    out = tmp_path_factory.mktemp("threads") / "s"
    prepare(PrepareConfig(source=source, out=out, size=24, workers=3, max_bad=0.1))
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    return files


def others_of(pid: int, way: str) -> list[psutil.Process]:
    """Return the worker processes of a prepare: its own, or those of the one it started.

    The first may be working before the last one is forked.
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
    """Stop processes within the block."""
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


@pytest.fixture
def script(
    source: Path, config: PrepareConfig, tmp_path: Path, server: ForkServerContext
) -> Iterator[Callable[..., Script]]:
    begun: list[Script] = []

    def begin(
        way: str,
        code: str = SCRIPT,
        *,
        max_bad: float = 0.1,
        most_bytes: int = 0,
        told: str = "",
    ) -> Script:
        file, error = (tmp_path / f"{name}{len(begun)}" for name in ("script", "error"))
        file.write_text(code)
        options = (source, config.out, max_bad, most_bytes, way, told)
        talk, its = socket.socketpair()
        known = {"talk": its, "error": error, "words": [str(word) for word in (file, *options)]}
        process = server.Process(target=exec, args=(RUN, known))
        process.start()
        its.close()
        begun.append(Script(process, talk, talk.makefile(), error))
        return begun[-1]

    yield begin
    for one in begun:
        one.process.kill()
        one.process.join(60)
        one.said.close()
        one.talk.close()


def at_work(script: Script) -> Script:
    """Wait until its first file is finished; then it waits for input."""
    assert [script.said.readline() for _ in range(2)] == ["begun\n", "at work\n"]
    return script


def pid_of(script: Script) -> int:
    assert script.process.pid is not None
    return script.process.pid


def test_this_process_takes_part(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    taking_part = script("forked", SCRIPT.replace(BY_OTHERS, ""))
    assert taking_part.end() == (0, "begun\n" + DONE, "")
    assert contents(config.out) == whole


@pytest.mark.parametrize("num_killed", [1, NUM_OTHERS])
def test_what_a_killed_process_was_making_is_made_by_another(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes], num_killed: int
) -> None:
    process = at_work(script("forked", told="told"))
    killed = others_of(pid_of(process), "forked")[:num_killed]
    assert len(killed) == num_killed
    for other in killed:
        other.kill()
    assert process.end() == (0, DONE, "")
    assert contents(config.out) == whole


def test_an_interrupt_ends_the_other_processes_and_others_write_the_same_bytes(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    process = at_work(script("forked", told="told"))
    others = others_of(pid_of(process), "forked")
    os.kill(pid_of(process), signal.SIGINT)
    assert process.said.readline() == "interrupted []\n"
    assert len(others) == NUM_OTHERS
    assert not any(other.is_running() for other in others)
    assert script("forked").end() == (0, "begun\n" + DONE, "")
    assert contents(config.out) == whole


def test_too_many_bad_pictures_stop_the_others(script: Callable[..., Script]) -> None:
    code, said, error = script("forked", max_bad=0.0).end()
    assert (code, said) == (1, "begun\n")
    assert "1 of 60 pictures" in error
    assert error.endswith(" []\n")


@pytest.mark.parametrize("way", ["forked", "started"])
def test_other_processes_end_with_a_prepare_that_is_killed(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes], way: str
) -> None:
    process = at_work(script(way, told="told"))
    others = others_of(pid_of(process), way)
    assert len(others) == NUM_OTHERS
    with standing_still(others):  # as if they noticed late
        process.process.kill()
        process.process.join()
        again = script("forked")
        assert again.said.readline() == "begun\n"
        time.sleep(0.5)  # it waits for them, as they might still write
        assert again.process.is_alive()
    assert again.end() == (0, DONE, "")
    assert contents(config.out) == whole
    psutil.wait_procs(others, timeout=20)
    assert not any(other.is_running() for other in others)


def test_a_disk_that_is_full_for_the_others_is_reported(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    largest = max(len(data) for name, data in whole.items() if name.endswith(".parquet"))
    _, said, error = script("started", most_bytes=largest - 1).end()
    assert said == "begun\n"  # only once: the workers do not run the script
    assert "the disk is full, or a quota or file size limit is reached" in error
    assert "Traceback" not in error
    assert error.endswith(" []\n")
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
    assert num_helpers(plans(16, enough // 16 - 1), workers=4) == 0  # too few for processes
    assert num_helpers(plans(1, enough), workers=4) == 0  # nothing to split
    assert num_helpers(plans(4, enough), workers=64) == 1
    assert num_helpers(plans(16, enough), workers=1) == 0


def test_a_stopped_fork_gets_no_work_and_is_killed(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    still = script("forked", SCRIPT.replace(BY_OTHERS, STANDING_STILL))
    assert still.end() == (0, "begun\n" + DONE, "")
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


def test_an_error_that_cannot_be_sent_leaves_the_files_to_this_process(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes]
) -> None:
    code, said, _ = script("forked", SCRIPT.replace(BY_OTHERS, MEMORY_SHORT)).end()
    assert (code, said) == (0, "begun\n" + DONE)
    assert contents(config.out) == whole


@pytest.mark.parametrize("way", ["forked", "started"])
def test_handles_that_are_closed_and_odd_places_of_modules_do_no_harm(
    script: Callable[..., Script], config: PrepareConfig, whole: dict[str, bytes], way: str
) -> None:
    odd = "import os, pathlib\nos.closerange(0, 3)\nsys.path.insert(0, pathlib.Path('odd'))\n"
    code = SCRIPT.replace('print("begun", flush=True)\n', odd).replace("    print(", "    str(")
    assert script(way, code.replace(", flush=True)", ")")).end()[0] == 0
    assert contents(config.out) == whole

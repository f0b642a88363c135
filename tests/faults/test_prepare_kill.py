"""kill -9 at random moments of prepare: the next run writes the store of an undisturbed run."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stepladder.config.options import PrepareConfig
from stepladder.data.prepare.prepare import prepare
from stepladder.data.store.manifest import load_manifest
from stepladder.data.store.verify import verify_store

NUM_KILLS = 20
MAX_TRIES = 200
SEED = 20
LATER, SOONER = 1.1, 0.8
"""The moments follow a machine that gets slower or faster: some two of three find it at work."""

# Imports once, then forks a prepare for each line, so that kills are cheap.
NURSERY = """
import os, sys
from pathlib import Path
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import (plan, prepare)
import PIL.JpegImagePlugin, simplejpeg, torch

plan.MAX_MEAN_SHARD_BYTES = 12_000  # some ten shards of so few pictures
source = Path(sys.argv[1])
for line in sys.stdin:
    out = Path(line.rstrip("\\n"))
    pid = os.fork()
    if pid == 0:
        config = PrepareConfig(source=source, out=out, size=24, workers=2, max_bad=0.1)
        prepare.prepare(config)
        os._exit(0)
    os.write(1, b"pid %d\\n" % pid)
    sys.stdin.readline()  # until then a prepare that has ended can still be sent signals
    status = os.waitpid(pid, 0)[1]
    os.write(1, b"ended %d\\n" % os.waitstatus_to_exitcode(status))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory if there is one, so that kills hit work and not disk waits."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path_factory.mktemp("kills")
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    """Sixty pictures of two classes, one of them damaged."""
    root = place / "photos"
    random_pixels = np.random.default_rng(0)
    for idx in range(60):
        folder = root / f"class {idx % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = random_pixels.integers(0, 255, size=(4, 5, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(coarse).resize((50, 40)).save(buffer, "JPEG")
        (folder / f"{idx}.jpg").write_bytes(buffer.getvalue()[: -20 if idx == 7 else None])
    return root


@pytest.fixture(scope="module")
def nursery(source: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield process
    process.communicate(timeout=20)


def run(nursery: subprocess.Popen[str], out: Path, *, kill_after_s: float | None = None) -> int:
    """Run prepare once, killed after a delay if still running; return its exit code."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{out}\n")
    nursery.stdin.flush()
    pid = int(nursery.stdout.readline().removeprefix("pid "))
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        os.kill(pid, signal.SIGKILL)
    nursery.stdin.write("wait\n")
    nursery.stdin.flush()
    return int(nursery.stdout.readline().removeprefix("ended "))


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.pop("prepare_log.json")
    return files


def test_a_killed_prepare_run_again_gives_the_same_bytes(
    nursery: subprocess.Popen[str], place: Path
) -> None:
    assert run(nursery, place / "warm") == 0  # reads the libraries from disk
    started_s = time.perf_counter()
    assert run(nursery, place / "whole") == 0
    whole_s = time.perf_counter() - started_s
    want = contents(place / "whole")
    assert len([name for name in want if name.endswith(".parquet")]) > 8
    moments = random.Random(SEED)
    num_killed = num_half_made = 0
    within_s = whole_s
    for kill in range(MAX_TRIES):
        out = place / f"killed{kill}"
        code = run(nursery, out, kill_after_s=moments.uniform(0, within_s))
        within_s *= LATER if code == -signal.SIGKILL else SOONER
        num_killed += code == -signal.SIGKILL
        num_half_made += any((place / f"{out.name}.partial").glob("store/*.parquet"))
        if out.exists():  # visible means complete
            assert load_manifest(out) == load_manifest(place / "whole")
        assert run(nursery, out) == 0
        assert contents(out) == want
        assert verify_store(out) == []
        assert not (place / f"{out.name}.partial").exists()
        if num_killed >= NUM_KILLS and num_half_made:
            break
    assert num_killed >= NUM_KILLS
    assert num_half_made >= 1


def test_killed_again_and_again_it_still_gets_there(
    nursery: subprocess.Popen[str], place: Path
) -> None:
    started_s = time.perf_counter()
    assert run(nursery, place / "undisturbed") == 0
    whole_s = time.perf_counter() - started_s
    out = place / "again"
    moments = random.Random(SEED)
    for _ in range(5):
        run(nursery, out, kill_after_s=moments.uniform(0, whole_s / 2))
    assert run(nursery, out) == 0
    assert contents(out) == contents(place / "undisturbed")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_an_old_store_is_replaced_either_is_complete(
    place: Path, source: Path, server: ForkServerContext, moment: str
) -> None:
    """The two folders are swapped in one step; these are the moments before and after it."""
    script = f"""
import os, signal
from pathlib import Path
from stepladder.config.options import PrepareConfig
from stepladder.data.store import manifest
from stepladder.data.prepare import prepare
source, out = Path({str(source)!r}), Path({str(place / f"replaced {moment}")!r})
prepare.prepare(PrepareConfig(source=source, out=out, size=24, max_bad=0.1))
exchange = manifest._exchange
def killed(first, second):
    if {moment == "after"}:
        assert exchange(first, second)
    os.kill(os.getpid(), signal.SIGKILL)
manifest._exchange = killed
prepare.prepare(PrepareConfig(source=source, out=out, size=16, max_bad=0.1, overwrite=True))
"""
    process = server.Process(target=exec, args=(script, {}))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert load_manifest(place / f"replaced {moment}").size == (16 if moment == "after" else 24)
    assert verify_store(place / f"replaced {moment}") == []


IMPATIENT = """
import os, signal, sys, threading, time
from stepladder.config.options import PrepareConfig
from stepladder.data.prepare import (plan, prepare)
from stepladder.data.prepare.writer import ShardWriter
import PIL.JpegImagePlugin, simplejpeg, torch

plan.MAX_MEAN_SHARD_BYTES = 40_000
add_page = ShardWriter.add_page

def wait_and_add(self, **page):
    writing.set()
    sent.wait()
    add_page(self, **page)

def interrupt():
    writing.wait()
    for _ in range(2):
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    sent.set()

writing, sent = threading.Event(), threading.Event()
ShardWriter.add_page = wait_and_add
threading.Thread(target=interrupt, daemon=True).start()
try:
    try:
        prepare.prepare(PrepareConfig(source=source, out=out, size=24, workers=2, max_bad=0.1))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
except KeyboardInterrupt:  # the second, while the first was caught
    os._exit(INTERRUPTED)
"""
INTERRUPTED = 42


def test_impatient_interrupts_end_it_and_the_same_command_resumes(
    source: Path, place: Path, server: ForkServerContext
) -> None:
    out = place / "impatient"
    known = {"source": source, "out": out, "INTERRUPTED": INTERRUPTED}
    process = server.Process(target=exec, args=(IMPATIENT, known))
    process.start()
    process.join(60)
    assert process.exitcode == INTERRUPTED
    assert not out.exists()
    prepare(PrepareConfig(source=source, out=out, size=24, workers=2, max_bad=0.1))
    assert verify_store(out) == []
    assert not [path for path in out.iterdir() if path.name.startswith(".")]

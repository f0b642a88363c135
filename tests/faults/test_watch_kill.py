"""kill -9 of a watched script: everything recorded so far is intact and can be rendered."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli.main import main

NEVER_CLEARED = """
print("on", flush=True)
import time
import torch
import torch.nn.functional as F
from torch import nn

x = torch.randn(64, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for step in range(10**9):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    time.sleep(0.01)
"""
# Runs in a process that starts with torch imported.
WATCH = """
import os, sys
os.chdir(folder)
os.dup2(said.fileno(), 1)
said.close()
from stepladder.watching.script import session
if every_s is not None:
    session._WRITE_EVERY_S = every_s
    session._WRITE_STEP_S = 1.0
from stepladder.cli.main import main
sys.exit(main(["watch", "--out", "seen", *flags, "train.py"]))
"""
AT_EACH_STEP = 0.0
LIMIT_S = 120.0  # instead of about ten seconds


@contextmanager
def watching(
    folder: Path, server: ForkServerContext, every_s: float | None = None, *flags: str
) -> Iterator[BaseProcess]:
    """Watch the script in its own process until the block ends, starting from its first line."""
    (folder / "train.py").write_text(NEVER_CLEARED, encoding="utf-8")
    ours, said = server.Pipe(duplex=False)
    known = {"folder": str(folder), "said": said, "every_s": every_s, "flags": flags}
    process = server.Process(target=exec, args=(WATCH, known))
    process.start()
    said.close()
    try:
        with ours, os.fdopen(ours.fileno(), closefd=False) as output:
            assert output.readline() == "on\n"
            yield process
    finally:
        process.kill()
        process.join(60)


def killed(process: BaseProcess) -> bool:
    process.kill()
    process.join(60)
    return process.exitcode == -signal.SIGKILL


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def wait_for_steps(file: Path, process: BaseProcess, num_steps: int) -> None:
    """Wait until this many steps are recorded, which may take more than one write."""
    until = time.monotonic() + LIMIT_S
    while not file.exists() or read(file)["num_steps"] < num_steps:
        assert process.is_alive()
        assert time.monotonic() < until, f"no {num_steps} steps in {file}"
        time.sleep(0.05)


def test_what_was_seen_before_the_kill_makes_a_page(
    tmp_path: Path, server: ForkServerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = tmp_path / "seen"
    with watching(tmp_path, server, 0.5) as process:
        wait_for_steps(seen / "watch.json", process, 100)
        assert killed(process)
    assert [path.name for path in seen.iterdir()] == ["watch.json"], "no page yet"

    report = read(seen / "watch.json")
    assert report["is_complete"] is False
    assert report["exit_code"] is None
    assert "killed" in report["ending"]
    assert report["num_steps"] >= 100
    assert "missing_zero_grad" in {
        finding["check"] for finding in report["findings"] if finding["outcome"] == "failed"
    }

    assert main(["report", str(seen)]) == 0
    assert str(seen / "watch.html") in capsys.readouterr().out
    page = (seen / "watch.html").read_text(encoding="utf-8")
    assert "the script was still running" in page
    assert "missing_zero_grad" in page
    assert f"{report['num_steps']:,} steps" in page


def test_a_reader_never_finds_half_a_file_and_the_kill_leaves_none(
    tmp_path: Path, server: ForkServerContext
) -> None:
    file = tmp_path / "seen" / "watch.json"
    with watching(tmp_path, server, AT_EACH_STEP) as process:
        wait_for_steps(file, process, 1)
        steps = [read(file)["num_steps"]]
        until = time.monotonic() + LIMIT_S
        while len(steps) < 300 or steps[-1] < steps[0] + 20:
            assert process.is_alive()
            assert time.monotonic() < until
            steps.append(read(file)["num_steps"])
        assert killed(process)
    assert steps == sorted(steps)
    left = read(file)
    assert left["is_complete"] is False
    assert left["num_steps"] >= steps[-1]

    assert main(["report", str(file.parent)]) == 0
    assert (file.parent / "watch.html").is_file()


def test_a_script_killed_before_anything_was_written_is_reported(
    tmp_path: Path, server: ForkServerContext, capsys: pytest.CaptureFixture[str]
) -> None:
    with watching(tmp_path, server) as process:
        assert killed(process)
    assert list((tmp_path / "seen").iterdir()) == []
    assert main(["report", str(tmp_path / "seen")]) == 3
    words = capsys.readouterr().err
    assert "this is not the folder of a run" in words
    assert "Traceback" not in words


def test_the_same_command_again_replaces_what_the_killed_one_left(
    tmp_path: Path, server: ForkServerContext
) -> None:
    file = tmp_path / "seen" / "watch.json"
    with watching(tmp_path, server, AT_EACH_STEP) as process:
        wait_for_steps(file, process, 1)
        process.kill()
    with watching(tmp_path, server, None, "--steps", "25") as again:
        again.join(LIMIT_S)
        assert again.exitcode == 0
    assert read(file)["is_complete"] is True
    assert read(file)["num_steps"] == 25

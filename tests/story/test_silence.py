"""No command is silent for long without a terminal."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.thorough]
LONGEST_S = 20.0  # ten are promised; a machine that runs other tests gets twice as long
FIRST_S = 8.0  # two are promised
TRAIN = ("--run.dir", "trained", "--epochs", "2", "--device.threads", "1")
COMMANDS = {
    "train": ("train", "--data.store", "store", *TRAIN, "--no-auto"),
    "advise": ("advise", "--data.store", "store", "--run.dir", "advised"),
    "climb": ("climb", "--data.store", "store", "--run.dir", "climbed", "--budget", "60s"),
    "export": ("export", "trained", "--to", "torch"),
}


def times_of_lines(process: Any) -> list[float]:
    """Return when each line of a process came, on stdout or stderr, in seconds from its start."""
    started, times = time.monotonic(), []

    def read(stream: Any) -> None:
        for _ in stream:
            times.append(time.monotonic() - started)

    threads = [
        threading.Thread(target=read, args=(one,)) for one in (process.stdout, process.stderr)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait() == 0
    return [0.0, *sorted(times), time.monotonic() - started]


def test_the_gaps_between_lines_are_short(stepladder_in_store: Any) -> None:
    for name, words in COMMANDS.items():
        with stepladder_in_store.start(*words) as process:  # closes its streams
            times = times_of_lines(process)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] <= FIRST_S, name
        assert max(gaps) <= LONGEST_S, (name, times)

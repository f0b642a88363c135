"""The choice among algorithms by times that are measured once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from stepladder.parallel.collectives.choice import Choice
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.race import Race
from stepladder.records.collectives import Fit, Link

FIT = Fit(
    num_ranks=4,
    num_local=4,
    link=Link.plain(alpha_s=1e-3, beta_s=1e-8),
    native_sizes=(1000, 10**7),
    native_s=(0.0025, 0.2),
)


class Sums:
    """An executor of one rank whose sums take given times, by the name of a schedule."""

    def __init__(self, waits: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ran = 0.0, list[str]()
        self._waits = waits
        monkeypatch.setattr(
            "stepladder.parallel.collectives.race.time.perf_counter", lambda: self.now
        )

    def sum_(self, _tensor: torch.Tensor, schedule: Any) -> None:
        self.ran.append(schedule.name)
        self.now += self._waits.get(schedule.name, 1.0)


@pytest.fixture(autouse=True)
def _group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_fastest_as_measured_is_kept_and_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = Choice(FIT, has_native=False)
    expected = [one.name for one in choice.fastest(1000, 3)]
    sums = Sums({expected[2]: 0.1}, monkeypatch)
    race = Race(choice, cast("Executor", sums))
    assert race(1000).name == expected[2]
    assert set(sums.ran) == set(expected)
    num = len(sums.ran)
    assert race(1000).name == expected[2]
    assert len(sums.ran) == num


def test_one_that_is_far_ahead_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Fit(
        num_ranks=4, num_local=4, link=FIT.link, native_sizes=(1000, 10**7), native_s=(1e-5, 1e-4)
    )
    sums = Sums({}, monkeypatch)
    race = Race(Choice(quick), cast("Executor", sums))
    assert race(1000).name == "native"
    assert sums.ran == []


def test_slow_ones_are_timed_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Fit(
        num_ranks=4,
        num_local=4,
        link=Link.plain(alpha_s=1.0, beta_s=1e-8),
        native_sizes=(1000, 10**7),
        native_s=(50.0, 60.0),
    )
    sums = Sums({}, monkeypatch)
    Race(Choice(slow), cast("Executor", sums))(1000)
    assert len(sums.ran) == 2 * 3  # the first run of each is not timed

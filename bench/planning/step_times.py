"""The step of several gloo processes, predicted by the planner from measured messages.

python -m bench.planning.step_times [--rounds 9] [--quick]

Two and four processes of this machine, and two and four network namespaces behind a switch that
delays each packet by 1 ms and carries 100 Mbit/s per link (which needs root). The computation of a
step is a sleep, as two cores cannot hold four that compute; its gradients become ready in four
parts, and each travels over an algorithm of ours while the next one is "computed". The planner
knows the cost of a message, fitted before, and the sleeps. Goal: within 15 % in nine of ten.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from bench.rows import write_rows
from stepladder.measuring.ranks.team import Team
from stepladder.parallel.collectives.algorithms import Shape, distinct
from stepladder.parallel.collectives.executor import Executor
from stepladder.parallel.collectives.probe import measure_fit
from stepladder.parallel.collectives.transport import GlooTransport, shared_store
from stepladder.parallel.fleet import opened_fleet, serve
from stepladder.parallel.place import place_of
from stepladder.parallel.world import World
from stepladder.planning.costs.all_reduce import Group, all_reduce_s
from stepladder.planning.step.step import StepInputs, step_time
from stepladder.records.collectives import Fit
from stepladder.records.profile import Gradient
from tests.ranks.hosts import opened_hosts, why_not

NAMES: Final = ("ring", "halving_doubling", "recursive_doubling", "parameter_server")
HERE: Final = ((1_000_000, 0.03), (16_000_000, 0.06), (64_000_000, 0.1))
FAR: Final = ((64_000, 0.06), (256_000, 0.1), (1_000_000, 0.3))
"""Bytes of all gradients, and seconds of a pass."""
_PARTS: Final = 4
_BACKWARD: Final = 2 / 3
_GOAL: Final = 0.15
_MEET_S: Final = 120.0
_PORT: Final = "29500"
_TIMEOUT: Final = timedelta(seconds=60)
_MTU: Final = 9000


class Member:
    """One of the processes."""

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)
        self._world = world
        self._executor = Executor(GlooTransport.open(_TIMEOUT), store=shared_store())
        self._thread = ThreadPoolExecutor(1)

    def fit(self) -> Fit:
        """Measure what messages cost."""
        return measure_fit(self._executor, self._world)

    def steps(self, *, name: str, num_bytes: int, pass_s: float, num: int) -> list[float]:
        """Take steps, and return the seconds of each."""
        shape = Shape(num_ranks=self._world.size)
        algorithm = next(one for one in distinct(shape) if one.name == name)
        schedule = algorithm.schedule(shape)
        parts = [torch.zeros(num_bytes // _PARTS // 4) for _ in range(_PARTS)]
        found = []
        for _ in range(num + 1):
            dist.barrier(group=self._world.steps)
            start = time.perf_counter()
            time.sleep((1 - _BACKWARD) * pass_s)
            sent = []
            for part in parts:
                time.sleep(_BACKWARD * pass_s / _PARTS)
                sent.append(self._thread.submit(self._executor.sum_, part, schedule))
            for one in sent:
                one.result()
            found.append(time.perf_counter() - start)
        return found[1:]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()


def predicted_s(fit: Fit, name: str, num_bytes: int, pass_s: float) -> float:
    """Return the step that the planner predicts."""
    num = fit.num_ranks
    group = Group(hosts=1, devices=num, inside=fit.link, network=None)
    part = num_bytes // _PARTS
    inputs = StepInputs(
        fixed_s=pass_s,
        per_example_s=0.0,
        backward_frac=_BACKWARD,
        gradients=[
            Gradient(num_bytes=part, ready_frac=(idx + 1) / _PARTS) for idx in range(_PARTS)
        ],
        all_reduce=lambda size: all_reduce_s(name, group, size),
        num_devices=num,
        bucket_bytes=part,
        first_bucket_bytes=part,
    )
    return step_time(inputs).total_s


def measured_rows(team: Team, cases: Sequence[tuple[int, float]], *, rounds: int) -> list[Any]:
    """Return predicted and measured steps of a team."""
    fit, *_ = team.ask("fit")
    where = "processes" if fit.num_local == fit.num_ranks else "hosts"
    shape = Shape(num_ranks=fit.num_ranks)
    names = [one.name for one in distinct(shape) if one.name in NAMES]
    rows = []
    for num_bytes, pass_s in cases:
        for name in names:
            answers = team.ask("steps", name=name, num_bytes=num_bytes, pass_s=pass_s, num=rounds)
            steps = sorted(max(times) for times in zip(*answers, strict=True))
            predicted = predicted_s(fit, name, num_bytes, pass_s)
            middle = statistics.median(steps)
            rows.append(
                {
                    "where": f"{fit.num_ranks} {where}",
                    "all-reduce": name,
                    "gradients, MB": num_bytes / 1e6,
                    "pass, ms": 1e3 * pass_s,
                    "predicted, ms": 1e3 * predicted,
                    "measured, ms": 1e3 * middle,
                    "range, ms": f"{1e3 * steps[0]:.3g} to {1e3 * steps[-1]:.3g}",
                    "error": f"{predicted / middle - 1:+.1%}",
                }
            )
    return rows


def member_of() -> type[Any]:
    """Return `Member`, as other processes import it."""
    return import_module("bench.planning.step_times").Member  # type: ignore[no-any-return]


def here(num: int, *, rounds: int) -> list[Any]:
    """Measure processes of this machine."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Team(num, member_of(), {}, is_cuda=False, folder=Path(folder)) as team,
    ):
        return measured_rows(team, HERE, rounds=rounds)


def on_host(*, rounds: int) -> None:
    """Measure on the first host, with processes on the others."""
    place = place_of()
    assert place is not None
    if place.rank:
        serve(place, meet_s=_MEET_S)
        return
    with (
        opened_fleet(place, meet_s=_MEET_S) as fleet,
        tempfile.TemporaryDirectory() as folder,
        Team(place.size, member_of(), {}, is_cuda=False, folder=Path(folder), fleet=fleet) as team,
    ):
        for row in measured_rows(team, FAR, rounds=rounds):
            print(json.dumps(row), flush=True)


def on_hosts(num: int, *, rounds: int) -> list[Any]:
    """Start this program on several hosts, and return the rows that the first one prints.

    Raises:
        SystemExit: if a host fails, with what all have printed.
    """
    words = [sys.executable, "-m", "bench.planning.step_times", "--on-host"]
    words += ["--rounds", str(rounds)]
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_hosts(num, Path(folder), mtu=_MTU) as hosts,
    ):
        address = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": _PORT}
        ranks = {"WORLD_SIZE": str(num), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        processes = [
            hosts.start(host, words, RANK=str(host), **address, **ranks) for host in range(num)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"hosts ended with {codes}\n{hosts.printed()}")
        lines = hosts.out(0).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="two rounds; writes no results")
    parser.add_argument("--on-host", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds = 2 if options.quick else options.rounds
    if options.on_host:
        on_host(rounds=rounds)
        return
    rows = [row for num in (2, 4) for row in here(num, rounds=rounds)]
    if (why := why_not()) is None:
        rows += [row for num in (2, 4) for row in on_hosts(num, rounds=rounds)]
    else:
        print(f"this machine cannot pretend to be several hosts: {why}")
    for row in rows:
        print(row)
    if options.quick:
        return
    near = [abs(float(row["error"].rstrip("%"))) <= 100 * _GOAL for row in rows]
    write_rows(
        "step_times",
        rows,
        note="The step of several gloo processes whose computation is a sleep, in four buckets "
        f"that travel while the next is computed; median of {rounds}, the slowest process counts. "
        "Predicted by the planner from the fitted cost of a message. Hosts: namespaces behind a "
        f"switch of 1 ms and 100 Mbit/s. Goal: within 15 % in nine of ten; reached by {sum(near)} "
        f"of {len(near)} ({os.cpu_count()} cores).",
    )


if __name__ == "__main__":
    main()

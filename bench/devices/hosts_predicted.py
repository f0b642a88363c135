"""Compare the predicted step on two machines with the measured one, on ten kinds of jobs.

    python -m bench.devices.hosts_predicted [--rounds 8] [--workloads NAME ...] [--quick]

As `bench.devices.predicted`, but the second device is that of another host: two network namespaces
of this machine, behind a switch in user space that delays each packet by 1 ms and carries 100
Mbit/s per link. `more_machines` predicts the step on both from a step on half of a batch and an
exchange of gradients over this network. Goal: the median error is at most ln 1.15. Needs root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.devices.predicted import GOAL, JOBS, measure, median_words
from bench.rows import write_rows
from stepladder.parallel.fleet import opened_fleet, serve
from stepladder.parallel.place import place_of
from tests.ranks.hosts import opened_hosts, why_not

_BLOCK_S: Final = 1.0
_MEET_S: Final = 120.0
_PORT: Final = "29500"


def on_host(names: Sequence[str], *, rounds: int, block_s: float) -> None:
    """Measure on the first host; let it start processes on the second."""
    place = place_of()
    assert place is not None
    if place.rank:
        serve(place, meet_s=_MEET_S)
        return
    with opened_fleet(place, meet_s=_MEET_S) as fleet:
        for name in names:
            row = measure(name, JOBS[name], rounds=rounds, block_s=block_s, fleet=fleet)
            print(json.dumps(row), flush=True)


def on_two_hosts(words: Sequence[str]) -> list[dict[str, Any]]:
    """Start this program on two hosts, and return the rows that the first one prints.

    Raises:
        SystemExit: if a host fails, with what both have printed.
    """
    command = [sys.executable, "-m", "bench.devices.hosts_predicted", "--on-host", *words]
    with tempfile.TemporaryDirectory() as folder, opened_hosts(2, Path(folder)) as hosts:
        address = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": _PORT}
        ranks = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        processes = [
            hosts.start(host, command, RANK=str(host), **address, **ranks) for host in range(2)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"hosts ended with {codes}\n{hosts.printed()}")
        lines = hosts.out(0).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workloads", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--quick", action="store_true", help="two short rounds; writes no results")
    parser.add_argument("--on-host", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rounds, block_s = (2, 0.1) if options.quick else (options.rounds, _BLOCK_S)
    if options.on_host:
        on_host(options.workloads, rounds=rounds, block_s=block_s)
        return
    if (why := why_not()) is not None:
        raise SystemExit(f"this machine cannot pretend to be two hosts: {why}")
    words = ["--rounds", str(rounds), *(["--quick"] if options.quick else [])]
    rows = on_two_hosts([*words, "--workloads", *options.workloads])
    for row in rows:
        print(row, flush=True)
    said = median_words(rows)
    print(said)
    if options.quick:
        return
    write_rows(
        "devices_hosts_predicted",
        rows,
        note="The gain of a step on two hosts of one device each (network namespaces of one "
        "machine, 1 ms and 100 Mbit/s), predicted by `more_machines`, and measured in "
        f"{rounds} paired rounds (median and range of the ratios). "
        f"Error = |ln(predicted / measured)|: {said}. Goal: at most {GOAL:.3f} (1.15).",
    )


if __name__ == "__main__":
    main()

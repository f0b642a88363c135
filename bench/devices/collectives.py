"""Time every all-reduce algorithm beside torch's own: on this machine, and between four hosts.

    python -m bench.devices.collectives [--rounds 9] [--only-here] [--quick] [--page]

Two and four processes of this machine, and four network namespaces behind a switch in user space
that delays each packet by 1 ms and carries 100 Mbit/s per link (needs root). Each case is what
`stepladder bench-collectives` measures. `--page` only writes docs/collectives.md and its pictures
from the results.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from bench.measure import environment, write_results
from bench.rows import machine, markdown
from stepladder.api.collectives import bench_collectives
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Shape
from stepladder.records import to_json
from stepladder.records.collectives import Collectives
from stepladder.records.from_json import from_json, read_record
from stepladder.reporting.pages.collectives_page import (
    choice_words,
    collectives_text,
    size_words,
)
from tests.ranks.hosts import opened_hosts, why_not

ROUNDS: Final = 9
FAR_SIZES: Final = (16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000)
FAR: Final = "4 hosts, 1 ms and 100 Mbit/s"
NATIVE: Final = "native"
NUM_FAR: Final = 4
CLOSE: Final = 1.2  # the fitted model's error, and a difference that it has to get right
MIN_SHARE: Final = 0.9  # of the speed of gloo's own
LARGE: Final = 64_000_000
MAX_LOSS: Final = 1.05  # of `auto` against the best
_MTU: Final = 9000  # so that the switch keeps up with four hosts
_PORT: Final = "29500"


def here(num: int, rounds: int, sizes: Sequence[int]) -> Collectives:
    """Measure processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        found = bench_collectives(num, dir=folder, sizes=sizes, num_rounds=rounds)
    assert found is not None
    return found


def far(rounds: int, sizes: Sequence[int]) -> Collectives:
    """Measure four hosts of one process each.

    Raises:
        SystemExit: if a host fails, with what all have printed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        opened_hosts(NUM_FAR, Path(folder), mtu=_MTU) as hosts,
    ):
        words = [sys.executable, "-m", "stepladder", "bench-collectives", "--run.dir", folder]
        words += ["--rounds", str(rounds), "--sizes", *map(str, sizes)]
        address = {"MASTER_ADDR": hosts.address(0), "MASTER_PORT": _PORT}
        ranks = {"WORLD_SIZE": str(NUM_FAR), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        processes = [
            hosts.start(host, words, RANK=str(host), **address, **ranks) for host in range(NUM_FAR)
        ]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"hosts ended with {codes}\n{hosts.printed()}")
        return read_record(Collectives, Path(folder) / "collectives.json")


def build_times() -> list[dict[str, Any]]:
    """Time the schedules of 1,024 ranks."""
    rows = []
    for algorithm in ALGORITHMS:
        start = time.perf_counter()
        schedule = algorithm.schedule(Shape(num_ranks=1024, num_local=8, num_segments=16))
        num = len(schedule.table)
        seconds = time.perf_counter() - start
        rows.append({"algorithm": algorithm.name, "messages": num, "seconds": seconds})
    return rows


def speed_words(found: Collectives) -> str:
    """Return how fast the algorithms are against torch's own, with the goals."""
    at_large = []
    for name in ("ring", "halving_doubling"):
        own, native = found.at(name, LARGE), found.at(NATIVE, LARGE)
        if own is not None and native is not None:
            at_large.append(f"{name} {native.median_s / own.median_s:.2f}×")
    gains = [
        (native.median_s / one.median_s, one)
        for one in found.times
        if one.name != NATIVE and (native := found.at(NATIVE, one.num_bytes)) is not None
    ]
    gain, best = max(gains, key=lambda pair: pair[0])
    large = f"at 64 MB {', '.join(at_large)} as fast as gloo's own (goal: {MIN_SHARE}); "
    return (
        f"{large if at_large else ''}at most {gain:.2f}×, by {best.name} at "
        f"{size_words(best.num_bytes)} (goal: {CLOSE})"
    )


def model_words(found: Collectives) -> str:
    """Return how well the fitted model predicts times, rankings, and the choice of `auto`."""
    own = [one for one in found.times if one.predicted_s is not None]
    close = sum(_ratio(one.median_s, one.predicted_s) <= CLOSE for one in own)
    pairs = right = 0
    for first, second in combinations(own, 2):
        if first.num_bytes != second.num_bytes:
            continue
        assert first.predicted_s is not None
        assert second.predicted_s is not None
        if _ratio(first.predicted_s, second.predicted_s) > CLOSE:
            pairs += 1
            is_first = first.predicted_s < second.predicted_s
            right += (first.median_s < second.median_s) is is_first
    return (
        f"{close} of {len(own)} times within 20 % of the fitted model (goal: nine of ten); where "
        f"it separates two algorithms by more than 20 %, {right} of {pairs} pairs are in its order"
    )


def choice_loss_words(found: Collectives) -> str:
    """Return by how much what `auto` chose, by times of its own, is slower than the fastest."""
    losses = []
    for size in found.sizes:
        chosen = next(name for name, up_to in found.choice if up_to >= size or not up_to)
        time_s = found.at(chosen, size)
        assert time_s is not None
        best_s = min(one.median_s for one in found.times if one.num_bytes == size)
        losses.append(time_s.median_s / best_s)
    listed = ", ".join(f"{loss:.2f}" for loss in losses)
    return f"`auto` takes {listed} times as long as the fastest, by size (goal: {MAX_LOSS})"


def _ratio(first: float, second: float | None) -> float:
    assert second is not None
    return max(first, second) / min(first, second)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="two sizes; writes no results")
    parser.add_argument("--only-here", action="store_true", help="keep the hosts' last results")
    parser.add_argument("--page", action="store_true", help="only write docs/collectives.md")
    options = parser.parse_args(arguments)
    if options.page:
        from bench.devices.collectives_page import write_page

        write_page()
        return
    rounds = 2 if options.quick else options.rounds
    sizes = (16_000, 1_000_000) if options.quick else ()
    cases = {f"{num} processes of this machine": here(num, rounds, sizes) for num in (2, 4)}
    if options.only_here:
        cases[FAR] = from_json(Collectives, results()["cases"][FAR])
    elif (why := why_not()) is None:
        cases[FAR] = far(rounds, sizes or FAR_SIZES)
    else:
        print(f"this machine cannot pretend to be several hosts: {why}")
    parts = []
    for name, found in cases.items():
        is_far = found.hosts[0] != found.hosts[-1]
        judged = [model_words(found), *([] if is_far else [speed_words(found)])]
        said = "; ".join([*judged, choice_loss_words(found)])
        text = collectives_text(found)
        parts.append(f"## {name}\n\n{said}; auto: {choice_words(found)}.\n\n```text\n{text}```\n")
        print(f"{name}: {said}\n{text}", flush=True)
    builds = build_times()
    table = markdown(builds)
    print(table)
    if options.quick:
        return
    place = environment()
    result = {
        "cases": {name: to_json(found) for name, found in cases.items()},
        "builds": builds,
        "environment": place,
    }
    head = "# Collectives\n\nMedians of rounds in turn, each beginning with another algorithm.\n\n"
    built = f"## Schedules of 1,024 ranks\n\n{table}"
    write_results("collectives", result, head + "\n".join([*parts, built]) + machine(place))


def results() -> dict[str, Any]:
    """Return what was written last."""
    file = Path(__file__).parents[1] / "results" / "collectives.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


if __name__ == "__main__":
    main()

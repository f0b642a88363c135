"""Write docs/collectives.md: what each algorithm does, drawn from its schedule, and its times."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Final

import numpy as np

from bench.benchmarks_page import machine_of
from bench.devices.collectives import results
from stepladder.parallel.collectives import (
    butterfly,
    double_tree,
    hierarchical,
    parameter_server,
    reduction_tree,
    ring,
)
from stepladder.parallel.collectives.algorithms import ALGORITHMS, Algorithm, Shape, distinct
from stepladder.parallel.collectives.picture import schedule_svg
from stepladder.records.collectives import Collectives, CollectiveTime
from stepladder.records.from_json import from_json
from stepladder.reporting.pages.collectives_page import choice_words, fit_words, size_words

DOCS: Final = Path(__file__).parents[2] / "docs"
PICTURES: Final = "pictures/collectives"
SIZES: Final = (4, 8)
SHOWN: Final = (16_000, 1_000_000, 16_000_000)  # bytes
_MODULES: Final = (butterfly, double_tree, hierarchical, parameter_server, reduction_tree, ring)
_ROUNDED: Final = ("bf16", "fp16", "power_sgd")
_HEAD: Final = """# Ways of adding up gradients

With several devices, each computes the gradients of its part of a batch, and all of them need the
sum: an *all-reduce*. There are many ways to send the messages. Here, each is a schedule, a list of
who sends which part of the tensor to whom in which step, and one executor carries out any of them.

```bash
stepladder train job.yaml --devices 4 --all-reduce ring     # a whole training over one of them
stepladder train job.yaml --devices 4 --all-reduce auto     # by the size of what is sent
stepladder bench-collectives --devices 4                    # time all of them on your devices
```

`native`, the default, is PyTorch's own. `auto` measures what messages cost when a run starts, or
reads it from the collectives.json of `bench-collectives` (`--device.all-reduce-fit FILE`). For each
size it then times the algorithms that should take the least, three at most, and keeps the fastest.
After a restart it may keep another one, and sums differ in the last bit: name an algorithm if runs
have to be equal to the bit.

`--buckets layer` sends each weight on its own, as programs with MPI did, instead of
DistributedDataParallel's buckets of 25 MiB; the first step still sends all of them at once.
`--device.gradient-compression` sends bf16, fp16 or PowerSGD's matrices of rank 1. PowerSGD adds
what it has left out to the next step, and keeps that in memory only: a run that resumes begins
without it. On one device, bf16 and fp16 round gradients as they would be sent, so that a climb can
compare what is learnt. A climb tries `auto` and bf16 as the rungs `all_reduce` and
`compressed_gradients`, once it trains on several devices. Other
algorithms than PyTorch's own are for CPUs, over gloo; on GPUs, NCCL chooses one itself.

In the formulas, p is the number of ranks, n the bytes of the tensor, L = log2(p), α the time of a
message, β that of a byte, and γ that of adding up a byte. No algorithm needs less than
2 (p − 1) / p · n β. `bench/results/collectives.md` shows predicted beside measured times. In the
pictures, a solid arrow is added to what the receiver has, and a dashed one replaces it; the numbers
and colors are the parts of the tensor.
"""


def write_page() -> None:
    """Write the page and its pictures."""
    (DOCS / PICTURES).mkdir(parents=True, exist_ok=True)
    for name, text in pictures().items():
        (DOCS / name).write_text(text, encoding="utf-8")
    (DOCS / "collectives.md").write_text(page(), encoding="utf-8")


def pictures() -> dict[str, str]:
    """Return the drawings by their path in the docs."""
    return {
        picture(algorithm, num): schedule_svg(algorithm.schedule(shape_of(algorithm, num)))
        for algorithm in ALGORITHMS
        for num in SIZES
    }


def picture(algorithm: Algorithm, num_ranks: int) -> str:
    """Return the path of a drawing in the docs."""
    return f"{PICTURES}/{algorithm.name}-{num_ranks}.svg"


def shape_of(algorithm: Algorithm, num_ranks: int) -> Shape:
    """Return the shape that is drawn: two hosts, and two segments in a double tree."""
    return Shape(
        num_ranks=num_ranks,
        num_local=num_ranks // 2 if algorithm.has_hosts else 1,
        num_segments=2 if algorithm.name == "double_tree" else 1,
    )


def page() -> str:
    """Return the page as Markdown."""
    found = results()
    cases = {name: from_json(Collectives, value) for name, value in found["cases"].items()}
    parts = [_HEAD, "## Measured\n"]
    for name, case in cases.items():
        parts.append(f"**{name}**: {fit_words(case)}. `auto` uses {choice_words(case)}.\n")
    parts.append(f"{machine_of(found)}; all times are in `bench/results/collectives.md`.\n")
    parts.append(_losses())
    for algorithm in ALGORITHMS:
        parts.append(_section(algorithm, cases))
    return "\n".join(parts)


def _section(algorithm: Algorithm, cases: dict[str, Collectives]) -> str:
    lines = [f"## {algorithm.name}\n", f"{_described(algorithm)}\n", f"Time: {algorithm.time}.\n"]
    for name, case in cases.items():
        times = [one for size in SHOWN if (one := case.at(algorithm.name, size)) is not None]
        if times:
            lines.append(f"- {name}: {'; '.join(_measured(one, case) for one in times)}")
    if not any(line.startswith("- ") for line in lines):
        lines.append(f"- {_not_measured(algorithm, list(cases.values()))}")
    lines.append("")
    for num in SIZES:
        lines.append(f"![{algorithm.name} of {num} ranks]({picture(algorithm, num)})\n")
    return "\n".join(lines)


def _not_measured(algorithm: Algorithm, cases: list[Collectives]) -> str:
    """Return of which other algorithm it sends the messages on the ranks that were measured."""
    same = []
    for case in cases:
        shape = Shape(num_ranks=case.fit.num_ranks, num_local=case.fit.num_local)
        table = algorithm.schedule(shape).table
        same += [
            one.name
            for one in distinct(shape)
            if one is not algorithm and np.array_equal(one.schedule(shape).table, table)
        ]
    names = ", ".join(dict.fromkeys(same))
    return f"on the measured ranks, its messages are those of {names}: see the times there"


def _losses() -> str:
    """Return how far the losses of a training over each algorithm are from PyTorch's own."""
    file = Path(__file__).parents[1] / "results" / "exchanged.json"
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    exact = max(
        float(row["largest difference of a loss"])
        for row in rows
        if row["gradients"] not in _ROUNDED
    )
    return (
        "The demo's network, trained with all weights over each of them, for 16 steps on 4 "
        f"processes: no loss is further than {exact:.1g} (relative) from that over PyTorch's own "
        "all-reduce, as rounding leads to (`bench/results/exchanged.md`).\n"
    )


def _measured(time: CollectiveTime, case: Collectives) -> str:
    native = case.at("native", time.num_bytes)
    assert native is not None
    assert time.predicted_s is not None
    return (
        f"{size_words(time.num_bytes)} {time.median_s * 1e3:.3g} ms, predicted "
        f"{time.predicted_s * 1e3:.3g}, {native.median_s / time.median_s:.2f}× as fast as native"
    )


def _described(algorithm: Algorithm) -> str:
    """Return the docstring of its function, without the arguments."""
    made = next(
        vars(module)[algorithm.name] for module in _MODULES if algorithm.name in vars(module)
    )
    text = inspect.getdoc(made) or ""
    head, _, source = text.partition("Source:")
    head = re.sub(r"^Return ", "This is ", head.split("Args:")[0].strip())
    source = " ".join(source.split())
    return f"{' '.join(head.split())}\n\nSource: {source}"

"""Write docs/benchmarks.md from bench/results/; sections without results are left out.

python -m bench.benchmarks_page > docs/benchmarks.md
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"


class Section(NamedTuple):
    """One benchmark.

    Attributes:
        result: name of its files in bench/results, without the ending.
        title: heading.
        text: what is compared, and how to read the table.
    """

    result: str
    title: str
    text: str


SECTIONS = (
    Section(
        "time_to_accuracy",
        "Time to accuracy",
        "Seconds from after the imports to the committed weights, preparing included, for the "
        "job as it is usually written (a), a PyTorch Lightning script with a frozen network and "
        "early stopping (b), an expert's script (b2), the recipe that a climb kept (c), the climb "
        "and its training together (d), and the fastest code that we could write by hand (floor). "
        "`over_c` is the time divided by that of (c) in the same round.",
    ),
    Section(
        "time_to_accuracy_caltech", "Time to accuracy, Caltech-101", "The same on Caltech-101."
    ),
    Section(
        "lightning_pairs",
        "Next to PyTorch Lightning",
        "`stepladder prepare` and `stepladder train` with their defaults, and a Lightning script "
        "with the same frozen trunk, head, optimizer and patience, which decodes each picture and "
        "runs it through the trunk in every epoch. It stops by our rule, or by Lightning's "
        "EarlyStopping where a row says so. Seconds of whole commands, from the start "
        "of the process, including the test pictures; `over_ours` is the time divided by ours, and "
        "`points_below_ours` the difference in test accuracy, both within a pair. Two epochs of "
        "the script are timed, and the second is added for each further one that ours took; its "
        "accuracy is then unknown. One run to its end, by Lightning's EarlyStopping, took 1,102 s "
        "and had 87.6 % on test, where ours had 89.2 %.",
    ),
    Section(
        "autoencoder",
        "Optimizers on a deep autoencoder",
        "Steps and seconds to the loss of tuned Adam, each optimizer tuned with as many trials.",
    ),
    Section(
        "tokens",
        "Optimizers on a transformer",
        "The same on the characters of a text.",
    ),
    Section(
        "fine_tune",
        "Optimizers on a pretrained convolutional network",
        "The same on photographs, with all weights trained.",
    ),
    Section(
        "large_batches",
        "Larger batches",
        "What optimizers and rules for the learning rate make of larger batches, with as many "
        "epochs.",
    ),
    Section(
        "heads_at_once",
        "Heads in one program",
        "A population of linear heads on features, trained by `stepladder population` in one "
        "program, and in turn by plain PyTorch loops.",
    ),
    Section(
        "against_search",
        "Populations and other searches",
        "The best head that a population, random search and successive halving find with the same "
        "number of epochs, judged on examples that chose nothing.",
    ),
    Section("climbs", "Ten climbs", "How often climbs with different seeds decide alike."),
    Section(
        "loaded_climbs",
        "Climbs beside other programs",
        "Whether the headline and the verdicts hold while other programs use the machine.",
    ),
    Section(
        "predictions",
        "Predicted and measured gains",
        "By which factor predictions are off, on jobs that were held out and on the others.",
    ),
    Section("advised", "First advice", "What `advise` names first, and what a climb made of it."),
    Section(
        "verdicts",
        "A rung that changes nothing",
        "Trials of two equal recipes (A/A): each one kept is a false positive.",
    ),
    Section("seeds", "Accuracy by seed", "Test accuracy of the demo's recipe with ten seeds."),
    Section("prepare", "Preparing pictures", "`prepare` next to the usual calls of Pillow."),
    Section(
        "near_duplicates",
        "Near-duplicates",
        "Which of the near-duplicates that `prepare` lists are right, and how many of the changed "
        "photographs it finds, by change. Objects on white are photographs with a white border; "
        "on white squares, each photograph was put on a white square of twice its size.",
    ),
    Section(
        "reader",
        "Reading pictures",
        "Our reader next to PyTorch's DataLoader; others: [loaders.md](loaders.md).",
    ),
    Section(
        "shuffle_quality",
        "Shuffle quality",
        "How far from uniform each order is, for stores of several kinds.",
    ),
    Section(
        "windowed_accuracy",
        "Windowed order and accuracy",
        "Test accuracy with the windowed order, compared with a global shuffle.",
    ),
    Section("loop", "Overhead of the training loop", "Our loop next to the barest loop of torch."),
    Section("checkpoint", "Checkpoints", "Seconds to write and load a checkpoint."),
    Section(
        "allocator",
        "Freed memory is kept",
        "A forward pass on a CPU with and without returning freed memory to the system.",
    ),
    Section(
        "openmp_waiting",
        "Waiting threads",
        "Pictures a second of the demo's original step, by how idle OpenMP threads wait (`spin N` "
        "is GOMP_SPINCOUNT), alone and beside one busy process. No setting is good in both, so "
        "stepladder sets 3000 if the machine is quiet when the process starts, and 0, which waits "
        "as `passive` does, if other processes use its cores.",
    ),
    Section("check_time", "Duration of the checks", "`stepladder check` on the demo's job."),
    Section("watch_overhead", "Overhead of `watch`", "What watching adds to a step."),
    Section(
        "devices_overhead",
        "Several devices",
        "A step of two ranks with one core each, against bare DistributedDataParallel (`ours / "
        "bare DDP`), and against the same two processes when they do not talk (`efficiency`).",
    ),
    Section(
        "devices_predicted",
        "Several devices, predicted",
        "The gain of a step on two devices of one core each: predicted by `more_gpus`, and "
        "measured. Error is the absolute log of their ratio.",
    ),
    Section(
        "devices_hosts_predicted",
        "Two machines, predicted",
        "The gain of a step on two hosts with one device each, behind a network of 1 ms and 100 "
        "Mbit/s: predicted by `more_machines`, and measured.",
    ),
    Section(
        "devices_losses",
        "Several devices, losses",
        "How far the losses of two and four devices are from those of one, beside those of one "
        "device with the examples of each batch in other orders.",
    ),
    Section(
        "device_recovery",
        "Several devices, killed",
        "A random process is killed at a random time: whether the run ends by itself, with the "
        "weights of a run that nobody disturbed (so no example was repeated or skipped), and how "
        "long until it trains again.",
    ),
    Section(
        "collectives",
        "Schedules of 1,024 ranks",
        "How long the schedule of each all-reduce takes to build; the times of the all-reduces are "
        "in [collectives.md](collectives.md).",
    ),
    Section(
        "exchange_steps",
        "How gradients are sent",
        "What a step takes if gradients are grouped, added up or compressed in other ways, over "
        "that of PyTorch's own way.",
    ),
    Section(
        "step_memory",
        "Memory of a step, predicted",
        "The peak of a step of 8 pictures, predicted by following its shapes alone, "
        "without computing, and by a line through two smaller, measured peaks.",
    ),
    Section(
        "step_times",
        "Steps of several processes, planned",
        "The step of two and four processes and hosts whose computation is a sleep, predicted by "
        "`stepladder plan`'s formulas from the measured cost of a message.",
    ),
    Section(
        "devices_startup",
        "Start of several devices",
        "What each way to start two devices adds to a training of six steps.",
    ),
    Section("startup", "Start of the command", "Seconds until `--help` is printed."),
    Section(
        "baseline_stops",
        "Stopping against a baseline",
        "How often `train --baseline` stops sound and worse runs.",
    ),
    Section(
        "epoch_ranges",
        "Length of a training that stops early",
        "How often the range of epochs that `advise` and `climb` print holds the real length.",
    ),
)


def tables_of(text: str) -> list[str]:
    """Return the Markdown tables of a text."""
    return [found.group().strip() for found in re.finditer(r"(?:^\|.*\n)+", text, re.MULTILINE)]


def machine_of(result: Any) -> str:
    """Return a line that names the machine, the versions and the commit of a result."""
    found: dict[str, Any] = result.get("environment") or {}
    cpu, versions, git = (found.get(name) or {} for name in ("cpu", "versions", "git"))
    parts = [
        f"{cpu['model']}, {cpu['num_cores']} cores" if cpu else None,
        "bf16" if "avx512_bf16" in cpu.get("instructions", ()) else None,
        f"Python {found['python']}" if "python" in found else None,
        f"torch {versions['torch']}" if "torch" in versions else None,
        f"commit {git['commit'][:7]}" if git.get("commit") else None,
    ]
    return ", ".join(part for part in parts if part) or "machine not recorded"


def section_lines(section: Section) -> list[str]:
    """Return the lines of one section."""
    text = (RESULTS / f"{section.result}.md").read_text(encoding="utf-8")
    result = json.loads((RESULTS / f"{section.result}.json").read_text(encoding="utf-8"))
    source = f"`bench/results/{section.result}.json`"
    lines = [f"## {section.title}", "", section.text, ""]
    for table in tables_of(text + "\n"):
        lines += [table, ""]
    return [*lines, f"{machine_of(result)}; {source}", ""]


def page() -> str:
    """Return the page."""
    lines = [
        "# Benchmarks",
        "",
        "Everything here was measured by scripts in `bench/`, contenders next to each other in one "
        "run, in rotated order. Machines were shared, hence the wide spreads. Compare ratios "
        "within a table, not times between tables: they come from different days and machines. "
        "Rows name the commit that was measured; what changed since is in the changelog. Also "
        "measured: [loaders](loaders.md), [faults found](hits.md), [six steps](six-steps.md).",
        "",
    ]
    for section in SECTIONS:
        if (RESULTS / f"{section.result}.json").exists():
            lines += section_lines(section)
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")

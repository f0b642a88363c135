"""Write docs/loaders.md from the results of `compare`.

    python -m bench.loaders.page > page.md

Groups without a result are left out.
"""

from __future__ import annotations

import json
from typing import Any

from bench.measure import RESULTS

INTRO = """# Reading and writing compared with other libraries

Data loading throughput. Each table is one run on the same photographs (a subset of Caltech 101,
about 400 x 300) and two cores. Every contender has a process of its own and the fastest of the
settings that its documentation describes; rounds are in rotated order. "Ours is faster by" is the
median ratio over rounds, and "at least" its lower 95 % bound. Made by
`python -m bench.loaders.compare --group GROUP --caltech TAR`. The settings that were tried are in
`bench/loaders/contenders/`, all numbers in `bench/results/loaders_*.json`.

## Goals and results

A goal is met if the lower bound reaches it, and nearly met if only the median does. Each row names
the fastest other contender; "not slower" means a lower bound of 0.95. Not included are the flat
file of pixels, which is not a format, and FFCV's QUASI_RANDOM, which memory-maps its file. Both are
in the tables, and ours writes slower than the flat file.
"""
GROUPS = {
    "pixels": "Pixels, shuffled globally",
    "pixels-shards": "Pixels, against shard streaming",
    "jpeg": "JPEG files, decoded and resized",
    "presized": "JPEG files of the target size",
    "prepare": "Writing a store",
    "object-store": "A slow object store",
    "spark": "Prepare by Spark",
    "limits": "Memory, and time to the first batch",
}
SPARK_RECIPE = "binaryFile, pandas function, Parquet"
WHY = """Why some goals are missed. **Pixels, of a hot copy:** a hot copy reads and writes
the same 34 MB repeatedly, about the size of this CPU's cache (32 MB). A reader fills several
buffers in turn, as its consumer holds one, from random places of a store. Bare copies of rows, by
two threads into four buffers, reached 0.72 of a hot copy; by one thread 0.51, or 0.78 into a single
buffer (n = 8, a script outside `bench/`). **Pixels, against shard streamers:** LitData and Ray Data
are less than five times slower. **JPEG, of twice one core:** two processes that share nothing are
no faster (the line "decode, a process a core"), so the rest is contention between the cores of this
machine. **Writing:** a store has a sha256 of each file in its manifest, and is flushed to disk
before it is visible. These two alone reduce the bound to the line "with a sha256 of each file and a
sync". The rest is a sha256 of each picture's file, a second read in the order of these hashes, page
checksums, sums for mean and standard deviation, thumbnails for near-duplicates, and startup and
finish, a tenth of a second for so few pictures. The other writers do none of this."""
NOTES = {
    "pixels": """Every batch is contiguous uint8, and each picture appears once per epoch in a new
order. FFCV keeps its order in memory and reads through the page cache, as ours does; Hugging Face's
map-style reader memory-maps the table. Neither verifies checksums. The speed of a hot copy varies
more between days than that of readers: in an earlier run of this table ours was 0.66 of it (at
least 0.59).""",
    "pixels-shards": """FFCV memory-maps its file and reads it by page, like a copy in memory; the
others stream.""",
    "jpeg": """All except Pillow and TensorFlow's own decoder call the same function, so that
pixels are equal; most others use processes, ours uses threads. "Decode" reads no files: it calls
the function on JPEGs in memory, on one core, and in one process for each of two cores.""",
    "presized": """FFCV decodes without Python. Ours caches JPEG headers, so that a thread holds the
GIL for a few microseconds per picture.""",
    "prepare": """The bound decodes in place, in one process per core, and writes 8 rows at a time.
It has no hashes of pictures or files, no checksums, no index, no thumbnails for near-duplicates,
and no fsync.""",
}


OURS = "stepladder"
BOUND = "bound: decode into place, one write a row group"
MAPS_ITS_FILE = "FFCV, QUASI_RANDOM"
LIMITS = (
    "memcpy, hot",
    "decode, one core",
    "decode, a process a core",
    BOUND,
    "the same, with a sha256 of each file and a sync",
    "flat file, no format",
)
Lines = dict[str, dict[str, Any]]


def best_of(lines: Lines, *, without: tuple[str, ...] = ()) -> str:
    """Return the other line that ours is least ahead of, without limits."""
    others = {
        name: line["ours_faster_by"]["median"]
        for name, line in lines.items()
        if not name.startswith(OURS) and name not in (*LIMITS, *without)
    }
    return min(others, key=lambda name: others[name])


def against(lines: Lines, name: str, factor: float = 1.0) -> tuple[float, float]:
    """Return our median speedup over a line and its lower bound, both times a factor."""
    line = lines[name]
    return factor * line["ours_faster_by"]["median"], factor * line["lower_95"]


def goals() -> list[tuple[str, float, float, float]]:
    """Return (description, goal, median, lower 95 % bound) of each measured ratio."""
    pixels, shards, jpeg = (lines_of(group) for group in ("pixels", "pixels-shards", "jpeg"))
    presized, prepare = lines_of("presized"), lines_of("prepare")
    store, spark = lines_of("object-store"), lines_of("spark")
    streamer = best_of(shards, without=(MAPS_ITS_FILE,))
    found = [
        ("pixels, of a hot copy of as many bytes", 0.6, against(pixels, "memcpy, hot")),
        (f"pixels, against {best_of(pixels)}", 0.95, against(pixels, best_of(pixels))),
        (f"pixels, against {streamer}, which streams shards", 5.0, against(shards, streamer)),
        (f"JPEG, against {best_of(jpeg)}", 1.3, against(jpeg, best_of(jpeg))),
        ("JPEG, of twice the rate of one core", 0.95, against(jpeg, "decode, one core", 0.5)),
        ("JPEG of the store's size, against FFCV", 0.95, against(presized, best_of(presized))),
        ("writing, of the bound", 0.9, against(prepare, BOUND)),
        (f"writing, against {best_of(prepare)}", 1.25, against(prepare, best_of(prepare))),
        ("object store, 100 ms against none", 0.9, against(store, "no delay")),
        ("Spark, against a DataFrame of functions", 1.0, against(spark, SPARK_RECIPE)),
    ]
    return [(words, goal, *reached) for words, goal, reached in found]


def lines_of(group: str) -> Lines:
    """Return the measured lines of a group."""
    path = RESULTS / f"loaders_{group.replace('-', '_')}.json"
    rounds: Lines = json.loads(path.read_text())["rounds"][0]
    lines: Lines = rounds.get("lines", rounds)
    return lines


def goals_table() -> str:
    rows = ["| ratio | goal | reached | at least (95 %) | |", "| --- | --- | --- | --- | --- |"]
    for words, goal, median, least in goals():
        answer = "met" if least >= goal else "nearly" if median >= goal else "**missed**"
        rows.append(f"| {words} | {goal:g} | {median:.2f} | {least:.2f} | {answer} |")
    return "\n".join(rows)


def main() -> None:
    print(INTRO)
    print(f"{goals_table()}\n\n{' '.join(WHY.split())}\n")
    machine: dict[str, Any] = {}
    for group, title in GROUPS.items():
        path = RESULTS / f"loaders_{group.replace('-', '_')}.md"
        if not path.is_file():
            continue
        text, _, _ = path.read_text().partition("\n- python:")
        body = text.partition("\n")[2].strip()
        print(f"## {title}\n\n{body}\n")
        if note := NOTES.get(group):
            print(f"{' '.join(note.split())}\n")
        machine |= json.loads(path.with_suffix(".json").read_text())["environment"]
    cpu, memory = machine["cpu"], machine["memory"]
    versions = {**machine["versions"], **machine.get("contenders", {})}
    named = ", ".join(f"{name} {number}" for name, number in versions.items() if number != "-")
    print(
        f"## The machine\n\n{cpu['num_cores']} cores of {cpu['model']}, "
        f"{memory['total_bytes'] / 1e9:.0f} GB of memory, {machine['platform']}, "
        f"Python {machine['python']}; {named}."
    )


if __name__ == "__main__":
    main()

"""Write a benchmark's rows as a table, with the machine and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.measure import environment, write_results
from stepladder.records import to_json


def write_rows(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    note: str,
    rounds: Sequence[Mapping[str, Any]] = (),
    place: Mapping[str, Any] | None = None,
) -> None:
    """Print rows, and write them to results/NAME.json and results/NAME.md.

    Args:
        rounds: the records that the rows summarize, for the JSON only. Empty: each row is a round.
        place: machine and versions that were measured; None: the current ones.
    """
    table = markdown(rows)
    place = environment() if place is None else place
    head = f"# {name}\n\n{note}\n\n"
    print(f"{note}\n\n{table}")
    result = {"note": note, "rows": rows, "environment": place}
    if rounds:
        result["rounds"] = to_json(rounds)
    write_results(name, result, head + table + machine(place))


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table; numbers with four digits."""
    names = list(rows[0])
    lines = [names, ["---"] * len(names), *([_cell(row[name]) for name in names] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def share(k: int, n: int) -> str:
    """Format a count as "57 of 60 (95 %; 86.1 to 99.0 %)", with its Clopper-Pearson 95 % interval.

    The coverage is at least 95 % for every true share.
    """
    from scipy.stats import binomtest

    if n == 0:
        return "0 of 0"
    low, high = binomtest(k, n).proportion_ci(confidence_level=0.95, method="exact")
    return f"{k} of {n} ({100 * k / n:.0f} %; {100 * low:.1f} to {100 * high:.1f} %)"


def machine(place: Mapping[str, Any]) -> str:
    """Return a paragraph about the machine and versions."""
    words = [f"{key}: {value}" for key, value in place.items() if value not in (None, [], {})]
    return "\n" + "\n".join(f"- {word}" for word in words) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""The page and the terminal output of `stepladder bench-collectives`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stepladder.parallel.collectives.algorithms import ALGORITHMS
from stepladder.parallel.collectives.choice import crossovers
from stepladder.records.collectives import COLLECTIVES_FILE, Collectives, CollectiveTime
from stepladder.records.from_json import read_record
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, Unit
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.training.output.wording import clean

COLLECTIVES_PAGE: Final = "collectives.html"
_NATIVE: Final = "native"
_MAX_LINES: Final = 9  # as many as there are colors
_KB: Final = 1000
_UNIT: Final = " ms"
_BOUND: Final = "the bound is 2 (p - 1) / p of the bytes at the speed of an exchange"


def collectives_text(found: Collectives) -> str:
    """Return measured and predicted times of all algorithms, the fit, and what `auto` chooses."""
    sizes = found.sizes
    rows = [["", *(size_words(size) for size in sizes)]]
    for name in found.names:
        rows.append([name, *(_cell(found.at(name, size)) for size in sizes)])
    rows.append(["bound", *(f"{_bound_s(found, size) * 1e3:.3g} ms" for size in sizes)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]
    note = f"measured / predicted; native is torch's own all-reduce; {_BOUND}"
    lines = [title(found), "", *table, note, ""]
    lines += [fit_words(found), f"fastest: {fastest_words(found)}", f"auto: {choice_words(found)}"]
    return clean("\n".join(lines)) + "\n"


def write_collectives_page(folder: Path) -> Path:
    """Write FOLDER/collectives.html from collectives.json.

    Raises:
        DataError: if collectives.json does not exist or cannot be read.
    """
    path = folder / COLLECTIVES_PAGE
    save_page(path, render_collectives(read_record(Collectives, folder / COLLECTIVES_FILE)))
    return path


def render_collectives(found: Collectives) -> str:
    """Return the page as HTML."""
    sizes = found.sizes
    best = {size: _best(found, size).name for size in sizes}
    gain, size = max((_gain(found, size), size) for size in sizes)
    fastest = best[size]
    return template("collectives.html").render(
        title=title(found),
        gain=None if fastest == _NATIVE else f"{gain:.2f}×",
        fastest=fastest,
        size=size_words(size),
        choice=choice_words(found),
        fastest_by_size=fastest_words(found),
        bounds=[f"{_bound_s(found, size) * 1e3:.3g}" for size in sizes],
        formulas=[(one.name, one.time) for one in ALGORITHMS if one.name in found.names],
        fit=fit_words(found),
        machine=found.machine,
        figures=[
            _figure(
                found, "Time", "milliseconds", lambda one: one.median_s * 1e3, Unit(suffix=" ms")
            ),
            _figure(
                found,
                "Bus bandwidth",
                "MB/s",
                lambda one: one.bus_bytes_per_s(found.fit.num_ranks) / 1e6,
                NUMBER,
            ),
        ],
        sizes=[size_words(size) for size in sizes],
        rows=[
            (
                name,
                [
                    (_cell(found.at(name, size)).removesuffix(_UNIT), best[size] == name)
                    for size in sizes
                ],
            )
            for name in found.names
        ],
    )


def title(found: Collectives) -> str:
    """Return how many ranks on how many hosts add up, and by what they send."""
    num_hosts = len(set(found.hosts))
    where = "one host" if num_hosts == 1 else f"{num_hosts} hosts"
    return f"all-reduce of {found.fit.num_ranks} ranks on {where}, over {found.backend}"


def fit_words(found: Collectives) -> str:
    """Return the fitted cost of messages in words."""
    link = found.fit.link
    return (
        f"a message of n bytes takes {link.alpha_s * 1e3:.3g} ms + n × {link.beta_s * 1e9:.3g} ns "
        f"one way, {link.exchange_alpha_s * 1e3:.3g} ms + n × {link.exchange_beta_s * 1e9:.3g} ns "
        f"in an exchange; adding it up takes n × {link.gamma_s * 1e9:.3g} ns"
    )


def fastest_words(found: Collectives) -> str:
    """Return which algorithm was the fastest up to which size, in one line."""
    names = [_best(found, size).name for size in found.sizes]
    *below, (last, _) = crossovers(names, found.sizes)
    return _range_words((*below, (last, 0)))


def choice_words(found: Collectives) -> str:
    """Return which algorithm `auto` uses up to which size, in one line."""
    return _range_words(found.choice)


def _range_words(ranges: Sequence[tuple[str, int]]) -> str:
    parts = [f"{name} {f'up to {size_words(size)}' if size else 'above'}" for name, size in ranges]
    return ", ".join(parts) if len(parts) > 1 else f"{ranges[0][0]} at every size"


def size_words(num_bytes: int) -> str:
    """Return a size such as `16 KB` or `4 MB`."""
    if num_bytes >= _KB**2:
        return f"{num_bytes / _KB**2:.4g} MB"
    return f"{num_bytes / _KB:.4g} KB" if num_bytes >= _KB else f"{num_bytes} B"


def _at(found: Collectives, num_bytes: int) -> list[CollectiveTime]:
    return [one for one in found.times if one.num_bytes == num_bytes]


def _best(found: Collectives, num_bytes: int) -> CollectiveTime:
    return min(_at(found, num_bytes), key=lambda one: one.median_s)


def _bound_s(found: Collectives, num_bytes: int) -> float:
    """Return the least seconds in which each rank can send what it has to, 2 (p - 1) / p · n / B.

    Source: Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms", JPDC 69(2).
    """
    num = found.fit.num_ranks
    return 2 * (num - 1) / num * num_bytes * found.fit.link.exchange_beta_s


def _gain(found: Collectives, num_bytes: int) -> float:
    """Return how many times as fast as torch's own the fastest is at a size."""
    times = {one.name: one.median_s for one in _at(found, num_bytes)}
    return times[_NATIVE] / min(times.values())


def _cell(time: CollectiveTime | None) -> str:
    if time is None:
        return ""
    measured = f"{time.median_s * 1e3:.3g}"
    return (
        f"{measured} ms"
        if time.predicted_s is None
        else (f"{measured} / {time.predicted_s * 1e3:.3g} ms")
    )


def _figure(
    found: Collectives,
    name: str,
    unit: str,
    value: Callable[[CollectiveTime], float],
    y_unit: Unit,
) -> Figure:
    """Draw a value of the fastest algorithms by size."""
    lines = [
        Series(
            name=shown,
            style=f"run{number + 1}",
            xs=[one.num_bytes / _KB for one in found.times if one.name == shown],
            ys=[value(one) for one in found.times if one.name == shown],
            tips=[
                f"{shown}, {size_words(one.num_bytes)}: {value(one):.3g} {unit}"
                for one in found.times
                if one.name == shown
            ],
        )
        for number, shown in enumerate(_shown(found))
    ]
    return Figure(
        title=f"{name}, {unit}",
        svg=line_chart(
            lines,
            title=f"{name} of an all-reduce by its size",
            x_label="KB",
            y_unit=y_unit,
            may_be_log=True,
            is_log_x=True,
        ),
        keys=tuple((line.style, line.name) for line in lines),
    )


def _shown(found: Collectives) -> Sequence[str]:
    """Return as many names as there are colors: torch's own, and the fastest over all sizes."""
    slowness = {
        name: max(
            one.median_s / min(other.median_s for other in _at(found, one.num_bytes))
            for one in found.times
            if one.name == name
        )
        for name in found.names
    }
    return [_NATIVE, *sorted((n for n in slowness if n != _NATIVE), key=slowness.__getitem__)][
        :_MAX_LINES
    ]

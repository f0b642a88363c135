"""The page and the terminal output of `stepladder scaling`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from markupsafe import Markup

from stepladder.records.from_json import read_record
from stepladder.records.scaling import SCALING_FILE, WORDS, Part, Scaling, ScalingPoint
from stepladder.reporting.charts import bars
from stepladder.reporting.charts.curves import Figure, device_figure
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.training.output.wording import clean, pace, percent, rough_time

SCALING_PAGE: Final = "scaling.html"
_NEXT: Final = {
    Part.MICRO_BATCH: "A larger global batch (`--batch-size`) leaves each device enough examples.",
    Part.CONTENTION: "The devices of a host slow each other down: fewer of them in each host, or "
    "fewer threads that read.",
    Part.STRAGGLERS: "One device is slower than the others: look for other processes on it, and at "
    "the busy share of each device below.",
    Part.COMMUNICATION: "A larger global batch, accumulation (`--batch.micro-batch-size`) or fewer "
    "trained weights send less for each example.",
    Part.DATA: "Steps wait for data, with one device or several: `stepladder advise` names what "
    "would read faster.",
    Part.SERIAL: "Validate and save less often (`--stopping.validate-every-epochs`, "
    "`--run.checkpoint-every-s`), or train longer, so that the start matters less.",
    Part.UNEXPLAINED: "Most of the loss is not explained: measure again on a machine without other "
    "jobs.",
}


def scaling_text(found: Scaling) -> str:
    """Return throughput, efficiency and split as a table."""
    head = ("hosts × devices", "", "step", "examples/s", "efficiency")
    parts = tuple(WORDS[part] for part in Part)
    has_cost = any(point.cost is not None for point in found.points)
    cost_head = ("per epoch", "to the end") if has_cost else ()
    rows = [(*head, *cost_head)]
    rows += [(*_cells(point), *(_cost(point) if has_cost else ())) for point in found.points]
    lines = [_title(found), "", *_table(rows), ""]
    split = [("share of the time", *(point.layout for point in found.measured))]
    for part, word in zip(Part, parts, strict=True):
        split.append((word, *(percent(point.share(part)) for point in found.measured)))
    lines += _table(split)
    best = found.measured[-1]
    serial = ", ".join(
        f"{name} {percent(seconds / best.epoch_s)}" for name, seconds in best.serial_s.items()
    )
    lines += ["", f"serial on {_devices(best)}: {serial}"]
    use = ", ".join(f"{one.rank}: {percent(one.mean_frac, 0)}" for one in best.use)
    lines += [f"busy share of each device on {_devices(best)}: {use}"]
    lines += [f"note: {text}" for text in found.notes]
    return clean("\n".join(lines)) + "\n"


def write_scaling_page(folder: Path) -> Path:
    """Write FOLDER/scaling.html from scaling.json.

    Raises:
        DataError: if scaling.json does not exist or cannot be read.
    """
    path = folder / SCALING_PAGE
    save_page(path, render_scaling(read_record(Scaling, folder / SCALING_FILE)))
    return path


@dataclass(frozen=True, kw_only=True)
class SplitRow:
    """The split of one point: its bar, and the share of each part."""

    name: str
    bar: Markup | None
    shares: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairRow:
    """Two layouts with the same number of devices."""

    names: tuple[str, str]
    cells: tuple[tuple[str, ...], tuple[str, ...]]
    verdict: str


def render_scaling(found: Scaling) -> str:
    """Return the page as HTML."""
    best = found.measured[-1]
    return template("scaling.html").render(
        found=found,
        best=best,
        figure=percent(best.efficiency.estimate, 0),
        noise=_noise(best),
        caption=f"efficiency on {_devices(best)}, measured",
        title=_title(found),
        next=_next(best),
        figures=[_throughput(found), _efficiency(found)],
        has_cost=any(point.cost is not None for point in found.points),
        rows=[(_cells(point), _cost(point), point.is_measured) for point in found.points],
        legend=[(f"ph-{_STYLES[part]}", WORDS[part]) for part in Part],
        split=[_split(point) for point in found.points],
        use=_use(best),
        use_rows=[(f"device {one.rank}", one.host, percent(one.mean_frac, 0)) for one in best.use],
        serial=[
            (name, rough_time(seconds), percent(seconds / best.epoch_s))
            for name, seconds in best.serial_s.items()
        ],
        pairs=list(_pairs(found)),
        network=_network(found),
    )


_STYLES: Final = {
    Part.COMPUTE: "forward",
    Part.MICRO_BATCH: "optimizer",
    Part.CONTENTION: "to_device",
    Part.STRAGGLERS: "augment",
    Part.COMMUNICATION: "validation",
    Part.DATA: "data_wait",
    Part.SERIAL: "setup",
    Part.UNEXPLAINED: "unexplained",
}


def _title(found: Scaling) -> str:
    if found.cores is None:
        what = found.device_name
    else:
        what = f"{found.cores} core{'s' if found.cores > 1 else ''} of the CPU"
    epochs = f"{found.epochs:.3g} epoch{'s' if found.epochs != 1 else ''}"
    return (
        f"a device is {what}; batches of {found.batch:,} over all devices; "
        f"{found.num_train:,} examples, at most {epochs}"
    )


def _next(point: ScalingPoint) -> str:
    """Return what to do about the largest loss, if the split adds up."""
    if point.why_no_advice() is not None:
        return "The parts do not add up: measure again on a machine without other jobs."
    loss = point.largest_loss()
    return "" if loss is None else f"Most is lost to {_lost(point, loss)}. {_NEXT[loss]}"


def _step(seconds: float) -> str:
    """Return the time of a step in three digits."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _devices(point: ScalingPoint) -> str:
    return f"{point.num} device{'s' if point.num > 1 else ''}"


def _noise(point: ScalingPoint) -> str:
    if point.num == 1:
        return ""
    bounds = point.efficiency
    return f"{100 * bounds.low:.0f} to {percent(bounds.high, 0)}"


def _cells(point: ScalingPoint) -> tuple[str, ...]:
    bounds = point.efficiency
    efficiency = percent(bounds.estimate)
    if point.is_measured and point.num > 1:
        efficiency += f" [{100 * bounds.low:.1f}, {100 * bounds.high:.1f}]"
    return (
        point.layout,
        "measured" if point.is_measured else "predicted",
        _step(point.step_s),
        pace(point.examples_per_s).removesuffix("/s"),
        efficiency,
    )


def _cost(point: ScalingPoint) -> tuple[str, str]:
    if point.cost_per_epoch is None or point.cost is None:
        return "unknown", "unknown"
    return f"{point.cost_per_epoch:.3g}", f"{point.cost:.3g}"


def _lost(point: ScalingPoint, part: Part) -> str:
    return f"{WORDS[part]}: {percent(point.share(part), 0)} of the time on {_devices(point)}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[idx]) for row in rows) for idx in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if idx == 0 else cell.rjust(width)
            for idx, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _on_one_host(points: Iterable[ScalingPoint]) -> list[ScalingPoint]:
    return [point for point in points if point.hosts == 1]


def _throughput(found: Scaling) -> Figure:
    """Draw examples per second by the number of devices, with the ideal line."""
    first = found.measured[0]
    lines = _lines(found, lambda point: point.examples_per_s, lambda value: f"{value:,.3g}/s")
    last = max(point.num for point in _shown(found))
    per_device = first.examples_per_s / first.num
    ideal = Series(
        name="ideal", style="ideal", xs=(1.0, float(last)), ys=(per_device, per_device * last)
    )
    return Figure(
        title="Throughput",
        svg=line_chart(
            [ideal, *lines],
            title="Examples per second by the number of devices",
            x_label="devices",
            y_unit=NUMBER,
            y_covers=(0.0,),
        ),
        keys=(*_keys(lines), ("ideal", "ideal")),
    )


def _efficiency(found: Scaling) -> Figure:
    """Draw the efficiency by the number of devices."""
    lines = _lines(found, lambda point: point.efficiency.estimate, lambda value: percent(value))
    return Figure(
        title="Efficiency",
        svg=line_chart(
            lines,
            title="Efficiency by the number of devices",
            x_label="devices",
            y_unit=SHARE,
            y_covers=(0.0, 1.0),
        ),
        keys=_keys(lines),
    )


def _shown(found: Scaling) -> list[ScalingPoint]:
    return [*found.measured, *found.predicted]


def _lines(
    found: Scaling, value: Callable[[ScalingPoint], float], say: Callable[[float], str]
) -> list[Series]:
    """Return the lines of a chart: measured, predicted on one host, and on hosts of one device."""
    measured = list(found.measured)
    inside = _on_one_host(found.predicted)
    apart = [point for point in found.predicted if point.hosts > 1 and point.devices == 1]
    first, last = measured[0], measured[-1]
    groups = [
        ("predicted, one host", "train dashed", [last, *inside] if inside else []),
        ("predicted, hosts of one device", "good dashed", [first, *apart] if apart else []),
        ("measured", "val", measured),
    ]
    lines = []
    for name, style, points in groups:
        if not points:
            continue
        ordered = sorted(points, key=lambda point: point.num)
        lines.append(
            Series(
                name=name,
                style=style,
                xs=[float(point.num) for point in ordered],
                ys=[value(point) for point in ordered],
                tips=[f"{point.layout}, {name}: {say(value(point))}" for point in ordered],
            )
        )
    return lines


def _keys(lines: Sequence[Series]) -> tuple[tuple[str, str], ...]:
    return tuple((line.style, line.name) for line in reversed(lines))


def _split(point: ScalingPoint) -> SplitRow:
    parts = [
        bars.Part(
            name=f"{point.layout}, {WORDS[part]}",
            style=f"ph-{_STYLES[part]}",
            size=max(0.0, point.parts_s[part]),
            share=point.share(part),
        )
        for part in Part
    ]
    name = point.layout if point.is_measured else f"{point.layout}, predicted"
    return SplitRow(
        name=name,
        bar=bars.stacked_bar(parts, title=f"Time of {_devices(point)} by part"),
        shares=tuple(percent(point.share(part)) for part in Part),
    )


def _use(point: ScalingPoint) -> Figure | None:
    """Draw the busy share of each device over the time of the measured loop."""
    return device_figure(point.use, title=f"Busy share on {_devices(point)}")


def _pairs(found: Scaling) -> list[PairRow]:
    """Compare many small hosts with one large one of as many devices."""
    rows = []
    best = {}
    for point in [*found.predicted, *found.measured]:  # measured ones win
        best[(point.hosts, point.devices)] = point
    for point in sorted(best.values(), key=lambda point: (point.num, point.hosts)):
        other = best.get((1, point.num))
        if point.hosts == 1 or other is None:
            continue
        ratio = other.epoch_s / point.epoch_s
        faster, name = (ratio, point) if ratio >= 1 else (1 / ratio, other)
        rows.append(
            PairRow(
                names=(point.layout, other.layout),
                cells=(_pair_cells(point), _pair_cells(other)),
                verdict=f"{name.layout} is {faster:.2f}× as fast" if faster > 1.005 else "equal",
            )
        )
    return rows


def _pair_cells(point: ScalingPoint) -> tuple[str, ...]:
    kind = "measured" if point.is_measured else "predicted"
    return (kind, rough_time(point.epoch_s), percent(point.efficiency.estimate), _cost(point)[1])


def _network(found: Scaling) -> str:
    how = " (assumed; `--ladder.network-gbit-s` changes it)" if found.is_network_assumed else ""
    return f"{found.network_gbit_s:g} Gbit/s{how}"

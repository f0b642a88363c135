"""Charts over time: learning curves, and usage of the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from stepladder.diagnosis.runs.run_state import best_validation
from stepladder.records.scaling import DeviceUse
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE, Unit
from stepladder.reporting.tables import RunRecords, count, fraction, number
from stepladder.stats import binomial_sem
from stepladder.training.output.wording import percent

_GIB = 1024**3
_PERCENT = Unit(suffix=" %")  # of a value in percent
_MOST_LINES: Final = 9  # of devices in one chart: as many as there are colors


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A chart with its title, legend and note.

    Attributes:
        keys: legend, as (CSS class, name).
        svg: None if there is nothing to draw; the note has the reason.
    """

    title: str
    svg: Markup | None
    keys: tuple[tuple[str, str], ...] = ()
    note: str = ""


def learning_figures(records: RunRecords) -> list[Figure]:
    """Draw loss and accuracy of train and val, with one standard error for val."""
    axis = _StepAxis.of(records)
    validations = records.of("validation")
    num_val = count(records.summary.get("num_val"))
    loss_noise = [number(event.get("val_loss_sem")) or 0.0 for event in validations]
    shares = [fraction(event.get("val_accuracy")) for event in validations]
    share_noise = [binomial_sem(p, num_val) if p is not None and num_val else 0.0 for p in shares]
    shared: dict[str, Any] = {"axis": axis, "num_val": num_val}
    return [
        _learning_figure("loss", records, noise=loss_noise, say=_decimals, **shared),
        _learning_figure("accuracy", records, noise=share_noise, say=percent, **shared),
    ]


def machine_figures(records: RunRecords) -> list[Figure]:
    """Draw throughput, waiting for data, usage of processors and memory over the time of the run.

    Of several devices also how busy each was, so that an idle one is visible.
    """
    events = [event for kind in records.events.values() for event in kind]
    minutes = max((number(event.get("elapsed_s")) or 0.0 for event in events), default=0.0) > 180
    unit = (60.0, "minutes") if minutes else (1.0, "seconds")
    train, system = records.of("train"), records.of("system")
    wait_key = "time_metrics/data_loading(%)"
    devices = device_figure(
        _devices(records.of("devices"), unit[0]), title="Busy share by device", unit=unit[1]
    )
    return [
        *([] if devices is None else [devices]),
        _use_figure(
            "Samples per second", train, unit, [("throughput/samples_per_sec", "train", "", 1)]
        ),
        _use_figure(
            "Waiting for data", train, unit, [(wait_key, "train", "", 1)], _PERCENT, covers=10
        ),
        _use_figure(
            "CPU and GPU" if any("gpu_percent" in event for event in system) else "CPU",
            system,
            unit,
            [
                ("gpu_percent", "val", "GPU", 1),
                ("cpu_percent", "train", "CPU (100 % is one core)", 1),
            ],
            _PERCENT,
        ),
        _use_figure(
            "Memory",
            system,
            unit,
            [("gpu_memory_bytes", "val", "GPU", _GIB), ("rss_bytes", "train", "process", _GIB)],
            Unit(suffix=" GiB"),
        ),
    ]


def device_figure(
    devices: Sequence[DeviceUse], *, title: str, unit: str = "seconds of training"
) -> Figure | None:
    """Draw the busy share of each device over time; None if there is nothing to draw.

    Args:
        unit: label of the time axis.
    """
    hosts = {one.host for one in devices}
    lines = [
        Series(
            name=f"device {one.rank} on {one.host}" if len(hosts) > 1 else f"device {one.rank}",
            style=f"run{idx % _MOST_LINES + 1}",
            xs=one.ends_s,
            ys=one.busy_frac,
        )
        for idx, one in enumerate(devices[:_MOST_LINES])
    ]
    svg = line_chart(
        lines,
        title="Busy share of each device over time",
        x_label=unit,
        y_unit=SHARE,
        y_covers=(0.0, 1.0),
    )
    if svg is None:
        return None
    keys = [
        (line.style, f"{line.name}, {percent(one.mean_frac, 0)} on average")
        for line, one in zip(lines, devices, strict=False)
    ]
    left = len(devices) - len(lines)
    note = f"The first {_MOST_LINES} of {len(devices)} devices are drawn." if left else ""
    return Figure(title=title, svg=svg, keys=tuple(keys), note=note)


def _devices(events: Sequence[Mapping[str, Any]], unit_s: float) -> list[DeviceUse]:
    """Return how busy each device was, from the events of a run."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for event in events:
        end, shares, hosts = (event.get(key) for key in ("elapsed_s", "busy_frac", "hosts"))
        end_s = number(end)
        if end_s is None or not isinstance(shares, list):
            continue
        for rank, share in enumerate(shares):
            names = hosts if isinstance(hosts, list) else []
            host = str(names[rank]) if rank < len(names) else ""
            if (busy := fraction(share)) is not None:
                found.setdefault((rank, host), []).append((end_s / unit_s, busy))
    return [
        DeviceUse(
            rank=rank,
            host=host,
            ends_s=tuple(end for end, _ in windows),
            busy_frac=tuple(busy for _, busy in windows),
        )
        for (rank, host), windows in sorted(found.items())
    ]


@dataclass(frozen=True, kw_only=True)
class _StepAxis:
    """The x axis of learning curves: epochs if their length is known, else steps."""

    steps_per_epoch: float | None

    @classmethod
    def of(cls, records: RunRecords) -> _StepAxis:
        lengths = [
            step / epoch
            for kind in ("validation", "train")
            for event in records.of(kind)
            if (epoch := number(event.get("epoch"))) and (step := number(event.get("step")))
        ]
        return cls(steps_per_epoch=min(lengths, default=None))  # exact at the end of any epoch

    @property
    def label(self) -> str:
        return "epochs" if self.steps_per_epoch else "steps"

    def at(self, step: object) -> float:
        value = number(step)
        return float("nan") if value is None else value / (self.steps_per_epoch or 1.0)


def _learning_figure(
    name: str,
    records: RunRecords,
    *,
    axis: _StepAxis,
    noise: Sequence[float],
    num_val: int,
    say: Callable[[float], str],
) -> Figure:
    validations, title = records.of("validation"), name.capitalize()
    train = _series(records.of("train"), f"train_{name}", axis, style="train", title="train")
    val = _series(validations, f"val_{name}", axis, style="val", title="validation")
    tips = [
        f"epoch {event.get('epoch')}: {say(y)}{f' ± {say(n)}' if n else ''}"
        for event, y, n in zip(validations, val.ys, noise, strict=True)
    ]
    val = Series(name=val.name, style=val.style, xs=val.xs, ys=val.ys, noise=noise, tips=tips)
    best = best_validation(records.summary, validations)
    is_share = name == "accuracy"
    svg = line_chart(
        [train, val],
        title=f"{title} of train and validation over {axis.label}",
        x_label=axis.label,
        may_be_log=not is_share,
        y_unit=SHARE if is_share else NUMBER,
        mark=None if best is None else (axis.at(best.step), _best_word(records)),
        y_limits=(0.0, 1.0) if is_share else None,
    )
    drawn = [item for item in (train, val) if any(y == y for y in item.ys)]  # noqa: PLR0124 (nan)
    keys = tuple((item.style, item.name) for item in drawn)
    if val in drawn and any(noise):
        size = f", n = {num_val:,}" if num_val else ""
        keys += (("band", f"± one standard error{size}"),)
    gaps = sum(_is_not_finite(e, f"train_{name}") for e in records.of("train"))
    gaps += sum(_is_not_finite(e, f"val_{name}") for e in validations)
    note = f"{gaps} values are not finite and not shown." if gaps else ""
    if svg is None:
        note = f"No {name} was logged."
    return Figure(title=title, svg=svg, keys=keys, note=note)


def _best_word(records: RunRecords) -> str:
    return "best" if records.ends_with_best else "best, not used"


def _use_figure(
    title: str,
    events: Sequence[Mapping[str, Any]],
    unit: tuple[float, str],
    wanted: Iterable[tuple[str, str, str, float]],
    y_unit: Unit = NUMBER,
    *,
    covers: float = 0.0,
) -> Figure:
    series = []
    for key, style, name, factor in wanted:
        found = [(number(event.get("elapsed_s")), number(event.get(key))) for event in events]
        points = [(t / unit[0], y / factor) for t, y in found if t is not None and y is not None]
        if points:
            xs, ys = zip(*points, strict=True)
            series.append(Series(name=name, style=style, xs=xs, ys=ys))
    if series and all(len(item.xs) == 1 for item in series):
        said = ", ".join(f"{item.name} {y_unit.label(item.ys[0])}".strip() for item in series)
        return Figure(title=title, svg=None, note=f"Only one sample: {said}.")
    svg = line_chart(
        series,
        title=f"{title} over {unit[1]}",
        x_label=unit[1],
        y_unit=y_unit,
        y_covers=(0.0, covers),
    )
    keys = tuple((item.style, item.name) for item in series if item.name)
    return Figure(title=title, svg=svg, keys=keys, note="" if svg else "Not measured in this run.")


def _series(
    events: Sequence[Mapping[str, Any]], key: str, axis: _StepAxis, *, style: str, title: str
) -> Series:
    ys = [number(event.get(key)) for event in events]
    return Series(
        name=title,
        style=style,
        xs=[axis.at(event.get("step")) for event in events],
        ys=[float("nan") if y is None else y for y in ys],
    )


def _is_not_finite(event: Mapping[str, Any], key: str) -> bool:
    return str(event.get(key)).lower() in {"nan", "inf", "-inf"}


def _decimals(value: float) -> str:
    return f"{value:.4f}"

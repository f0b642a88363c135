"""Draw the curves of benchmarks as pictures for the docs, from their results.

python -m bench.curves
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from markupsafe import Markup, escape

from stepladder.records.from_json import from_json
from stepladder.records.population import PopulationSummary
from stepladder.reporting.charts.family import family_tree
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import SHARE
from stepladder.reporting.pages.population_page import figures

ROOT: Final = Path(__file__).parents[1]
DOCS: Final = ROOT / "docs"
RESULTS: Final = ROOT / "bench" / "results"
_COLORS: Final = {
    "run1": "#2458a8",
    "run2": "#a8742a",
    "run3": "#2d7d57",
    "run4": "#a8577f",
    "run5": "#7a6aa8",
    "run6": "#c2571a",
    "run7": "#2f8f83",
    "run8": "#5d8ed1",
    "train": "#a8742a",
    "val": "#2458a8",
    "ideal": "#a9adb4",
}
_TEMPLATES: Final = ROOT / "src" / "stepladder" / "reporting" / "templates"
_LEGEND, _LINE = 24, 16  # heights of a legend of one line, and of each further one


def standalone(svg: Markup, title: str, keys: Sequence[tuple[str, str]]) -> str:
    """Return a chart of a page as a file: with its colors, and a line with its title and legend.

    Args:
        keys: the legend, as (class, name).
    """
    text = re.sub(r' data-chart="[^"]*"', "", str(svg))
    found = re.match(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert found is not None
    width = float(found[1])
    inside = text[text.index(">") + 1 : text.rindex("</svg>")]
    marks, at, top = [], 12 + 6.6 * len(title) + 14, 0
    for style, name in keys:
        color, wide = _COLORS[style], 19 + 6.2 * len(name)
        if at + wide > width:
            at, top = 12, top + _LINE
        marks.append(
            f'<rect x="{at:.0f}" y="{top + 11}" width="14" height="3" fill="{color}"/>'
            f'<text x="{at + 19:.0f}" y="{top + 16}">{escape(name)}</text>'
        )
        at += wide + 16
    top += _LEGEND
    height = float(found[2]) + top
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img"><title>{escape(title)}</title>'
        f"<style>{_style()}</style>"
        f'<rect width="{width:g}" height="{height:g}" fill="#fdfdfb"/>'
        f'<text class="title" x="12" y="16">{escape(title)}</text>{"".join(marks)}'
        f'<g class="chart family" transform="translate(0,{top})">{inside}</g></svg>\n'
    )


def _style() -> str:
    lines = "".join(
        f".line.{name}{{stroke:{color}}}.dot.{name},.band.{name}{{fill:{color}}}"
        for name, color in _COLORS.items()
    )
    return (
        "text{font:11px system-ui,sans-serif;fill:#6a6e75}.title{fill:#1d1f22;font-weight:600}"
        ".grid,.axis{fill:none;stroke:#e3e2dc}.line{fill:none;stroke-width:1.8}"
        ".band{fill-opacity:.15}.kin{fill:none;stroke:#e3e2dc}.kin.copied{stroke:#a8742a;"
        "stroke-opacity:.55}.kin.way{stroke:#2458a8;stroke-width:2.5}.node{fill:#6a6e75}"
        f".node.way{{fill:#2458a8}}.node.lost{{fill:#c2571a}}{lines}"
    )


def pictures() -> dict[str, str]:
    """Return the pictures by their path in the docs."""
    found = {f"pictures/optimizers/{name}.svg": text for name, text in _of_optimizers().items()}
    return found | {
        f"pictures/population/{name}.svg": text for name, text in _of_population().items()
    }


def _results(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _of_optimizers() -> dict[str, str]:
    races = {
        "autoencoder": "an autoencoder",
        "tokens": "a transformer",
        "fine_tune": "a convolutional network",
    }
    found = _of_large_batches()
    for problem, named in races.items():
        found |= _of_race(problem, named)
    return found


def _of_race(problem: str, named: str) -> dict[str, str]:
    """Return the loss by steps and by seconds, the median of the seeds."""
    records = _results(problem)["rounds"]
    curves: dict[str, list[Mapping[str, Any]]] = {}
    step_s: dict[str, list[float]] = {}
    for one in records:
        if "curve" in one:
            curves.setdefault(one["name"], []).append(one["curve"])
        elif "step_s" in one:
            step_s.setdefault(one["name"], []).append(one["step_s"])
    found = {}
    for name, label in (("steps", "steps"), ("seconds", "seconds")):
        lines = []
        for idx, (optimizer, some) in enumerate(curves.items()):
            factor = median(step_s[optimizer]) if name == "seconds" else 1.0
            ys = [median(values) for values in zip(*(one["losses"] for one in some), strict=True)]
            xs = [factor * step for step in some[0]["steps"]]
            lines.append(Series(name=optimizer, style=f"run{idx + 1}", xs=xs, ys=ys))
        svg = line_chart(lines, title=f"loss of {named} by {label}", x_label=label, may_be_log=True)
        assert svg is not None
        keys = [(line.style, line.name) for line in lines]
        found[f"{problem}-{name}"] = standalone(svg, f"Loss by {label}", keys)
    return found


def _of_large_batches() -> dict[str, str]:
    """Return what came out of larger batches, by optimizer and rule: means of the seeds."""
    records = [one for one in _results("large_batches")["rounds"] if one["seed"] > 0]
    cases = list(dict.fromkeys((one["name"], one["rule"]) for one in records))
    cases = [case for case in cases if case[1] != "none"]
    found = {}
    for value, title in (("accuracy", "Accuracy on validation"), ("sharpness", "Sharpness")):
        lines = []
        for idx, (name, rule) in enumerate(cases):
            own = [one for one in records if (one["name"], one["rule"]) == (name, rule)]
            base = [one for one in records if one["name"] == name and one["batch"] == 32]
            by_batch: dict[int, list[float]] = {}
            for one in {json.dumps(one): one for one in (*base, *own)}.values():
                by_batch.setdefault(one["batch"], []).append(float(one["found"][value]))
            kept = {
                batch: values
                for batch, values in sorted(by_batch.items())
                if all(map(math.isfinite, values)) and _has_learnt(own, base, batch)
            }
            lines.append(
                Series(
                    name=f"{name} {rule}",
                    style=f"run{idx % 9 + 1}",
                    xs=[float(batch) for batch in kept],
                    ys=[sum(values) / len(values) for values in kept.values()],
                )
            )
        svg = line_chart(
            lines,
            title=f"{title} by batch",
            x_label="batch",
            is_log_x=True,
            **({"y_unit": SHARE} if value == "accuracy" else {"may_be_log": True}),
        )
        assert svg is not None
        keys = [(line.style, line.name) for line in lines]
        found[f"large-batches-{value}"] = standalone(svg, title, keys)
    return found


def _has_learnt(
    own: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], batch: int
) -> bool:
    """Return whether trainings with a batch are better than chance, so that sharpness says much."""
    some = [float(one["found"]["accuracy"]) for one in (*own, *base) if one["batch"] == batch]
    return min(some) > 0.3


def _of_population() -> dict[str, str]:
    """Return the family tree, the scores and the genes of a population on the demo's features."""
    summary = from_json(PopulationSummary, _results("population_demo")["population"])
    found = {
        "family": standalone(
            family_tree(summary.moments, summary.path()),
            "Family tree: a column for each interval, a row for each member",
            (("val", "way to the winner"), ("train", "took the weights of another")),
        )
    }
    drawn = figures(summary)
    for name, key in (("progress", "progress"), ("lr", "batch.lr")):
        figure = drawn[key]
        assert figure.svg is not None
        found[name] = standalone(figure.svg, figure.title, figure.keys)
    return found


def main() -> None:
    """Write all pictures."""
    for name, text in pictures().items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()

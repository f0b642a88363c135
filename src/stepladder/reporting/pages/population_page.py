"""The page and the terminal output of `stepladder population`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepladder.records.from_json import read_record
from stepladder.records.population import (
    POPULATION_FILE,
    Moment,
    PopulationSummary,
    Score,
)
from stepladder.reporting.charts.curves import Figure
from stepladder.reporting.charts.family import family_tree, shown
from stepladder.reporting.charts.lines import Series, line_chart
from stepladder.reporting.charts.scales import NUMBER, SHARE
from stepladder.reporting.html import template
from stepladder.reporting.links import save_page
from stepladder.training.output.wording import clean, percent, rough_time

TARGET: Final = "target"
POPULATION_PAGE: Final = "population.html"
ENDS: Final = {
    TARGET: "the target was reached",
    "no_progress": "no member became better",
    "max_epochs": "the last epoch was reached",
    "max_time": "the time was over",
}
_ENGINES: Final = {
    "heads": "linear heads in one program",
    "stacked": "small models in one program",
    "slices": "one after the other, from checkpoint to checkpoint",
    "ray": "by Ray Tune",
}


def interval_line(moments: Sequence[Moment], best: Moment | None) -> str:
    """Return a line about the members at the end of an interval."""
    finite = [moment for moment in moments if moment.score.is_finite]
    first = min(finite, key=lambda moment: moment.score.loss)
    middle = sorted(moment.score.loss for moment in finite)[len(finite) // 2]
    lost = len(moments) - len(finite)
    words = [
        f"interval {first.generation + 1}",
        f"lowest loss {first.score.loss:.4f}",
        f"median {middle:.4f}",
    ]
    if best is not None:
        words.append(f"best so far: {score_words(best.score)}")
    if lost:
        words.append(f"{lost} diverged")
    return ", ".join(words)


def score_words(score: Score) -> str:
    """Return a score in words."""
    loss = f"loss {score.loss:.4f}" if score.loss < 1e6 else f"loss {score.loss:.3g}"
    return loss if score.accuracy is None else f"{loss}, accuracy {percent(score.accuracy)}"


def end_words(found: PopulationSummary) -> str:
    """Return why a population ended, and that its target was not reached, if it had one."""
    if found.target is None or found.ended == TARGET:
        return ENDS[found.ended]
    best = found.winner.validation
    is_loss = found.monitor == "val_loss" or best.accuracy is None
    reached = best.loss if is_loss else best.accuracy
    return f"{ENDS[found.ended]}; the target {found.target:g} was not reached, but {reached:.4g}"


def population_text(found: PopulationSummary) -> str:
    """Return the result as lines."""
    win = found.winner
    lines = [
        f"{found.num_members} members ({_ENGINES[found.engine]}), {found.num_generations} "
        f"intervals of {found.interval:,} examples, {rough_time(found.seconds)}: "
        f"{end_words(found)}",
        f"winner: member {win.member + 1} of interval {win.generation + 1}",
        f"  on validation, by which it was chosen: {score_words(win.validation)}",
    ]
    if win.judged is not None:
        lines.append(f"  on {found.judged_on}, which chose nothing: {score_words(win.judged)}")
        lines.append(f"  {optimism_words(found)}")
    lines.append("  settings at the end: " + _genes(found.path()[-1]))
    if found.num_diverged:
        lines.append(f"  {found.num_diverged} members diverged on the way, and were replaced")
    return clean("\n".join(lines)) + "\n"


def optimism_words(found: PopulationSummary) -> str:
    """Return by how much the validation split flatters the winner."""
    value = found.optimism()
    if value is None:
        return "not known by how much the validation split flatters it"
    gap, unit = value
    is_accuracy = unit == "accuracy"
    amount = f"{100 * gap:+.1f} points of accuracy" if is_accuracy else f"{gap:+.4f} in loss"
    return f"the validation split flatters it by {amount}, compared with the mean member"


def write_population_page(folder: Path) -> Path:
    """Write FOLDER/population.html from population.json.

    Raises:
        DataError: if population.json does not exist or cannot be read.
    """
    path = folder / POPULATION_PAGE
    save_page(path, render_population(read_record(PopulationSummary, folder / POPULATION_FILE)))
    return path


def render_population(found: PopulationSummary) -> str:
    """Return the page as HTML."""
    win, way = found.winner, found.path()
    main = win.judged if win.judged is not None else win.validation
    where = found.judged_on or "validation"
    is_accuracy = main.accuracy is not None
    return template("population.html").render(
        found=found,
        figure=percent(main.accuracy) if is_accuracy else f"{main.loss:.4g}",
        caption=f"{'accuracy' if is_accuracy else 'loss'} of the winner on {where}",
        title=f"{found.num_members} members, {_ENGINES[found.engine]}; {found.num_generations} "
        f"intervals of {found.interval:,} examples in {rough_time(found.seconds)}; "
        f"{end_words(found)}",
        flattery=optimism_words(found),
        scores=_scores(found),
        figures=list(figures(found).values()),
        tree=family_tree(found.moments, way),
        way=[_cells(moment) for moment in way],
        genes=found.genes,
        last=_genes(way[-1]),
    )


def figures(found: PopulationSummary) -> dict[str, Figure]:
    """Return the charts of a population by name: `progress`, and one for each gene."""
    return {"progress": _progress(found), **{key: _gene(found, key) for key in found.genes}}


def _genes(moment: Moment) -> str:
    return ", ".join(f"{key} {shown(value)}" for key, value in moment.genes.items())


def _scores(found: PopulationSummary) -> list[tuple[str, str, str]]:
    """Return rows of (who, on validation, on the other split)."""
    win = found.winner
    rows = [("the winner", win.validation, win.judged)]
    if win.mean_validation is not None:
        rows.append(("the mean member at the end", win.mean_validation, win.mean_judged))
    return [
        (who, score_words(one), "not judged" if other is None else score_words(other))
        for who, one, other in rows
    ]


def _cells(moment: Moment) -> tuple[str, ...]:
    origin = "" if moment.generation == 0 else f"from member {moment.parent + 1}"
    if moment.parent == moment.member and moment.generation:
        origin = "kept its weights"
    return (
        str(moment.generation + 1),
        str(moment.member + 1),
        origin,
        *(shown(value) for value in moment.genes.values()),
        score_words(moment.score),
    )


def _by_generation(found: PopulationSummary) -> list[list[Moment]]:
    columns: list[list[Moment]] = [[] for _ in range(found.num_generations)]
    for moment in found.moments:
        if moment.score.is_finite:
            columns[moment.generation].append(moment)
    return columns


def _progress(found: PopulationSummary) -> Figure:
    """Draw the best, the median and the worst member of each interval."""
    columns = _by_generation(found)
    is_accuracy = found.winner.validation.accuracy is not None
    values = [sorted(_value(moment, is_accuracy) for moment in column) for column in columns]
    lines = []
    picks = (
        ("best", "val", -1 if is_accuracy else 0),
        ("worst", "ideal", 0 if is_accuracy else -1),
    )
    named = [(name, style, [column[at] for column in values]) for name, style, at in picks]
    named.insert(1, ("median", "train", [column[len(column) // 2] for column in values]))
    for name, style, ys in named[::-1]:
        xs = [float(idx + 1) * found.interval for idx in range(len(ys))]
        lines.append(Series(name=name, style=style, xs=xs, ys=ys))
    what = "Accuracy" if is_accuracy else "Loss"
    return Figure(
        title=f"{what} on validation",
        svg=line_chart(
            lines,
            title=f"{what} on validation by examples of each member",
            x_label="examples of each member",
            y_unit=SHARE if is_accuracy else NUMBER,
            may_be_log=not is_accuracy,
        ),
        keys=tuple((line.style, line.name) for line in lines[::-1]),
    )


def _value(moment: Moment, is_accuracy: bool) -> float:
    if is_accuracy and moment.score.accuracy is not None:
        return moment.score.accuracy
    return moment.score.loss


def _gene(found: PopulationSummary, key: str) -> Figure:
    """Draw the values of a gene: of the way to the winner, and the range of all members."""
    way = found.path()
    values = [moment.genes[key] for moment in found.moments]
    if any(isinstance(value, str) for value in values):
        return _choice(found, key)
    columns = _by_generation(found)
    lines = []
    for name, style, pick in (("smallest", "ideal", min), ("largest", "ideal", max)):
        ys = [pick(_number(moment.genes[key]) for moment in column) for column in columns]
        xs = [float(idx + 1) for idx in range(len(ys))]
        lines.append(Series(name=name, style=style, xs=xs, ys=ys))
    lines.append(
        Series(
            name="the winner's",
            style="val",
            xs=[float(moment.generation + 1) for moment in way],
            ys=[_number(moment.genes[key]) for moment in way],
        )
    )
    return Figure(
        title=key,
        svg=line_chart(
            lines,
            title=f"{key} by interval",
            x_label="interval",
            may_be_log=key in found.log_genes,
        ),
        keys=(("val", "way to the winner"), ("ideal", "smallest and largest")),
    )


def _choice(found: PopulationSummary, key: str) -> Figure:
    """Draw the share of members with each value of a choice."""
    names = sorted({str(moment.genes[key]) for moment in found.moments})
    columns = _by_generation(found)
    lines = []
    for idx, name in enumerate(names):
        ys = [
            sum(str(moment.genes[key]) == name for moment in column) / len(column)
            for column in columns
        ]
        xs = [float(at + 1) for at in range(len(ys))]
        lines.append(Series(name=name, style=f"run{idx % 9 + 1}", xs=xs, ys=ys))
    return Figure(
        title=key,
        svg=line_chart(
            lines,
            title=f"Share of members by {key}",
            x_label="interval",
            y_unit=SHARE,
            y_covers=(0.0, 1.0),
        ),
        keys=tuple((line.style, line.name) for line in lines),
    )


def _number(value: float | int | str) -> float:
    return float(value)

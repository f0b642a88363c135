"""The page of all rungs, written from their docstrings: `python -m stepladder.rungs.reference`.

A test compares docs/rungs.md with it.
"""

from __future__ import annotations

import inspect
import sys

from stepladder.rungs.contract import Rung
from stepladder.rungs.order import REMEDIES, RUNGS

_HEAD = """# Rungs

Written from the code by `python -m stepladder.rungs.reference > docs/rungs.md`.

The ladder is climbed from the top of this table down: cheapest and safest first. `stepladder climb`
predicts each rung for your job, tries it if the prediction is worth a trial, and keeps it only if
it paid. How to add one: [adding-a-rung.md](adding-a-rung.md).

- **aim**: a `time` rung is kept when it is faster beyond doubt and not worse; a `memory` rung is
  tried only where memory stands in the way; an `accuracy` rung is kept when the gain is above 0
  beyond doubt, within the extra time that `ladder.time_per_point` allows.
- **exactness**: how far a rung may change what is learnt. `bitwise`: not by a bit. `rounding`: only
  as other orders of summation do, which is compared number by number. `statistical`: the result is
  another one, and held-out examples have to show that it is no worse.

"""
_REMEDIES = """
## Remedies

`stepladder climb --aim accuracy` goes down this table instead: what may make a model better. Which
of them are tried is measured first, from what the recipe gets wrong of examples that it learnt
from, and of held-out ones. Where the training error is the larger part of the held-out error, only
rungs against `training` are tried: nothing that makes fitting harder, and no more data. Where it is
the smaller part, only rungs against the `gap`. Where neither is above its noise, none.
`stepladder fit-recipe` first goes up those against `training`, as long as each lets the model
learn more, until it overfits; then come those against the `gap`.

Each is judged as an `accuracy` rung is above. Without classes, a fall of the held-out loss by a
hundredth counts as a point of accuracy. Where a rung can be had in several strengths, trainings
with seeds of their own choose. With so many rungs at 95 % each, now and then one is kept by chance:
the test examples, read once at the end, know of no choice.

"""
_TAIL = """
## A list of GPUs

A list of your own for `larger_gpu` (`--ladder.prices FILE.csv`) has the columns `name`,
`half_flops_per_s` (dense, 16 bits), `fp32_flops_per_s`, `bytes_per_s` and `price_per_hour`; an
empty price is one that you do not know. A column `tf32_flops_per_s` (dense) may be added:
convolutions in 32 bits run at that rate on GPUs that have it. With prices, the GPU on which the
whole training costs least is named; without them, the one on which it takes least time.
"""
_MARKS = ("Trades:", "Source:")


def page() -> str:
    """Write the page as Markdown."""
    rows = [
        "| level | rung | aim | exactness | what it changes | what it trades | source |",
        "|---|---|---|---|---|---|---|",
        *(_row(rung, about=_aim(rung)) for rung in RUNGS),
    ]
    remedies = [
        "| level | rung | against | exactness | what it changes | what it trades | source |",
        "|---|---|---|---|---|---|---|",
        *(_row(rung, about=_against(rung)) for rung in REMEDIES),
    ]
    tables = ["\n".join(table) + "\n" for table in (rows, remedies)]
    return _HEAD + tables[0] + _REMEDIES + tables[1] + _TAIL


def _aim(rung: Rung) -> str:
    return f"{rung.aim}, predicted only" if rung.is_prediction_only else f"{rung.aim}"


def _against(rung: Rung) -> str:
    part = f"{rung.against}" if rung.against else "both"
    return f"{part}, told only" if rung.is_prediction_only else part


def _row(rung: Rung, *, about: str) -> str:
    doc = inspect.getdoc(type(rung)) or ""
    trades, source = (_section(doc, mark) for mark in _MARKS)
    cells = (rung.level, f"`{rung.name}`", about, rung.exactness, _summary(doc), trades, source)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _summary(doc: str) -> str:
    return " ".join(doc.partition("\n\n")[0].split())


def _section(doc: str, mark: str) -> str:
    """Return what follows a mark at the start of a line, up to the next mark."""
    text = doc.partition(f"\n{mark}")[2]
    for other in _MARKS:
        text = text.partition(f"\n{other}")[0]
    return " ".join(text.split())


if __name__ == "__main__":
    sys.stdout.write(page())

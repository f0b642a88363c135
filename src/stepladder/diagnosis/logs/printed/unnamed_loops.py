"""Progress bars without names: the first of each epoch is of training, the second of evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.diagnosis.logs.printed.screen import screen_lines

_PLAIN = re.compile(  # of pytorch-cifar: ` [====>..]  Step: 80ms | Loss: 0.3 | Acc: 93.0% 1/100`
    r"^\W*\[[=>.#\- ]{5,}\]\s*(?P<values>.*\S)\s+(?P<done>\d+)/(?P<of>\d+)\s*$"
)
_TQDM = re.compile(  # without a description: `100%|####| 79/79 [00:02<00:00, 30.1it/s, loss=0.3]`
    r"^\s*\d+%\|[^|]*\|\s*(?P<done>\d+)/(?P<of>\d+)\s*\[[^\],]*,[^\],]*(?:,\s*(?P<values>[^\]]*))?\]"
    r"(?P<after>.*)$"
)
_NAMED = re.compile(  # a split in the name of a value
    r"\b(?:train|val|valid|test|eval)\w*[ _/.:-]{0,3}(?:\w+[ _/]){0,2}(?:loss|acc)", re.IGNORECASE
)
_EPOCH = re.compile(r"\bep(?:och)?s?\b\W{0,4}\d", re.IGNORECASE)
_TIMES = re.compile(r"\b(?:Step|Tot|ETA|time)\s*:\s*[\w.:]+\s*\|?\s*", re.IGNORECASE)
_COUNTED = re.compile(r"(:\s*)[\d.]+\s*%\s*\(\s*(\d+)/(\d+)\s*\)")
_MIN_EPOCHS = 2
_MIN_VALUES = re.compile(r"loss|acc", re.IGNORECASE)
NOTE = (
    "each epoch has two progress bars without a name: the first is read as training, the second "
    "as validation"
)


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """The last state of a bar: its index in the lines, its number of batches and its values."""

    at: int
    num_batches: int
    values: str


def name_unnamed_loops(text: str) -> tuple[str, tuple[str, ...]]:
    """Name the values of two progress bars per epoch, if neither the bars nor the values have one.

    Source: kuangliu/pytorch-cifar, `progress_bar`, and its many derivatives.

    Returns:
        The text, and a note if it was changed.
    """
    if _NAMED.search(text):
        return text, ()
    lines = screen_lines(text)
    bars = _finished(lines)
    if not _alternates(lines, bars):
        return text, ()
    named = {
        bar.at: f"{'val' if idx % 2 else 'train'} {_values(bar.values, is_held_out=bool(idx % 2))}"
        for idx, bar in enumerate(bars)
    }
    kept = [
        named.get(idx, line)
        for idx, line in enumerate(lines)
        if idx in named or _match(line) is None
    ]
    return "\n".join(kept), (NOTE,)


def _match(line: str) -> re.Match[str] | None:
    return _PLAIN.match(line) or _TQDM.match(line)


def _finished(lines: Sequence[str]) -> list[_Bar]:
    """Return the bars that came to their end; of equal states of the same bar, the last one."""
    found: list[_Bar] = []
    for idx, line in enumerate(lines):
        state = _match(line)
        if state is None or state["done"] != state["of"] or not state["values"]:
            continue
        if not _MIN_VALUES.search(state["values"]):
            continue
        bar = _Bar(at=idx, num_batches=int(state["of"]), values=state["values"])
        is_same = found and all(
            _is_state(other, state["of"]) for other in lines[found[-1].at : idx]
        )
        if is_same and found[-1].num_batches == bar.num_batches:
            found.pop()
        found.append(bar)
    return found


def _is_state(line: str, num_batches: str) -> bool:
    state = _match(line)
    return state is not None and state["done"] == state["of"] == num_batches


def _alternates(lines: Sequence[str], bars: Sequence[_Bar]) -> bool:
    """Return True if each epoch has a long bar and then a shorter one, of equal lengths each."""
    first = {bar.num_batches for bar in bars[0::2]}
    second = {bar.num_batches for bar in bars[1::2]}
    if len(bars) < 2 * _MIN_EPOCHS or len(first) != 1 or len(second) != 1 or first == second:
        return False
    starts = [idx for idx, line in enumerate(lines) if _EPOCH.search(line) and not _match(line)]
    ends = [*starts[1:], len(lines)]
    counts = [
        sum(start <= bar.at < end for bar in bars) for start, end in zip(starts, ends, strict=True)
    ]
    return len(counts) >= _MIN_EPOCHS and all(num == 2 for num in counts[:-1])


def _values(values: str, *, is_held_out: bool) -> str:
    """Return the values of a bar with commas, and a held-out accuracy as correct/all."""
    bare = _TIMES.sub("", values)
    if is_held_out:
        bare = _COUNTED.sub(r"\1\2/\3", bare)
    return re.sub(r"\s*[|,]\s*", ", ", bare)

"""Lines of the script that take time outside of the model, the optimizer and the loader."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from stepladder.watching.causes.contract import Cause, Evidence, percent
from stepladder.watching.seen.costs import (
    BACKWARD,
    FORWARD,
    HOOK,
    OPTIMIZER,
    OWN,
    SampleSeen,
    Spot,
)

_MIN_SHARE: Final = 0.03
_MIN_OTHER: Final = 0.12  # of lines that are not recognised
_MIN_READ: Final = 0.25  # of those that read single values, which takes no time on a CPU
_MOST: Final = 0.7  # a line within another one is named if it has this share of its time
_MAX_TEXT: Final = 60
_MAX_CAUSES: Final = 3

# Recognised by the text of a line that calls a built-in function, or by the library that it calls.
_SLEEP: Final = re.compile(r"\bsleep\(")
_CLEANUP: Final = re.compile(r"\bgc\.collect\(|\bempty_cache\(|\bmalloc_trim\(")
_CONSOLE: Final = re.compile(r"\bprint\(|\.write\(|\.flush\(|\bset_postfix|\bset_description")
_READ: Final = re.compile(r"\.item\(|\.tolist\(|\.cpu\(|\.numpy\(|\bfloat\(|\bint\(|\bbool\(")
_WAIT: Final = re.compile(r"\bsynchronize\(")
_COPY: Final = re.compile(r"\.to\(|\.cuda\(")
_LOSS: Final = re.compile(r"loss|criterion|objective", re.IGNORECASE)
_LOSS_TEXT: Final = re.compile(  # one is called, or assigned
    r"(loss|criterion|objective)\w*\(|^[^=(]*(loss|criterion|objective)[^=(]*=(?!=)", re.IGNORECASE
)
_NEXT: Final = re.compile(r"\bnext\(iter\(")
_WEIGHTS: Final = re.compile(r"parameters\(\)|param_groups|state_dict\(\)|\.grad\b|\bparams\b")
_TRACKERS: Final = (
    "tensorboard",
    "tensorboardX",
    "wandb",
    "mlflow",
    "comet_ml",
    "neptune",
    "clearml",
    "aim/",
)
_PRINTERS: Final = ("tqdm/", "logging/", "rich/", "loguru/")
_PLOTTERS: Final = ("matplotlib/", "seaborn/", "plotly/")
_METRICS: Final = ("sklearn/", "torchmetrics/", "torcheval/", "scipy/")
_FILES: Final = ("pandas/", "json/", "csv.py", "pickle.py", "numpy/lib/", "h5py/", "zipfile.py")
_IMAGES: Final = ("PIL/", "cv2/", "imageio/", "torchvision/io", "skimage/")

_SAVE: Final = re.compile(r"\bdump\(|\bsavez?\(|\bsavez_compressed\(|\.to_(csv|parquet|pickle)\(")
_SAVES: Final = (":save", ":savez", ":savez_compressed", ":dump", ":to_csv", ":to_parquet")

_FIXES: Final = {
    "fewer_hooks": "remove the hook, or let it return at once in all but every 100th step",
    "no_sleep": "remove the pause",
    "memory_cleanup": "remove it: memory that is released in every step must be requested again",
    "less_printing": "print every 100 steps, and pass values that are already on the host",
    "less_logging": "log every 100 steps, histograms once per epoch",
    "host_reads": "keep values on the device (`loss.detach()`) and read them every 50 or 100 "
    "steps: each read waits for the GPU",
    "asynchronous_copies": "copy with non_blocking=True from a loader with pin_memory=True",
    "fewer_plots": "draw once per epoch",
    "fewer_metrics": "compute metrics once per epoch, or with torch on whole batches",
    "fewer_checkpoints": "save once per epoch, or every few minutes",
    "read_once": "read it once, before the loop, and keep the result in memory",
    "decoded_once": "decode each image once, before the loop, and keep the pixels in memory or in "
    "an array on disk",
    "foreach": "do it for all weights at once, with the functions torch._foreach_* or, to clip, "
    "torch.nn.utils.clip_grad_norm_",
    "vectorise": "replace the Python loop by operations on whole tensors",
    "slow_line": "move it out of the loop, do it less often, or use operations on whole tensors",
}


def kind_of(sample: SampleSeen, *, has_gpu: bool) -> str | None:
    """Return what the innermost line of a sample does, if that is recognised."""
    if not sample.spots:
        return None
    text, calls = sample.spots[-1].text, sample.calls
    if "torch.save(" in text or any(call.startswith("torch/serialization") for call in calls):
        return None  # timed as a phase
    if any(call.endswith(_SAVES) for call in calls):
        return "fewer_checkpoints"
    by_call = (
        (_TRACKERS, "less_logging"),
        (_PRINTERS, "less_printing"),
        (_PLOTTERS, "fewer_plots"),
        (_IMAGES, "decoded_once"),
        (_METRICS, "fewer_metrics"),
        (_FILES, "read_once"),
    )
    for libraries, kind in by_call:
        if kind == "read_once" and sample.spots[-1].joins:
            continue  # numpy and pandas do more than reading
        if any(f"/{name}" in f"/{call}" for call in calls for name in libraries):
            return kind
    if _CLEANUP.match(text):
        return "memory_cleanup"  # callbacks of the garbage collector may be in libraries
    return _by_call(calls) or (_by_text(text, has_gpu=has_gpu) if not calls else None)


def _by_call(calls: Sequence[str]) -> str | None:
    if any(call.endswith((":empty_cache", "gc.py:collect")) for call in calls):
        return "memory_cleanup"
    return "host_reads" if any(call.endswith(":synchronize") for call in calls) else None


def _by_text(text: str, *, has_gpu: bool) -> str | None:
    by_text = [
        (_SLEEP, "no_sleep"),
        (_CLEANUP, "memory_cleanup"),
        (_CONSOLE, "less_printing"),
        (_SAVE, "fewer_checkpoints"),
    ]
    if has_gpu:  # on a CPU these wait for nothing
        by_text += [
            (_READ, "host_reads"),
            (_WAIT, "host_reads"),
            (_COPY, "asynchronous_copies"),
        ]
    return next((kind for pattern, kind in by_text if pattern.search(text)), None)


def own_lines(evidence: Evidence) -> list[Cause]:
    """Name the lines of the script, outside of model, optimizer and loader, that take the time."""
    found: dict[str, list[SampleSeen]] = {}
    others: list[SampleSeen] = []
    for one in evidence.samples:
        if one.is_validation or one.part not in (OWN, FORWARD, HOOK):
            continue
        if one.part == HOOK:
            found.setdefault("fewer_hooks", []).append(_within_hook(one))
            continue
        kind = kind_of(one, has_gpu=evidence.has_gpu)
        if kind is not None:
            found.setdefault(kind, []).append(one)
        elif one.part == OWN and one.spots:
            others.append(one)
    causes = [
        cause
        for kind, samples in found.items()
        if (cause := _cause(evidence, kind, samples, _MIN_SHARE)) is not None
    ]
    return causes + _other_lines(evidence, others)


def _within_hook(sample: SampleSeen) -> SampleSeen:
    """Return a sample without the lines that led to the last function."""
    return replace(sample, spots=sample.spots[-1:])


def _cause(
    evidence: Evidence, name: str, samples: Sequence[SampleSeen], least: float
) -> Cause | None:
    seconds = sum(one.seconds for one in samples)
    share = evidence.share_of(seconds)
    if share < least:
        return None
    spot, part_s = heaviest(samples)
    rest = ""
    if part_s < 0.9 * seconds:
        num = len({one.spots[-1].where for one in samples if one.spots}) - 1
        rest = f" and in {num} other line{'s' if num > 1 else ''}" if num > 0 else ""
    text = f"{percent(share)} of the time is spent at {shown(spot)}{rest}: {_FIXES[name]}"
    return Cause(name=name, share=share, text=text)


def shown(spot: Spot) -> str:
    """Return a line with its text."""
    text = spot.text if len(spot.text) <= _MAX_TEXT else spot.text[: _MAX_TEXT - 1] + "…"
    return f"{spot.where} `{text}`" if text else spot.where


def heaviest(
    samples: Iterable[SampleSeen], weight: Callable[[SampleSeen], float] = lambda one: one.seconds
) -> tuple[Spot, float]:
    """Return the line that takes most of the time of samples, and its seconds.

    That is the innermost line that still has most of the time of the line that led to it.
    """
    chosen = [one for one in samples if one.spots]
    spot, seconds = Spot(where="?", function="", text=""), 0.0
    level = 0
    while True:
        by_spot: dict[Spot, float] = {}
        for one in chosen:
            if len(one.spots) > level:
                by_spot[one.spots[level]] = by_spot.get(one.spots[level], 0.0) + weight(one)
        if not by_spot:
            return spot, seconds
        best = max(by_spot, key=lambda key: by_spot[key])
        if level and by_spot[best] < _MOST * seconds:
            return spot, seconds
        spot, seconds = best, by_spot[best]
        chosen = [one for one in chosen if len(one.spots) > level and one.spots[level] == best]
        level += 1


def loop_of(samples: Iterable[SampleSeen]) -> Spot | None:
    """Return the line in the training loop that calls backward, or steps the optimizer.

    Its loops are those around it, also in the functions that called its own.
    """
    for part in (BACKWARD, OPTIMIZER):
        lines: Counter[Spot] = Counter()
        outer: dict[Spot, tuple[Spot, ...]] = {}
        for one in samples:
            if one.part == part and one.spots and not one.is_validation:
                lines[one.spots[-1]] += 1
                outer[one.spots[-1]] = one.spots[:-1]
        if lines:
            found = lines.most_common(1)[0][0]
            headers = [*found.loops, *(header for spot in outer[found] for header in spot.loops)]
            return replace(found, loops=tuple(dict.fromkeys(headers)))
    return None


def ways_of(samples: Iterable[SampleSeen]) -> frozenset[Spot]:
    """Return the lines that call functions which call backward: each is a step, not a loss."""
    return frozenset(
        spot
        for one in samples
        if one.part == BACKWARD and not one.is_validation
        for spot in one.spots[:-1]
    )


def level_of(spots: Sequence[Spot], loop: Spot | None) -> int:
    """Return the index of the line that is in the function of the training loop, or 0."""
    if loop is None:
        return 0
    file = loop.where.rpartition(":")[0]
    for idx, spot in enumerate(spots):
        if spot.function == loop.function and spot.where.rpartition(":")[0] == file:
            return idx
    return 0


def inner_loops(spots: Sequence[Spot], loop: Spot | None) -> tuple[str, ...]:
    """Return the headers of loops around the innermost line, without those of training."""
    if not spots:
        return ()
    at = level_of(spots, loop)
    outer = set(loop.loops) if loop is not None else set()
    found = [header for header in spots[at].loops if header not in outer]
    for spot in spots[at + 1 :]:
        found = [*spot.loops, *found]
    text = spots[-1].text
    is_own_loop = text.startswith("for ") or " for " in text  # a header or a comprehension
    return tuple([text, *found] if is_own_loop and text not in outer else found)


def _other_lines(evidence: Evidence, samples: Sequence[SampleSeen]) -> list[Cause]:
    """Name lines that are not recognised, by the line of the training loop that led to them."""
    if not any(one.part == FORWARD for one in evidence.samples):
        return []  # the model may be these lines
    loop, ways = loop_of(evidence.samples), ways_of(evidence.samples)
    by_line: dict[str, list[SampleSeen]] = {}
    for sample in samples:
        one = below(sample, ways)
        at = level_of(one.spots, loop)
        if loop is not None and one.spots[-1].where == loop.where:
            continue  # a library's training loop, such as `trainer.fit(…)`
        if _NEXT.search(one.spots[-1].text) or "torch.save(" in one.spots[-1].text:
            continue  # part of loading, or of saving
        if _is_after(one.spots[at], loop) or not any(is_loss(spot) for spot in one.spots[at:]):
            by_line.setdefault(one.spots[at].where, []).append(one)
    causes = []
    for where, group in by_line.items():
        name = _loop_kind(group, loop)
        is_read = name == "slow_line" and all(_READ.search(one.spots[-1].text) for one in group)
        least = _MIN_READ if is_read else _MIN_OTHER
        cause = _cause(evidence, name, [_from_loop(one, loop) for one in group], least)
        if cause is not None:
            causes.append(replace(cause, lines=(where,)))
    causes.sort(key=lambda cause: -cause.share)
    return causes[:_MAX_CAUSES]


def below(sample: SampleSeen, ways: frozenset[Spot]) -> SampleSeen:
    """Return a sample without the outer lines that call whole steps."""
    num = 0
    while num < len(sample.spots) - 1 and sample.spots[num] in ways:
        num += 1
    return replace(sample, spots=sample.spots[num:])


def _from_loop(sample: SampleSeen, loop: Spot | None) -> SampleSeen:
    """Return a sample without the lines that led to the training loop."""
    return replace(sample, spots=sample.spots[level_of(sample.spots, loop) :])


def _is_after(spot: Spot, loop: Spot | None) -> bool:
    """Return whether a line comes after backward, in its function: it computes no loss."""
    if loop is None or spot.function != loop.function:
        return False
    file, _, line = spot.where.rpartition(":")
    other, _, last = loop.where.rpartition(":")
    return file == other and line.isdigit() and last.isdigit() and int(line) > int(last)


def is_loss(spot: Spot) -> bool:
    """Return whether a line may compute the loss."""
    is_condition = spot.text.startswith(("if ", "while ", "for "))
    return bool(_LOSS.search(spot.function)) or (
        bool(_LOSS_TEXT.search(spot.text.partition("#")[0])) and not is_condition
    )


def _loop_kind(group: Sequence[SampleSeen], loop: Spot | None) -> str:
    """Return whether most of the time is spent in a Python loop, and over what."""
    seconds: Counter[str] = Counter()
    for one in group:
        headers = inner_loops(one.spots, loop)
        kind = "slow_line"
        if any(_WEIGHTS.search(header) for header in headers):
            kind = "foreach"
        elif headers:
            kind = "vectorise"
        seconds[kind] += int(1e6 * one.seconds)
    return seconds.most_common(1)[0][0]

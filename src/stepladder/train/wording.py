"""Times, shares and results as a person would say them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stepladder.stats import binomial_sem

_STOP_WORDS = {
    "early_stopping": "no clear improvement any more",
    "worse_than_baseline": "it was worse than the baseline by more than noise",
    "max_epochs": "the last epoch was done",
    "max_steps": "the last step was done",
    "max_time": "the time was up",
    "signal": "a signal ended it",
    "diverged": "the loss was no longer finite",
}


def duration(seconds: float | None) -> str:
    """Say a time span as a person would: `0.4 s`, `12 s`, `4 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    seconds = max(0.0, seconds)
    if 0 < seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size_s, unit, smaller_s, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size_s:
            rest = whole % size_s // smaller_s
            return (
                f"{whole // size_s} {unit} {rest} {smaller}"
                if rest
                else f"{whole // size_s} {unit}"
            )
    if whole >= 60:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole} s"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Say a fraction in percent, or `unknown`."""
    known = fraction is not None and math.isfinite(fraction)
    return f"{100 * fraction:.{digits}f} %" if known else "unknown"  # type: ignore[operator]


def validation_line(values: Mapping[str, Any]) -> str:
    """Say one validation in one line."""
    words = [f"loss {_number(values.get('val_loss'))}"]
    if values.get("val_loss_sem") is not None:
        words[0] += f" ± {_number(values['val_loss_sem'])}"
    named = (
        ("val_accuracy", "accuracy"),
        ("val_top5_accuracy", "top-5"),
        ("val_macro_accuracy", "macro"),
    )
    words += [
        f"{name} {percent(values[key])}" for key, name in named if values.get(key) is not None
    ]
    count = values.get("num_without_improvement")
    if values.get("is_best"):
        words.append("best so far")
    if count:
        words.append(f"{count} without a clear improvement")
    epoch = values.get("epoch")
    return f"validation{f' after epoch {epoch}' if epoch is not None else ''}: " + ", ".join(words)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Say how a run ended, in a few lines."""
    lines = []
    for split, key, count in (
        ("test", "test_accuracy", "num_test"),
        ("val", "val_accuracy", "num_val"),
    ):
        accuracy, num = summary.get(key), summary.get(count) or 0
        if accuracy is not None:
            noise = accuracy_noise(accuracy, num)
            shown = f"{100 * accuracy:.1f} {noise}".strip()
            lines.append(f"{split} accuracy {shown} % ({num:,} {examples_word(summary)})")
    if summary.get("train_s") is not None:
        per_s = summary.get("images_per_s")
        what = "images" if summary.get("are_pictures", True) else "examples"
        speed = f", {pace(per_s)} {what}/s" if per_s is not None else ""
        wait = summary.get("data_wait_frac")
        waiting = f", {percent(wait)} of it waiting for data" if wait is not None else ""
        lines.append(f"trained in {duration(summary['train_s'])}{speed}{waiting}")
    if summary.get("stop_reason"):
        best = summary.get("best_epoch")
        suffix = f"; best epoch {best} of {summary.get('epochs')}" if best is not None else ""
        if suffix and summary.get("restore_best") is False and best != summary.get("epochs"):
            suffix += ", the last weights are used"
        lines.append(f"stopped: {stop_words(str(summary['stop_reason']))}{suffix}")
    return [clean(line) for line in lines]


def examples_word(summary: Mapping[str, Any]) -> str:
    """Say what a run learnt from; runs of earlier versions do not tell, and had pictures."""
    return "pictures" if summary.get("are_pictures", True) else "examples"


def pace(per_s: float) -> str:
    """Say how many a second: `68`, `1,234`, and `2.4` below ten."""
    return f"{per_s:.1f}" if per_s < 9.95 else f"{per_s:,.0f}"


def accuracy_noise(accuracy: float, num: int) -> str:
    """Say one standard error in percentage points, `± 1.7`.

    Empty where the binomial error says nothing: no examples, or all of them right or all wrong.
    """
    return f"± {100 * binomial_sem(accuracy, num):.1f}" if num and 0 < accuracy < 1 else ""


def stop_words(reason: str) -> str:
    """Say why a run stopped; a reason of a later version is given as it is."""
    return _STOP_WORDS.get(reason, reason.replace("_", " "))


def clean(text: str) -> str:
    r"""Spell out control characters, so that no file name moves the cursor; keeps \n."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else str(value or "unknown")

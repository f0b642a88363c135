"""Format times, fractions and results as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from stepladder.machine.activity import Report
from stepladder.stats import binomial_sem

_STEP_PHASES = frozenset({"data_wait", "to_device", "augment", "forward", "backward", "optimizer"})
_OUTSIDE_TRAINING = frozenset({"setup", "test"})
_BESIDE_STEPS = {
    "features": "for features",
    "validation": "for validation",
    "checkpoint": "for checkpoints",
    "logging": "for logging",
    "unexplained": "unexplained",
}
_KNOWN_METRICS = ("loss", "loss_sem", "accuracy", "top5_accuracy", "macro_accuracy")
_STOP_WORDS = {
    "early_stopping": "early stopping, no clear improvement",
    "worse_than_baseline": "worse than the baseline by more than noise",
    "max_epochs": "the maximum number of epochs was reached",
    "max_steps": "the maximum number of steps was reached",
    "max_time": "the time limit was reached",
    "signal": "interrupted by a signal",
    "diverged": "the loss was not finite",
}


def duration(seconds: float | None) -> str:
    """Format a time span: `0.4 s`, `12 s`, `4 min 5 s`, `3 h 20 min`, `2 d 4 h`."""
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


def activity_words(report: Report) -> str:
    """Format how far an activity is: `12 of 47, 9 s so far, about 26 s left`."""
    words = [] if report.total is None else [f"{report.done:,} of {report.total:,}"]
    words.append(f"{rough_time(report.elapsed_s)} so far")
    if report.left_s is not None and math.isfinite(report.left_s):
        words.append(f"about {rough_time(report.left_s)} left")
    return ", ".join(words)


def rough_time(seconds: float | None) -> str:
    """Format a time to two digits in one unit: `6.1 s`, `48 s`, `2.8 min`, `24 min`, `3.4 h`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "unknown"
    if 0 < seconds < 0.0995:
        small = seconds < 9.95e-5
        return f"{(1e6 if small else 1e3) * seconds:.2g} {'µs' if small else 'ms'}"
    steps = ((1, "s", 99.5), (60, "min", 99.5), (3600, "h", 47.5), (86400, "d", math.inf))
    size_s, unit, _ = next(step for step in steps if seconds < step[2] * step[0])
    value = seconds / size_s
    return f"{value:.1f} {unit}" if 0 < value < 9.95 else f"{value:,.0f} {unit}"


def percent(fraction: float | None, digits: int = 1) -> str:
    """Format a fraction in percent, or `unknown`."""
    known = fraction is not None and math.isfinite(fraction)
    return f"{100 * fraction:.{digits}f} %" if known else "unknown"  # type: ignore[operator]


def validation_line(values: Mapping[str, Any]) -> str:
    """Format one validation as one line."""
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
    words += _own_metrics(values, "val")
    count = values.get("num_without_improvement")
    if values.get("is_best"):
        words.append("best so far")
    if count:
        words.append(f"{count} without a clear improvement")
    if values.get("baseline_value") is not None:
        words.append(_beside_baseline(values.get("num_worse_than_baseline") or 0))
    epoch = values.get("epoch")
    return f"validation{f' after epoch {epoch}' if epoch is not None else ''}: " + ", ".join(words)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Summarize how a run ended, in a few lines."""
    lines = []
    for split, key, count in (
        ("test", "test_accuracy", "num_test"),
        ("val", "val_accuracy", "num_val"),
    ):
        accuracy, num = summary.get(key), summary.get(count) or 0
        words = _own_metrics(summary, split)
        if accuracy is not None:
            shown = f"{100 * accuracy:.1f} {accuracy_noise(accuracy, num)}".strip()
            words.insert(0, f"accuracy {shown} %")
        elif summary.get(f"{split}_loss") is not None:
            words.insert(0, f"loss {_number(summary[f'{split}_loss'])}")
        if words:
            lines.append(f"{split} {', '.join(words)} ({num:,} {examples_word(summary)})")
    if summary.get("train_s") is not None:
        lines.append(_time_line(summary))
    if summary.get("stop_reason"):
        best = summary.get("best_epoch")
        suffix = f"; best epoch {best} of {summary.get('epochs')}" if best is not None else ""
        if suffix and summary.get("restore_best") is False and best != summary.get("epochs"):
            suffix += "; the last weights are used"
        lines.append(f"stopped: {stop_words(str(summary['stop_reason']))}{suffix}")
    lines += baseline_lines(summary)
    return [clean(line) for line in lines]


def _time_line(summary: Mapping[str, Any]) -> str:
    """Format the training time, and the speed and data wait of its steps."""
    per_s, wait = summary.get("images_per_s"), summary.get("data_wait_frac")
    what = "images" if summary.get("are_pictures", True) else "examples"
    beside = beside_steps(summary)
    base = "the time" if beside is None else "that time"
    of_steps = [f"{pace(per_s)} {what}/s"] if per_s is not None else []
    of_steps += [f"{percent(wait)} of {base} waiting for data"] if wait is not None else []
    whole = f"trained in {duration(summary['train_s'])}"
    if beside is None:
        return ", ".join([whole, *of_steps])
    return f"{whole}, {beside}" + (f"; training steps: {', '.join(of_steps)}" if of_steps else "")


def beside_steps(summary: Mapping[str, Any]) -> str | None:
    """Return where most of the training time went, `35 s of it for features`; None: steps."""
    phases = summary.get("phases_s")
    times = {
        str(name): float(value)
        for name, value in (phases.items() if isinstance(phases, Mapping) else ())
        if isinstance(value, (int, float)) and name not in _OUTSIDE_TRAINING
    }
    in_steps = sum(value for name, value in times.items() if name in _STEP_PHASES)
    others = {name: value for name, value in times.items() if name not in _STEP_PHASES}
    if not others or 2 * in_steps >= sum(times.values()):
        return None
    name = max(others, key=lambda one: others[one])
    return f"{duration(others[name])} of it {_BESIDE_STEPS.get(name, f'for {name}')}"


def baseline_lines(summary: Mapping[str, Any]) -> list[str]:
    """Format the comparison with the baseline run at the end of a run; empty without one."""
    found = summary.get("baseline")
    if not isinstance(found, Mapping):
        return []
    by_time = found.get("at") == "wall_time"
    point = found.get("point") or 0
    after = duration(point) if by_time else f"{point:,.0f} {examples_word(summary)}"
    is_loss = found.get("compared") == "val_loss"
    what = "validation loss" if is_loss else "validation error"
    ours, theirs = found.get("value"), found.get("baseline_value")
    line = f"baseline: {found.get('run')}, after {after}: {what} {_value(ours, is_loss)} here, "
    line += f"{_value(theirs, is_loss)} in the baseline; differences up to "
    line += f"{_value(found.get('margin'), is_loss)} are noise"
    num, reason = found.get("num_worse") or 0, summary.get("stop_reason")
    if num and reason != "worse_than_baseline":
        line += f", exceeded {_in_a_row(num)}"
        line += ", but early stopping came first" if reason == "early_stopping" else ""
    return [line]


def _value(value: object, is_loss: bool) -> str:
    """Format a loss, or an error rate in percent."""
    if not isinstance(value, (int, float)):
        return "not finite"
    return _number(value) if is_loss else percent(value)


def _beside_baseline(num_worse: int) -> str:
    if not num_worse:
        return "not clearly worse than the baseline"
    return f"worse than the baseline by more than noise ({num_worse} in a row)"


def _in_a_row(num: int) -> str:
    return "at the last validation" if num == 1 else f"at the last {num} validations"


def examples_word(summary: Mapping[str, Any]) -> str:
    """Return `pictures` or `examples`; runs of earlier versions always had pictures."""
    return "pictures" if summary.get("are_pictures", True) else "examples"


def pace(per_s: float) -> str:
    """Format a rate per second: `68`, `1,234`, and `2.4` below ten."""
    return f"{per_s:.1f}" if per_s < 9.95 else f"{per_s:,.0f}"


def byte_rate(per_s: float) -> str:
    """Format bytes per second: `4.2 MB/s`, `120 MB/s`, and `1.2 GB/s` from 1,000 MB/s."""
    if per_s >= 999.5e6:
        return f"{per_s / 1e9:,.1f} GB/s"
    return f"{pace(per_s / 1e6)} MB/s"


def accuracy_noise(accuracy: float, num: int) -> str:
    """Format one standard error in percentage points, `± 1.7`.

    Empty if the binomial error is undefined: no examples, or all of them right or all wrong.
    """
    return f"± {100 * binomial_sem(accuracy, num):.1f}" if num and 0 < accuracy < 1 else ""


def stop_words(reason: str) -> str:
    """Return why a run stopped, in words; an unknown reason is returned unchanged."""
    return _STOP_WORDS.get(reason, reason.replace("_", " "))


def clean(text: str) -> str:
    r"""Escape control characters, so that no file name moves the cursor; keeps \n."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def _own_metrics(values: Mapping[str, Any], split: str) -> list[str]:
    """Format the metrics that only this Task has: `mae 0.1796`."""
    known = {f"{split}_{name}" for name in _KNOWN_METRICS}
    return [
        f"{key.removeprefix(f'{split}_')} {_number(value)}"
        for key, value in values.items()
        if key.startswith(f"{split}_") and key not in known and isinstance(value, float)
    ]


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, (int, float)) else str(value or "unknown")

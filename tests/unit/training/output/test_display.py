from __future__ import annotations

import io
import json
import math
import os
import pty
import subprocess
import sys
import termios
import textwrap
from collections.abc import Callable
from dataclasses import replace

import pytest

from stepladder.training.output.display import (
    PLAIN_EVERY_S,
    Display,
    JsonDisplay,
    PlainDisplay,
    ProgressState,
)
from stepladder.training.output.live_display import LiveDisplay
from stepladder.training.output.make_display import make_display
from stepladder.training.output.wording import (
    clean,
    duration,
    pace,
    percent,
    summary_lines,
    validation_line,
)

STATE = ProgressState(
    epoch=3,
    max_epochs=60,
    step=132,
    step_in_epoch=40,
    steps_per_epoch=43,
    loss=0.8123,
    accuracy=0.741,
    samples_per_s=1234.0,
    data_wait_frac=0.034,
    epoch_left_s=12.0,
    run_left_s=245.0,
)
VALIDATION = {
    "epoch": 3,
    "val_loss": 0.7712,
    "val_loss_sem": 0.0813,
    "val_accuracy": 0.719,
    "is_best": True,
    "num_without_improvement": 0,
}
SUMMARY = {
    "test_accuracy": 0.75,
    "num_test": 661,
    "val_accuracy": None,
    "train_s": 125.0,
    "images_per_s": 312.4,
    "data_wait_frac": 0.04,
    "stop_reason": "early_stopping",
    "best_epoch": 9,
    "epochs": 12,
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("step_s", [0.01, 0.1, 0.3])
def test_a_log_has_a_line_every_eight_seconds(step_s: float) -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock)
    for step in range(1, 10_001):
        clock.now_s += step_s
        display.step(replace(STATE, step=step))
        if step % 500 == 0:
            display.validation(VALIDATION)
    lines = stream.getvalue().splitlines()
    assert PLAIN_EVERY_S == 8  # of at most ten seconds of silence
    assert len(stream.getvalue()) < 20 * 200 + 200 * 10_000 * step_s / PLAIN_EVERY_S
    took_s, num_shown = 9_999 * step_s, sum(line.startswith("epoch") for line in lines)
    assert took_s / 9 < num_shown <= 1 + took_s / PLAIN_EVERY_S
    assert sum(line.startswith("validation") for line in lines) == 20


def test_a_plain_line_says_what_a_person_waits_for() -> None:
    stream = io.StringIO()
    PlainDisplay(stream, clock=Clock()).step(STATE)
    assert stream.getvalue() == (
        "epoch 3/60 step 40/43, loss 0.8123, accuracy 74.1 %, 1,234 samples/s, wait 3 %, "
        "left: epoch 12 s, run at most 4 min 5 s\n"
    )


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({}, ["wait 3 %"]),
        ({"read_bytes_per_s": 4.2e6}, ["wait 3 %", "4.2 MB/s"]),
        (
            {"read_bytes_per_s": 1.25e9, "cache_hit_frac": 0.92},
            ["wait 3 %", "1.2 GB/s", "cache 92 %"],
        ),
        (
            {"fetch_example_s": 42e-6, "decode_example_s": 0.00061},
            ["wait 3 %", "fetch 42 µs", "decode 0.61 ms"],
        ),
        ({"fetch_example_s": 42e-6, "decode_example_s": 0.0}, ["wait 3 %", "fetch 42 µs"]),
    ],
)
def test_of_reading_a_line_says_what_there_is(told: dict[str, float], said: list[str]) -> None:
    state = replace(STATE, **told)
    assert [*state.measures(), *state.reading()][3:] == said
    stream = io.StringIO()
    PlainDisplay(stream).step(state)
    assert f", {', '.join(said)}, left: " in stream.getvalue()


def test_reader_statistics_are_on_a_line_of_their_own_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    with make_display(stream=stream) as display:
        display.step(
            replace(
                STATE,
                step=123_456,
                read_bytes_per_s=123e6,
                cache_hit_frac=1.0,
                fetch_example_s=0.0042,
                decode_example_s=0.00061,
            )
        )
    assert "1,234 samples/s · wait 3 %" in stream.getvalue()
    assert "123 MB/s · cache 100 % · fetch 4.2 ms · decode 0.61 ms" in stream.getvalue()


@pytest.mark.parametrize("left_s", [-5.0, -math.inf, math.nan, math.inf, None])
def test_a_clock_that_jumped_gives_no_negative_time_left(left_s: float | None) -> None:
    stream = io.StringIO()
    PlainDisplay(stream).step(replace(STATE, epoch_left_s=left_s, run_left_s=left_s))
    assert "-" not in stream.getvalue()


def test_a_clock_that_jumps_back_does_not_silence_the_log() -> None:
    stream, clock = io.StringIO(), Clock()
    display = PlainDisplay(stream, clock=clock)
    display.step(STATE)
    clock.now_s -= 900
    display.step(STATE)
    display.step(STATE)
    assert len(stream.getvalue().splitlines()) == 2


def test_json_gives_one_object_a_line_with_finite_numbers_only() -> None:
    stream, clock = io.StringIO(), Clock()
    display = make_display(json=True, stream=stream)
    assert isinstance(display, JsonDisplay)
    display = JsonDisplay(stream, clock=clock)
    display.start("train", ["a", "b"])
    display.step(replace(STATE, loss=math.nan))
    display.step(STATE)  # within the same second: not shown
    clock.now_s += 1.0
    display.step(STATE)
    display.validation(VALIDATION)
    display.message("two\nlines")
    display.warning("careful")
    display.prepare(5, 10, 2.0, None)
    display.finish(SUMMARY)
    objects = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [item["event"] for item in objects] == (
        ["start", "progress", "progress", "validation", "message", "warning", "summary"]
    )
    assert objects[1]["loss"] == "nan"
    assert objects[2]["step_in_epoch"] == 40
    assert objects[-1]["test_accuracy"] == 0.75


def test_quiet_shows_warnings_on_stderr_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = make_display(quiet=True)
    display.start("title", ["line"])
    display.step(STATE)
    display.prepare(10, 10, 1.0, 0.0)
    display.validation(VALIDATION)
    display.message("hello")
    display.finish(SUMMARY)
    display.warning("disk is nearly full")
    display.close()
    assert capsys.readouterr() == ("", "warning: disk is nearly full\n")


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("features", "features of {} of 100, 10/s, {} left"),
        ("prepare", "prepared {} of 100, 10/s, {} left"),
        ("hash", "hashed {} of 100, 10/s, {} left"),
        ("upload", "uploaded {} of 100 files, {} left"),
    ],
)
def test_what_is_counted_is_shown_as_it_comes_and_at_its_end(event: str, said: str) -> None:
    lines, objects = io.StringIO(), io.StringIO()
    for display in (PlainDisplay(lines, clock=Clock()), JsonDisplay(objects, clock=Clock())):
        for done in range(1, 101):
            getattr(display, event)(done, 100, 10.0, (100 - done) / 10)
    assert lines.getvalue().splitlines() == [said.format(1, "9.9 s"), said.format(100, "0 s")]
    shown = [json.loads(line) for line in objects.getvalue().splitlines()]
    assert [(value["event"], value["done"]) for value in shown] == [(event, 1), (event, 100)]


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("make", [PlainDisplay, JsonDisplay, LiveDisplay])
def test_a_closed_stream_only_turns_the_display_off(make: Callable[[io.StringIO], Display]) -> None:
    with make(Closed()) as display:
        display.start("title")
        display.step(STATE)
        display.validation(VALIDATION)
        display.warning("w")
        display.finish(SUMMARY)
    gone = io.StringIO()
    gone.close()
    with make(gone) as display:
        display.message("nobody is there")


def test_a_pipe_into_head_ends_cleanly() -> None:
    code = """
        from stepladder.training.output.make_display import make_display
        display = make_display()
        for _ in range(20_000):
            display.message("x" * 100)
        display.close()
        import sys
        print("still here", file=sys.stderr)
    """
    command = f"{sys.executable} -c '{textwrap.dedent(code)}' | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "still here\n")


def test_an_ascii_terminal_gets_question_marks_instead_of_a_crash() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    PlainDisplay(stream).message("± ✓")
    assert raw.getvalue() == b"? ?\n"


def test_a_terminal_keeps_validations_above_and_restores_the_cursor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with make_display(stream=stream) as display:
        assert isinstance(display, LiveDisplay)
        display.step(STATE)
        display.validation(VALIDATION)
        display.warning("[red]not markup[/red]")
        display.finish(SUMMARY)
    shown = stream.getvalue()
    assert "epoch 3 of 60" in shown
    assert "12 s left, run at most 4 min 5 s" in shown
    assert "step 132 · loss 0.8123 · accuracy 74.1 % · 1,234 samples/s · wait 3 %" in shown
    assert "validation after epoch 3: loss 0.7712 ± 0.0813" in shown
    assert "[red]not markup[/red]" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with make_display(stream=stream) as display:
        display.step(STATE)
        display.warning("careful")
    assert "\x1b[3" not in stream.getvalue()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display(stream=Terminal()), PlainDisplay)
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(make_display(stream=io.StringIO()), PlainDisplay)


def test_a_terminal_that_closes_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    main_end, child_end = pty.openpty()
    termios.tcsetwinsize(child_end, (24, 100))
    stream = os.fdopen(child_end, "w")
    clock = Clock()
    with LiveDisplay(stream, clock=clock) as display:
        display.step(STATE)
        seen = b""
        while b"epoch 3 of 60" not in seen:  # a terminal returns what is available, in pieces
            seen += os.read(main_end, 10_000)
        os.close(main_end)
        for _ in range(3):
            clock.now_s += 1
            display.step(STATE)
            display.message("nobody reads this")
    with pytest.raises(OSError, match="Input/output error"):
        stream.close()


def test_messages_cannot_move_the_cursor() -> None:
    assert clean("a\x1b[2J\rb\x9b\n\u202ec") == "a\\x1b[2J\\rb\\x9b\n\\u202ec"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (-3, "0 s"),
        (0, "0 s"),
        (0.44, "0.4 s"),
        (9.96, "10 s"),
        (59.7, "1 min"),
        (245, "4 min 5 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations_read_as_a_person_would_say_them(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


def test_percentages_and_validations_say_what_is_not_known() -> None:
    assert (percent(0.7512), percent(None), percent(math.nan)) == ("75.1 %", "unknown", "unknown")
    assert validation_line({"val_loss": None}) == "validation: loss unknown"
    stale = validation_line(VALIDATION | {"is_best": False, "num_without_improvement": 2})
    assert stale.endswith("loss 0.7712 ± 0.0813, accuracy 71.9 %, 2 without a clear improvement")


def test_metrics_of_a_task_of_its_own_are_shown_and_its_loss_where_it_has_no_accuracy() -> None:
    mae = {"val_loss": 0.0621, "val_loss_sem": 0.005, "val_mae": 0.17956, "is_best": True}
    assert validation_line(mae) == "validation: loss 0.0621 ± 0.0050, mae 0.1796, best so far"
    tested = {"test_loss": 0.0692, "test_accuracy": None, "test_mae": 0.18136, "num_test": 2000}
    held_out = {"val_loss": 0.0621, "val_mae": 0.17956, "num_val": 2000, "are_pictures": False}
    assert summary_lines(tested | held_out) == [
        "test loss 0.0692, mae 0.1814 (2,000 examples)",
        "val loss 0.0621, mae 0.1796 (2,000 examples)",
    ]
    assert summary_lines(SUMMARY | {"test_f1": 0.71})[0] == (
        "test accuracy 75.0 ± 1.7 %, f1 0.7100 (661 pictures)"
    )


def test_the_summary_gives_the_result_with_its_noise_first() -> None:
    lines = summary_lines(SUMMARY)
    assert lines[0] == "test accuracy 75.0 ± 1.7 % (661 pictures)"
    assert lines[1] == "trained in 2 min 5 s, 312 images/s, 4.0 % of the time waiting for data"
    assert lines[2] == "stopped: early stopping, no clear improvement; best epoch 9 of 12"
    assert summary_lines(SUMMARY | {"restore_best": False})[2].endswith(
        "best epoch 9 of 12; the last weights are used"
    )
    assert summary_lines({}) == []
    numbers = summary_lines(SUMMARY | {"are_pictures": False})
    assert numbers[0].endswith("(661 examples)")
    assert "312 examples/s" in numbers[1]


def test_rate_and_wait_are_those_of_the_steps_where_steps_are_not_most_of_the_time() -> None:
    phases = {"setup": 90.0, "features": 34.9, "forward": 0.4, "data_wait": 0.35, "test": 2.0}
    cached = SUMMARY | {"train_s": 36.6, "images_per_s": 6500.0, "data_wait_frac": 0.424}
    assert summary_lines(cached | {"phases_s": phases})[1] == (
        "trained in 37 s, 35 s of it for features; training steps: 6,500 images/s, "
        "42.4 % of that time waiting for data"
    )
    most = {"validation": 6.0, "forward": 1.0, "unexplained": 0.5}
    assert (
        "6.0 s of it for validation; training steps:"
        in summary_lines(cached | {"phases_s": most})[1]
    )
    steps = {"features": 1.0, "backward": 2.0, "setup": 50.0, "unexplained": 0.5}
    assert summary_lines(cached | {"phases_s": steps})[1] == (
        "trained in 37 s, 6,500 images/s, 42.4 % of the time waiting for data"
    )


BASELINE = {
    "run": "runs/first",
    "compared": "val_loss",
    "at": "samples_seen",
    "point": 1200.0,
    "value": 0.5,
    "baseline_value": 0.4,
    "margin": 0.05,
    "num_worse": 0,
}


def test_the_end_names_the_baseline_with_both_values_and_the_margin() -> None:
    line = summary_lines(SUMMARY | {"baseline": BASELINE})[-1]
    assert line == (
        "baseline: runs/first, after 1,200 pictures: validation loss 0.5000 here, 0.4000 "
        "in the baseline; differences up to 0.0500 are noise"
    )
    worse = summary_lines(SUMMARY | {"baseline": BASELINE | {"num_worse": 2}})[-1]
    assert worse == f"{line}, exceeded at the last 2 validations, but early stopping came first"
    errors = BASELINE | {"compared": "val_error", "at": "wall_time", "point": 65.0}
    assert (
        "after 1 min 5 s: validation error 50.0 % here, 40.0 % in the baseline"
        in (summary_lines(SUMMARY | {"baseline": errors})[-1])
    )
    assert len(summary_lines(SUMMARY | {"baseline": None})) == len(summary_lines(SUMMARY))


def test_no_error_is_given_where_the_binomial_one_would_be_zero() -> None:
    assert summary_lines({"val_accuracy": 1.0, "num_val": 12}) == [
        "val accuracy 100.0 % (12 pictures)"
    ]
    assert (pace(2.44), pace(9.96), pace(1234)) == ("2.4", "10", "1,234")

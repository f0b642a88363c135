"""Printed output that a service stored as JSON is read as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepladder.diagnosis.logs.files.wrapped_log import unwrap
from stepladder.diagnosis.logs.reader import read_logs
from stepladder.errors import DataError

KERAS = "".join(
    f"Epoch {epoch}/4\n20/20 - 2s - 90ms/step - accuracy: 0.7{epoch} - loss: 0.6{epoch} - "
    f"val_accuracy: 0.8{epoch}00 - val_loss: 0.5{epoch}\n"
    for epoch in range(1, 5)
)
PRINTED = "Using 260 files for validation\n" + "".join(
    f"Epoch {epoch} train loss 0.6{epoch} val acc 0.8{epoch}00\n" for epoch in range(1, 5)
)


def array(text: str, *, separator: str = "\n,") -> str:
    items = [
        {"stream_name": ["stdout", "stderr"][idx % 2], "time": 18.6 + idx, "data": part}
        for idx, part in enumerate(text.splitlines(keepends=True))
    ]
    return "[" + separator.join(map(json.dumps, items)) + "\n]\n"


def docker(text: str) -> str:
    """One object for each line; one line is stored in two pieces, as long ones are."""
    parts = text.splitlines(keepends=True)
    parts[3:4] = [parts[3][:9], parts[3][9:]]
    items = [{"log": part, "stream": "stdout", "time": "2024-05-14T09:21:11Z"} for part in parts]
    return "\n".join(map(json.dumps, items)) + "\n"


def cloudwatch(text: str) -> str:
    events = [{"timestamp": 171550, "message": line} for line in text.splitlines()]
    return json.dumps({"events": events, "nextForwardToken": "f/37"}, indent=2)


def cloudwatch_lines(text: str) -> str:
    lines = [{"timestamp": 171550, "message": line} for line in text.splitlines()]
    return "\n".join(map(json.dumps, lines))


def google_text(text: str) -> str:
    entries = [
        {"textPayload": line, "insertId": "1x", "severity": "INFO"} for line in text.splitlines()
    ]
    return json.dumps(entries, indent=2)


def google_json(text: str) -> str:
    lines = [
        {"jsonPayload": {"message": f"{line}\n", "levelname": "INFO"}, "resource": {"type": "ml"}}
        for line in text.splitlines()
    ]
    return "\n".join(map(json.dumps, lines))


WRAPPERS: dict[str, tuple[Callable[[str], str], str]] = {
    "kaggle": (array, "Kaggle"),
    "kaggle on one line": (lambda text: array(text, separator=", "), "Kaggle"),
    "kaggle, truncated": (lambda text: array(text)[:-20], "Kaggle"),
    "docker": (docker, "Docker"),
    "cloudwatch": (cloudwatch, "CloudWatch or similar"),
    "cloudwatch, lines": (cloudwatch_lines, "CloudWatch or similar"),
    "google, text": (google_text, "Google Cloud"),
    "google, json": (google_json, "Google Cloud"),
}


@pytest.mark.parametrize("text", [KERAS, PRINTED], ids=["keras", "printed"])
@pytest.mark.parametrize("kind", WRAPPERS)
def test_output_stored_as_json_is_read_as_it_was_printed(
    kind: str, text: str, tmp_path: Path
) -> None:
    wrap, service = WRAPPERS[kind]
    text += "Done\n"  # what a truncated file lacks
    (tmp_path / "plain.log").write_text(text)
    (tmp_path / "wrapped.log").write_text(wrap(text))
    (plain,) = read_logs(str(tmp_path / "plain.log"))
    (wrapped,) = read_logs(str(tmp_path / "wrapped.log"))
    assert len(plain.rows) == 4
    assert wrapped.rows == plain.rows
    assert wrapped.format is plain.format
    assert wrapped.notes == (
        f"the output was stored as JSON ({service}), and its text is read",
        *plain.notes,
    )


def test_objects_with_metrics_of_their_own_are_no_wrapping(tmp_path: Path) -> None:
    rows = [{"message": "epoch end", "epoch": n, "val_accuracy": 0.1 * n} for n in range(1, 5)]
    text = "\n".join(map(json.dumps, rows))
    assert unwrap(text) is None
    (tmp_path / "log.jsonl").write_text(text)
    (log,) = read_logs(str(tmp_path / "log.jsonl"))
    assert len(log.rows) == 4


def test_stored_output_without_a_training_is_refused_by_its_text(tmp_path: Path) -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 1\nValueError: no data\n'
    (tmp_path / "out.log").write_text(array(f"Found 1040 files\n{trace}"))
    with pytest.raises(DataError, match="stopped with 'ValueError: no data'"):
        read_logs(str(tmp_path / "out.log"))

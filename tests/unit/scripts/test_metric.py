"""The number by which a user judges a script: printed, written, or computed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from stepladder.errors import UsageError
from stepladder.scripts.metric import metric_of


def read(text: str, folder: Path, output: str = "", began: float = 0.0) -> float:
    return metric_of(text).value(output=output, folder=folder, began=began, env=os.environ)


def test_the_last_number_that_is_printed_counts(tmp_path: Path) -> None:
    output = "accuracy: 0.50\nloss 3\naccuracy: 0.75\n"
    assert read(r"accuracy: ([0-9.]+)", tmp_path, output) == 0.75


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("accuracy", {"accuracy": 0.9}),
        ("val.accuracy", {"val": {"accuracy": 0.9}}),
        ("val.accuracy", {"val.accuracy": 0.9}),
        ("val/accuracy", {"val/accuracy": "0.9"}),
        ("accuracy", {"accuracy": [0.1, 0.9]}),
        ("epochs.accuracy", {"epochs": [{"accuracy": 0.1}, {"accuracy": 0.9}]}),
        ("eval accuracy", {"eval accuracy": 0.9}),
    ],
)
def test_a_key_of_a_json_file(tmp_path: Path, key: str, content: object) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").write_text(json.dumps(content))
    assert read(f"out/results.json:{key}", tmp_path) == 0.9


def test_the_last_line_with_the_key_counts(tmp_path: Path) -> None:
    lines = [{"val": 0.1}, {"val": 0.9}, {"train": 0.5}]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert read("log.jsonl:val", tmp_path) == 0.9


def test_a_file_of_an_earlier_run_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text('{"accuracy": 0.9}')
    os.utime(file, (1e9, 1e9))
    with pytest.raises(UsageError, match=r"does not write results\.json"):
        read("results.json:accuracy", tmp_path, began=time.time())


def test_a_function_is_called_where_the_script_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    ran.mkdir()
    (ran / "predicted.txt").write_text("0.9")
    monkeypatch.chdir(tmp_path)
    Path("score.py").write_text(
        "def accuracy():\n    print('scoring')\n    return float(open('predicted.txt').read())\n"
        "def nothing():\n    pass\n"
    )
    assert read("score.py:accuracy", ran) == 0.9
    with pytest.raises(UsageError, match="returns no number"):
        read("score.py:nothing", ran)
    with pytest.raises(UsageError) as caught:
        read("score.py:recall", ran)
    assert caught.value.why is not None
    assert "no function recall" in caught.value.why


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accuracy: [0-9.", "not a regular expression"),
        ("accuracy: [0-9.]+", "0 groups"),
        ("a(b)(c)", "2 groups"),
        ("missing.py:accuracy", "does not exist"),
    ],
)
def test_what_is_not_a_metric_is_an_error(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        metric_of(text)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "output"),
    [(r"accuracy: ([0-9.]+)", "no number"), (r"accuracy: (\w+)", "accuracy: nan")],
)
def test_output_without_a_number_is_an_error(tmp_path: Path, text: str, output: str) -> None:
    with pytest.raises(UsageError):
        read(text, tmp_path, output)


def test_a_file_without_the_key_is_an_error_that_shows_the_file(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"loss": 0.9}')
    with pytest.raises(UsageError) as caught:
        read("results.json:accuracy", tmp_path)
    assert "loss" in (caught.value.why or "")

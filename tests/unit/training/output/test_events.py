from __future__ import annotations

import errno
import json
import math
import resource
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.errors import ResourceError
from stepladder.records import read_jsonl
from stepladder.training.output.events import EventLog, redacted, rewind


class Recorder:
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.records: list[dict[str, Any]] = []
        self.status = ""

    def write(self, record: Mapping[str, Any]) -> None:
        if self.fails:
            raise ConnectionError("no route to host")
        self.records.append(dict(record))

    def close(self, status: str) -> None:
        self.status = status


def test_a_line_carries_step_epoch_attempt_and_elapsed_seconds(tmp_path: Path) -> None:
    now = [100.0]
    with EventLog(tmp_path, attempt=2, start_elapsed_s=50.0, clock=lambda: now[0]) as log:
        now[0] = 103.5
        log.write("train", step=7, epoch=1, train_loss=0.5)
    assert list(read_jsonl(tmp_path / "events.jsonl")) == [
        {
            "event": "train",
            "step": 7,
            "epoch": 1,
            "attempt": 2,
            "elapsed_s": 53.5,
            "train_loss": 0.5,
        }
    ]


def test_every_line_is_on_disk_before_write_returns(tmp_path: Path) -> None:
    log = EventLog(tmp_path, attempt=1)
    for step in range(3):
        log.write("train", step=step, epoch=1)
        assert len((tmp_path / "events.jsonl").read_bytes().splitlines()) == step + 1
    log.close()


def test_non_finite_and_numpy_numbers_stay_valid_json(tmp_path: Path) -> None:
    with EventLog(tmp_path, attempt=1) as log:
        log.write(
            "train", step=1, epoch=1, a=math.nan, b=-math.inf, c=np.float32(0.5), d=np.int64(3)
        )
    line = (tmp_path / "events.jsonl").read_text()
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"bare {name} in JSON"))
    assert (record["a"], record["b"], record["c"], record["d"]) == ("nan", "-inf", 0.5, 3)


def test_a_backward_clock_gives_no_negative_time(tmp_path: Path) -> None:
    now = [100.0]
    with EventLog(tmp_path, attempt=1, clock=lambda: now[0]) as log:
        now[0] = 10.0
        assert log.elapsed_s == 0.0


def test_a_new_line_is_separate_from_a_partial_one(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "train", "step": 1}\n{"event": "tra')
    with EventLog(tmp_path, attempt=2) as log:
        log.write("start", step=1, epoch=1)
    assert [record["event"] for record in read_jsonl(tmp_path / "events.jsonl")] == [
        "train",
        "start",
    ]


def test_threads_never_mix_their_lines(tmp_path: Path) -> None:
    with EventLog(tmp_path, attempt=1) as log:
        threads = [
            threading.Thread(
                target=lambda: [
                    log.write("system", step=i, epoch=1, x="y" * 300) for i in range(50)
                ]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(read_jsonl(tmp_path / "events.jsonl"))) == 200


def test_a_full_disk_is_loud(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").symlink_to("/dev/full")
    log = EventLog(tmp_path, attempt=1)
    with pytest.raises(ResourceError, match="No space left") as raised:
        log.write("train", step=1, epoch=1)
    assert raised.value.exit_code == 4
    log.close()


def test_a_file_size_limit_is_loud_and_leaves_whole_lines_readable(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    log = EventLog(tmp_path, attempt=1)
    log.write("train", step=1, epoch=1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, hard))
        with pytest.raises(ResourceError) as raised:
            log.write("train", step=2, epoch=1, note="z" * 200)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert isinstance(raised.value.__cause__, OSError)
    assert raised.value.__cause__.errno == errno.EFBIG
    log.close()
    with EventLog(tmp_path, attempt=2) as again:
        again.write("train", step=3, epoch=1)
    assert [record["step"] for record in read_jsonl(tmp_path / "events.jsonl")] == [1, 3]


def test_a_failing_sink_is_dropped_with_one_warning_and_the_others_continue(tmp_path: Path) -> None:
    good, bad = Recorder(), Recorder(fails=True)
    with EventLog(tmp_path, attempt=1, sinks=(bad, good)) as log:
        log.write("train", step=1, epoch=1, train_loss=math.inf)
        log.write("train", step=2, epoch=1)
    events = [record["event"] for record in read_jsonl(tmp_path / "events.jsonl")]
    assert events == ["train", "warning", "train"]
    assert [record["event"] for record in good.records] == ["train", "warning", "train"]
    assert good.records[0]["train_loss"] == math.inf
    assert (good.status, bad.status) == ("interrupted", "")


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("early_stopping", "finished"),
        ("signal", "interrupted"),
        ("diverged", "diverged"),
        (None, "interrupted"),
    ],
)
def test_sinks_learn_how_the_run_ended(reason: str | None, status: str, tmp_path: Path) -> None:
    sink = Recorder()
    with EventLog(tmp_path, attempt=1, sinks=(sink,)) as log:
        if reason is not None:
            log.write("stop", step=1, epoch=1, reason=reason)
    assert sink.status == status


def _lines(*steps: int) -> str:
    return "".join(json.dumps({"event": "train", "step": step}) + "\n" for step in steps)


def test_rewind_moves_exactly_the_later_steps(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "note"}\n' + _lines(1, 5, 6, 3) + '{"event": "train", "st')
    assert rewind(tmp_path, after_step=5) == 2
    assert path.read_text() == '{"event": "note"}\n' + _lines(1, 5, 3)
    assert (tmp_path / "events.discarded.jsonl").read_text() == _lines(
        6
    ) + '{"event": "train", "st\n'


def test_rewind_keeps_what_earlier_rewinds_discarded(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(_lines(1, 2))
    rewind(tmp_path, after_step=1)
    path.write_text(_lines(1, 3))
    rewind(tmp_path, after_step=1)
    assert (tmp_path / "events.discarded.jsonl").read_text() == _lines(2, 3)


def test_a_kill_between_the_two_writes_of_rewind_doubles_nothing(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(_lines(1, 2))
    (tmp_path / "events.discarded.jsonl").write_text(_lines(2))
    assert rewind(tmp_path, after_step=1) == 1
    assert (tmp_path / "events.discarded.jsonl").read_text() == _lines(2)


def test_rewind_with_nothing_to_move_touches_no_file(tmp_path: Path) -> None:
    assert rewind(tmp_path, after_step=0) == 0
    (tmp_path / "events.jsonl").write_text(_lines(1))
    before = (tmp_path / "events.jsonl").stat().st_ino
    assert rewind(tmp_path, after_step=1) == 0
    assert (tmp_path / "events.jsonl").stat().st_ino == before
    assert not (tmp_path / "events.discarded.jsonl").exists()


@pytest.mark.parametrize(
    "text",
    [
        "http://me:canary@host/path",
        "AWS_SECRET_ACCESS_KEY=canary",
        "uri: http://host/?token=canary&page=1",
        '"hf_token": "canary"',
        "password: 'canary'",
        "s3://bucket/key?X-Amz-Signature=canary",
    ],
)
def test_secrets_are_blanked(text: str) -> None:
    assert "canary" not in redacted(text)
    assert "***" in redacted(text)


@pytest.mark.parametrize("text", ["num_tokens: 500", "file:/tmp/run", "keep_last: 2", "a@b: 1"])
def test_what_is_not_a_secret_is_left_alone(text: str) -> None:
    assert redacted(text) == text

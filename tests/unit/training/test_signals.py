"""Real signals, sent to this process and to others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from stepladder.training.signals import SignalGuard

CHILD = """
import signal, sys, time
from stepladder.errors import StepladderError
from stepladder.training.signals import SignalGuard
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with SignalGuard() as guard:
        print("ready", flush=True)
        for _ in range(6000):
            if guard.requested and sys.argv[1] != "deaf":
                raise guard.interruption()
            if guard.requested:
                print("asked", flush=True)
            time.sleep(0.005)
except StepladderError as error:
    sys.exit(error.exit_code)
"""


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def python_handlers() -> None:
    """Start from Python's own handlers, however this session was started."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("number", "wanted", "code"),
    [(signal.SIGINT, 2, 130), (signal.SIGTERM, 15, 143), (signal.SIGHUP, 15, 143)],
)
def test_the_first_signal_is_noted_and_gives_the_exit_code(
    number: signal.Signals, wanted: int, code: int
) -> None:
    with SignalGuard() as guard:
        assert guard.requested == 0
        send(number)
        assert guard.requested == wanted
    error = guard.interruption(fix="Run the same command again to resume.")
    assert error.exit_code == code
    assert "the same command" in str(error)


def test_the_first_signal_counts_and_only_a_second_ctrl_c_ends_at_once() -> None:
    with SignalGuard() as guard:
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        assert guard.requested == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert guard.requested == signal.SIGTERM


def test_the_handlers_before_are_back_after_an_error_too() -> None:
    def mine(number: int, frame: object) -> None:
        pytest.fail("not to be called")

    def work() -> None:
        with SignalGuard():
            assert signal.getsignal(signal.SIGTERM) is not mine
            raise KeyError

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(KeyError):
            work()
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_outside_the_main_thread_it_does_nothing() -> None:
    requested = []

    def work() -> None:
        with SignalGuard() as guard:
            requested.append(guard.requested)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [0]
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def start(mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, mode]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
def test_a_process_exits_with_the_code_of_its_signal(number: signal.Signals, code: int) -> None:
    with start("plain") as process:
        process.send_signal(number)
        assert process.wait(20) == code


def test_nohup_stays_in_force() -> None:
    with start("nohup") as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143


def test_a_second_ctrl_c_ends_a_process_that_does_not_react() -> None:
    with start("deaf") as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(20) == -signal.SIGINT


def test_within_slurm_sigusr1_ends_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with SignalGuard() as guard:
        send(signal.SIGUSR1)
    assert guard.interruption().exit_code == 128 + signal.SIGUSR1


def test_elsewhere_sigusr1_is_left_to_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    before = signal.getsignal(signal.SIGUSR1)
    with SignalGuard():
        assert signal.getsignal(signal.SIGUSR1) == before

"""Exit codes and messages of commands."""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import pytest

import stepladder
from stepladder.cli.commands import COMMANDS
from stepladder.cli.commands import train as train_command
from stepladder.cli.main import main
from stepladder.errors import DataError, DivergedError, InterruptedRun, ResourceError
from stepladder.machine import torchvision_build


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where tracebacks without a run are


def run(*words: str) -> int:
    try:
        return main(words)
    except SystemExit as stop:  # raised by tyro after help or a usage error
        return cast(int, stop.code)


def failing_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(train_command, "train", fail)


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command.name} " in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("command", ["climb", "report"])
def test_help_of_a_command_is_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("help", command) == 0
    asked = capsys.readouterr().out
    assert run(command, "--help") == 0
    assert asked == capsys.readouterr().out
    assert f"usage: stepladder {command}" in asked


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"stepladder {stepladder.__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("tran",), "Did you mean `stepladder train`?"),
        (("Prepare",), "Did you mean `stepladder prepare`?"),
        (("xyz",), "Commands: init, prepare"),
        (("train", "--batch.lrr", "1"), "--batch.lr"),
        (("train", "--batch.lr", "0"), "--batch.lr: 0.0 is not above 0"),
        (("train", "--batch.lr", "inf"), "--batch.lr"),
        (("train", "--train", "hed"), "hed"),
        (("train", "--model.weights", "packagd"), "Did you mean packaged?"),
        (("train", "--seed", "x"), "--seed"),
        (("train", "missing.yaml"), "missing.yaml: the file of options does not exist"),
        (("train", "--config", "missing.yaml"), "missing.yaml: the file of options does not exist"),
        (("prepare", "photos", "--size", "4"), "--size: 4 is not in [8, 4096]"),
        (("export", "run", "--to", "onx"), "onx"),
        (("predict", "run"), "no pictures were given"),
    ],
)
def test_a_usage_error_ends_with_2_and_says_what_to_type(
    words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    captured = capsys.readouterr()
    assert told in captured.out + captured.err
    assert "Traceback" not in captured.out + captured.err


@pytest.mark.parametrize("command", ["report", "verify", "clean"])
def test_a_missing_folder_ends_with_3(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "nowhere") == 3
    assert capsys.readouterr().err.splitlines()[0] == "nowhere: the folder does not exist"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("bad"), 3),
        (ResourceError("full"), 4),
        (OSError(errno.ENOSPC, "No space left on device"), 4),
        (PermissionError(errno.EACCES, "Permission denied", "runs"), 4),
        (MemoryError(), 4),
        (DivergedError("nan"), 5),
        (InterruptedRun("stopped", signal_number=15), 143),
        (RuntimeError("ours"), 1),
    ],
)
def test_each_class_of_error_has_its_exit_code(
    error: Exception,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failing_with(error, monkeypatch)
    assert run("train", "--quiet") == code
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert 1 <= len(message.splitlines()) <= 4


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "train", interrupt)
    assert run("train") == 130


def test_a_crash_leaves_its_trace_in_the_run_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(RuntimeError("one\ntwo"), monkeypatch)
    Path("run").mkdir()
    assert run("train", "--run.dir", "run") == 1
    message = capsys.readouterr().err
    assert message.startswith("unexpected error: RuntimeError: one\n")
    assert "run/crash.txt" in message
    assert "Traceback" in Path("run/crash.txt").read_text()


def test_a_crash_in_the_users_task_names_its_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    example = (Path(__file__).parents[3] / "examples" / "own_task.py").read_text().splitlines()
    number = next(i for i, line in enumerate(example) if "def loss(" in line) + 1
    example.insert(number, "        raise RuntimeError('no such column')")
    Path("own.py").write_text("\n".join(example))
    assert run("train", "own.py:Sine", "--run.dir", "run", "--run.checks", "off") == 1
    message = capfd.readouterr().err.partition("your Task failed: ")[2].splitlines()
    assert message[0] == "RuntimeError: no such column"
    assert message[1] == f"  own.py:{number + 1}, in loss: raise RuntimeError('no such column')"


def test_debug_prints_the_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(DataError("bad"), monkeypatch)
    assert run("train", "--debug") == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_message_has_three_lines_and_debug_prints_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "head.weight: (5, 9), (4, 9)\n  head.bias: (5,), (4,)\n  stem.bias: (1,), none"
    failing_with(DataError("it does not fit", where="run", why=why, fix="Use it."), monkeypatch)
    assert run("train") == 3
    brief = capsys.readouterr().err.splitlines()
    assert brief == [
        "run: it does not fit",
        "  head.weight: (5, 9), (4, 9) (2 more with --debug)",
        "  Use it.",
    ]
    assert run("train", "--debug") == 3
    assert "stem.bias" in capsys.readouterr().err


def test_json_reports_an_error_to_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing_with(DataError("bad", where="store", fix="Do it."), monkeypatch)
    assert run("train", "--json") == 3
    event = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert event["event"] == "error"
    assert (event["exit_code"], event["where"], event["fix"]) == (3, "store", "Do it.")


def test_a_closed_pipe_is_quiet() -> None:
    code = (
        "import sys; from stepladder.cli.main import main; sys.exit(main(['completion', 'fish']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_a_quick_doctor_prints_no_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    assert run("doctor", "--quick", "--json") == 0
    out = capsys.readouterr().out
    assert "canary" not in out
    assert json.loads(out)["torch"]["version"]
    assert run("doctor", "--quick") == 0
    assert "has_cuda" in capsys.readouterr().out


def test_doctor_prints_how_threads_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    assert run("doctor", "--quick") == 0
    out = capsys.readouterr().out
    assert re.search(r"OMP_WAIT_POLICY +PASSIVE", out)
    assert re.search(r"GOMP_SPINCOUNT +3000", out)


def test_doctor_times_an_exchange_knows_the_ports_and_prints_no_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-4711")
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert "canary" not in out
    assert re.search(r"all_reduce_per_s +[\d.e+]+ GB/s", out)
    assert re.search(r"all_reduce_latency +[\d.e-]+ s", out)
    assert re.search(r"29400 +(free|in use)", out)
    assert "warning: two processes" not in out


def test_doctor_reports_why_two_processes_cannot_exchange_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert run("doctor") == 0
    out = capsys.readouterr().out
    assert "all_reduce" not in out
    assert "GLOO_SOCKET_IFNAME is nowhere0, but this machine has the network interfaces" in out


def test_doctor_warns_of_a_torchvision_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torchvision_build, "_installed", lambda name: {"torch": "2.13.0"}.get(name))
    assert run("doctor", "--quick") == 0
    assert "warning:" not in capsys.readouterr().out
    found = {"torch": "2.13.0", "torchvision": "0.27.1"}
    monkeypatch.setattr(torchvision_build, "_installed", found.get)
    assert run("doctor", "--quick") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("warning: torchvision 0.27.1 does not fit torch 2.13.0")
    assert "pip install --force-reinstall --no-deps 'torchvision==0.28.*'" in last
    assert run("doctor", "--quick", "--json") == 0
    assert "0.27.1" in json.loads(capsys.readouterr().out)["warnings"][0]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_flags(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("completion", shell) == 0
    out = capsys.readouterr().out
    for word in (*(command.name for command in COMMANDS), "batch.lr", "group-by", "show-config"):
        assert word in out


def test_bash_completes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", "bash") == 0
    script = capsys.readouterr().out + (
        "\nCOMP_WORDS=(stepladder train --batch.global); COMP_CWORD=2; _stepladder;"
        ' echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "--batch.global-batch-size"


def test_our_own_warnings_are_a_line_and_others_keep_their_place() -> None:
    code = """
import warnings
from stepladder.cli import main
from stepladder.cli.commands import doctor

def run(words):
    warnings.warn_explicit("ours", UserWarning, doctor.__file__, 1)
    warnings.warn_explicit("external", UserWarning, "job.py", 7)
    return 0

doctor.run = run
main.main(["doctor"])
warnings.warn_explicit("later", UserWarning, doctor.__file__, 1)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    ours, others, later = done.stderr.splitlines()[:3]
    assert ours == "warning: ours"
    assert others == "job.py:7: UserWarning: external"
    assert later.endswith("UserWarning: later")

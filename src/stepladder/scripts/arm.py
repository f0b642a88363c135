"""A script in a process of its own, which runs blocks of steps when it is asked to."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil

from stepladder.errors import StepladderError, UsageError
from stepladder.machine.activity import doing
from stepladder.records import write_json
from stepladder.scripts.inside.spec import Spec

_TAIL_LINES: Final = 6
_END_S: Final = 5.0


class ScriptEndedError(StepladderError):
    """The script ended before it had taken the steps that were asked for."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block of steps.

    Attributes:
        seconds: wall time of all steps.
        losses: what backward was called on, a sum for each step; None: unknown.
    """

    seconds: float
    losses: tuple[float | None, ...]


class Arm:
    """One process of the script; a context manager that ends it and all that it has started.

    Args:
        spec: what to run; its socket is added.
        cwd: folder in which it runs.
        log: file for its output.
        env: its environment.

    Attributes:
        problems: what could not be applied to it.
    """

    def __init__(self, spec: Spec, *, cwd: Path, log: Path, env: dict[str, str]) -> None:
        self._spec = spec
        self.cwd = cwd
        self._log = log
        self.env = env
        self._received = b""
        self.problems: tuple[str, ...] = ()

    def __enter__(self) -> Arm:
        ours, theirs = socket.socketpair()
        self._socket = ours
        spec = self._log.with_suffix(".json")
        write_json(spec, replace(self._spec, fd=theirs.fileno()))
        with self._log.open("w", encoding="utf-8") as out:
            self._process = subprocess.Popen(
                # -P: files beside the script must not replace modules that are imported before it
                [sys.executable, "-P", "-m", "stepladder.scripts.inside.main", str(spec)],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        theirs.close()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._socket.close()
        end_tree(self._process)

    def ready(self, *, wait_s: float) -> None:
        """Wait until the script has taken its first step.

        Raises:
            UsageError: if it ends, or does not get there in this time.
        """
        found = self._receive(wait_s, "the script has not taken its first step")
        self.problems = tuple(found.get("problems", ()))

    def block(self, steps: int, *, wait_s: float) -> Block:
        """Run a block of steps; before and after it, all processes of the script are stopped.

        Raises:
            ScriptEndedError: if the script ends meanwhile.
            UsageError: if it takes too long.
        """
        self._resume()
        self._socket.sendall((json.dumps({"do": "go", "steps": steps}) + "\n").encode())
        found = self._receive(wait_s, f"{steps} steps did not end")
        self.problems = tuple(found.get("problems", ()))
        self.pause()
        return Block(seconds=found["seconds"], losses=tuple(found["losses"]))

    def wait(self, *, wait_s: float) -> dict[str, Any]:
        """Wait until the script has ended by itself, and return how.

        Raises:
            UsageError: if it takes too long, or writes to a place that it may not.
        """
        until = time.monotonic() + wait_s
        while True:
            found = self._message(until - time.monotonic())
            if found is None:
                raise self._too_long(wait_s, "the script has not ended")
            if found["kind"] == "wrote":
                raise self._wrote(found["path"])
            if found["kind"] == "end":
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_S)
                return found

    def wait_for_success(self, *, wait_s: float) -> None:
        """Wait until the script has ended by itself.

        Raises:
            UsageError: if it fails or takes too long, or writes to a place that it may not.
        """
        found = self.wait(wait_s=wait_s)
        if found.get("crash") or found.get("exit_code"):
            raise self._ended(found)

    def output(self) -> str:
        """Return what the script has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def _receive(self, wait_s: float, what: str) -> dict[str, Any]:
        found = self._message(wait_s)
        if found is None:
            raise self._too_long(wait_s, what)
        if found["kind"] == "wrote":
            raise self._wrote(found["path"])
        if found["kind"] == "end":
            raise self._ended(found)
        return found

    def _message(self, wait_s: float) -> dict[str, Any] | None:
        """Return the next message; None if none comes in time."""
        until = time.monotonic() + wait_s
        while b"\n" not in self._received:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return None
            self._socket.settimeout(left_s)
            try:
                part = self._socket.recv(1 << 16)
            except TimeoutError:
                return None
            if not part:
                code = self._process.wait()
                how = f"signal {-code} ended it" if code < 0 else f"it exited with code {code}"
                return {"kind": "end", "words": how, "crash": None, "exit_code": code}
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self, found: dict[str, Any]) -> StepladderError:
        crash = found.get("crash")
        where = found.get("crashed_at") or self._spec.script
        if crash and crash.startswith("EOFError"):
            return UsageError(
                "the script reads from the terminal, which a climb has not",
                where=where,
                fix="Give what it asks for as its arguments, after --.",
            )
        is_refused = any(word in f"{crash}" for word in ("PermissionError", "Permission denied"))
        if is_refused and self._spec.original is not None:
            return UsageError(
                f"the script failed: {crash}",
                where=where,
                why="While it is tried, it may write only below the current folder, and temporary "
                "files.",
                fix="Let it write where it does, each time that it is run: --allow-writes",
            )
        if crash or found.get("exit_code"):
            return UsageError(
                f"the script failed: {crash or found['words']}",
                where=where,
                why=self._tail(),
                fix=f"Make it run first: python {self._spec.script}",
            )
        return ScriptEndedError(f"the script ended: {found['words']}", where=self._spec.script)

    def _tail(self) -> str | None:
        lines = [line for line in self.output().splitlines() if line.strip()]
        return "\n".join(lines[-_TAIL_LINES:]) or None

    def _too_long(self, wait_s: float, what: str) -> UsageError:
        return UsageError(
            f"{what} after {wait_s:.0f} s",
            where=self._spec.script,
            why=self._tail(),
            fix="Use fewer data, or allow more time: --max-wait 30m",
        )

    def _wrote(self, path: str) -> UsageError:
        return UsageError(
            f"the script writes to {path}, of which there is no private copy while it is tried",
            where=self._spec.script,
            fix="Let it write there, each time that it is run: --allow-writes\n"
            "Or make it write below the current folder, by a relative path.",
        )

    def pause(self) -> None:
        """Stop all of its processes until the next block."""
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)

    def _resume(self) -> None:
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)

    def _tree(self) -> list[psutil.Process]:
        return tree(self._process.pid)


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all that it has started."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, its session and all that it has started."""
    found = tree(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in found:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


@contextmanager
def opened(
    arms: Sequence[Arm], *, wait_s: float, what: str, in_turn: bool = False
) -> Iterator[tuple[float, ...]]:
    """Start several arms, and wait until all have taken their first step.

    Args:
        in_turn: start each one while the others are stopped, so that its time is its own.

    Yields:
        The seconds of each from its start to its first step; meaningful only in turn.
    """
    with ExitStack() as stack:
        seconds = []
        with doing(what):
            for arm in arms if not in_turn else ():
                stack.enter_context(arm)
            for arm in arms:
                began = time.monotonic()
                if in_turn:
                    stack.enter_context(arm)
                arm.ready(wait_s=wait_s)
                seconds.append(time.monotonic() - began)
                arm.pause()
        yield tuple(seconds)


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (Linux)."""
    with suppress(Exception):
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

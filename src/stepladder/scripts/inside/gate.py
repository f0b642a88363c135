"""The gate at each step of a script: it waits for a command, and times blocks of steps."""

from __future__ import annotations

import json
import os
import socket
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from stepladder.watching.step_times import has_gpu


class Enough(SystemExit):
    """Ends the script at a step, as if it had exited."""

    is_enough = True

    def __init__(self) -> None:
        super().__init__(0)


class Channel:
    """Lines of JSON to and from the process that compares scripts.

    Args:
        fd: of a connected socket, which this process inherits.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._pid = os.getpid()

    def send(self, **message: Any) -> None:
        """Send a message; a forked child of the script sends nothing."""
        if os.getpid() == self._pid:
            self._socket.sendall((json.dumps(message) + "\n").encode())

    def receive(self) -> dict[str, Any]:
        """Wait for a message; at the end of the connection it is the command to stop."""
        line = self._lines.readline()
        found: dict[str, Any] = json.loads(line) if line else {"do": "stop"}
        return found


class Gate:
    """Counts the steps of the first optimizer that steps, and the losses of each.

    At the first step, and after each block, the script waits here for a command: `{"do": "go",
    "steps": n}` runs a block of n steps, `{"do": "stop"}` ends the script.

    Args:
        channel: to the process that compares.
        problems: what could not be applied, for its messages.
    """

    def __init__(self, channel: Channel, problems: list[str]) -> None:
        self._channel = channel
        self._problems = problems
        self._main: int | None = None
        self._pid = os.getpid()
        self._left = 0
        self._began = 0.0
        self._open: list[Tensor] = []
        self._kept: list[list[Tensor]] = []
        self._step = 0

    def install(self) -> None:
        """Follow the steps of optimizers, and what backward is called on."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)
        backward = torch.autograd.backward

        def noting(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            some = tensors if isinstance(tensors, (tuple, list)) else (tensors,)
            self._open += [one.detach() for one in some if isinstance(one, Tensor)]
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = noting

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        if self._main is None:
            self._main = id(optimizer)
            self._open = []
            self._wait()  # before the first step is counted: everything is warm but the step
            return
        if id(optimizer) != self._main:
            return
        self._step += 1
        self._kept.append(self._open)
        self._open = []
        self._left -= 1
        if self._left <= 0:
            _wait_for_device()
            seconds = perf_counter() - self._began
            losses = [_value(tensors) for tensors in self._kept]
            self._kept = []
            self._channel.send(
                kind="block", seconds=seconds, losses=losses, problems=self._problems
            )
            self._wait()

    def _wait(self) -> None:
        if self._step == 0:
            self._channel.send(kind="ready", problems=self._problems)
        command = self._channel.receive()
        if command.get("do") != "go":
            raise Enough
        self._left = int(command["steps"])
        _wait_for_device()
        self._began = perf_counter()


def _value(tensors: list[Tensor]) -> float | None:
    """Return the sum of what backward was called on in a step; None if that is unknown."""
    if not tensors:
        return None
    return sum(float(one.float().sum()) for one in tensors)


def _wait_for_device() -> None:
    if has_gpu():
        torch.cuda.synchronize()

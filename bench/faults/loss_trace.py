"""Run a script and record every loss that `backward` is called on.

    python bench/faults/loss_trace.py TRACE.json script.py [its arguments]
    python bench/faults/loss_trace.py TRACE.json -m package [its arguments]

Per-example losses, which are passed with their gradient weights, are recorded as the weighted sum.
This does not use stepladder: it is the baseline that only checks whether the loss fell.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def main() -> None:
    out, *command = sys.argv[1:]
    losses: list[float] = []
    backward = torch.autograd.backward

    def traced(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        if isinstance(tensors, Tensor):
            value = tensors.detach() if grad_tensors is None else tensors.detach() * grad_tensors
            losses.append(float(value.sum()))
        backward(tensors, grad_tensors, *args, **kwargs)

    torch.autograd.backward = traced  # Tensor.backward looks the function up here as well
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = command
            sys.path[0] = str(Path(command[0]).resolve().parent)
            runpy.run_path(command[0], run_name="__main__")
    finally:
        Path(out).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()

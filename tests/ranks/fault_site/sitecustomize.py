"""Injects one fault into a rank, in any process that has this folder in its PYTHONPATH.

The variable FAULT is a JSON object:

- `point`: one of POINTS.
- `at`: the rank that has to reach the point.
- `victim`: the rank that the fault happens to; the same one, except where only rank 0 gets there.
- `signal`: that the victim gets; 0: it reads from a pipe into which nobody writes, as from a disk
  that does not answer.
- `folder`: for the numbers of the processes, and for a file that exists once the fault has
  happened, so that it happens once, also if all processes start again.

The functions of the product are wrapped as soon as it has loaded them. Without FAULT, and in
processes that are not ranks, nothing happens.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

LAST_MODULE = "stepladder.parallel.join"  # which a rank loads just before it joins the others
MAX_WAIT_S = 20.0

TRAINING = "stepladder.training.training:Training"
POINTS = {
    "start": ("stepladder.parallel.group:opened_world", "before"),
    "handshake": ("stepladder.parallel.handshake:require_same_config", "before"),
    "first_step": (f"{TRAINING}.take_step", "before"),
    "backward": ("stepladder.training.update:Update.backward", "in_backward"),
    "collective": ("stepladder.parallel.agreement:StepAgreement.begin", "before"),
    "validation": (f"{TRAINING}.evaluate", "before"),
    "message": ("stepladder.parallel.collectives.transport:GlooTransport.send", "before"),
    "gather": ("stepladder.training.evaluate:_Sums.add_up", "before"),
    "before_rename": ("stepladder.machine.filesystem:FileCalls.rename", "before"),
    "after_rename": ("stepladder.machine.filesystem:FileCalls.rename", "after"),
    "probe": ("stepladder.machine.filesystem:FileCalls.rename", "before"),
    "epoch_end": ("stepladder.training.course:Course.count", "if_true"),
    "finish": (f"{TRAINING}.restore_best", "before"),
    "opening": ("stepladder.training.run:open_at_version", "before"),
    "task": ("stepladder.task.load:load_task", "before"),
    "data": ("stepladder.data.reading.reader:_read", "before"),
    "held_out": ("stepladder.data.reading.reader:_read", "before"),
    "features": ("stepladder.training.ranks.joint_features:read_batch", "before"),
    "log": ("stepladder.training.output.events:EventLog._append", "before"),
    "after_finish": ("stepladder.parallel.heartbeat:Heart.stop", "before"),
}
CALLS = {"backward": 7, "collective": 7, "validation": 2, "gather": 2}
CALLS |= {"message": 31}  # within the sums of a step
CALLS |= {"data": 3, "held_out": 6, "log": 3}  # an epoch has 5 batches; others: the first call
RANK_0_ONLY = ("before_rename", "after_rename")


class Fault:
    """The fault of this process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.folder = Path(spec["folder"])
        self.num_calls = 0

    def happen(self) -> None:
        """Send the signal, if it has not been sent before."""
        try:
            (self.folder / "happened").touch(exist_ok=False)
        except FileExistsError:
            return
        if self.spec["signal"] == 0:
            os.mkfifo(self.folder / "hung")
            os.open(self.folder / "hung", os.O_RDONLY)
        file = self.folder / f"pid-{self.spec['victim']}"
        until = time.monotonic() + MAX_WAIT_S
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(int(file.read_text()), self.spec["signal"])

    def install(self) -> None:
        """Wrap the function of the point."""
        name, how = POINTS[self.spec["point"]]
        module, _, path = name.partition(":")
        *parents, last = path.split(".")
        owner: Any = functools.reduce(getattr, parents, importlib.import_module(module))
        inner = getattr(owner, last)
        is_here: Callable[[], bool] = functools.partial(self.is_call, self.spec["point"])

        @functools.wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            is_due = how != "if_true" and self.is_meant(args) and is_here()
            if is_due and how == "in_backward":
                args[0]._params[0].register_hook(lambda grad: self.happen())
            elif is_due and how == "before":
                self.happen()
            result = inner(*args, **kwargs)
            if (is_due and how == "after") or (how == "if_true" and result and is_here()):
                self.happen()
            return result

        setattr(owner, last, wrapped)

    def is_meant(self, args: tuple[Any, ...]) -> bool:
        """Return False for a rename that is not that of a checkpoint, such as to test a disk."""
        point = self.spec["point"]
        return point not in RANK_0_ONLY or Path(args[2]).name.startswith("step-")

    def is_call(self, point: str) -> bool:
        """Return True at the call for which the fault is meant."""
        self.num_calls += 1
        return self.num_calls == CALLS.get(point, 1)


class _Last(MetaPathFinder, Loader):
    """Installs a fault once the last module is loaded."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the usual spec, with a loader that installs the fault afterwards."""
        spec = PathFinder.find_spec(name, path, target) if name == LAST_MODULE else None
        if spec is None or spec.loader is None:
            return None
        self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> None:
        """Use the default."""

    def exec_module(self, module: Any) -> None:
        """Load the module, then install the fault."""
        self._inner.exec_module(module)
        self._fault.install()


def main() -> None:
    """Prepare the fault of this process, if it is a rank."""
    spec = json.loads(os.environ["FAULT"])
    rank = int(os.environ["RANK"])
    (Path(spec["folder"]) / f"pid-{rank}").write_text(str(os.getpid()))
    if rank == spec["at"] and not (Path(spec["folder"]) / "happened").exists():
        sys.meta_path.insert(0, _Last(Fault(spec)))


if "FAULT" in os.environ and "RANK" in os.environ:
    main()

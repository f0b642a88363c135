"""Train a model that does not fit into a limit of memory: alone, and sharded over two machines.

    python -m bench.devices.memory_limit [--quick]

A machine is a process in a cgroup of its own, whose limit the kernel enforces (cgroup v1 or v2, as
root). A network of linear layers with 101 million weights and AdamW needs 1.6 GB for weights,
gradients and optimizer. Within the limit, a loop of plain PyTorch is killed, `train` and `climb`
refuse to begin and say what to type, and with that option two processes train to the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.rows import write_rows
from tests.ranks.together import environment, free_port

WIDTH, LAYERS = 2048, 24
_LIMIT: Final = 1_650_000_000
_ROOTS: Final = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))
_TASK: Final = f"""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from stepladder import Task


class Wide(Task):
    def build_model(self, recipe):
        layers = [nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]
        pairs = [module for layer in layers for module in (layer, nn.ReLU())]
        return nn.Sequential(*pairs, nn.Linear({WIDTH}, 2))

    def data(self, split):
        generator = torch.Generator().manual_seed(len(split.value))
        inputs = torch.randn(32 if split.value == "train" else 8, {WIDTH}, generator=generator)
        return TensorDataset(inputs, (inputs[:, 0] > 0).long())

    def loss(self, model, batch):
        return F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
"""
_PLAIN: Final = f"""
import torch
from torch import nn
torch.set_num_threads(1)
layers = [nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})]
net = nn.Sequential(*[m for one in layers for m in (one, nn.ReLU())], nn.Linear({WIDTH}, 2))
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    outputs, targets = net(torch.randn(8, {WIDTH})), torch.zeros(8, dtype=torch.long)
    nn.functional.cross_entropy(outputs, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""
_WORDS: Final = (
    "--batch-size", "8", "--epochs", "2", "--optimizer.name", "adamw", "--device.threads", "1",
    "--no-auto", "--train", "all", "--run.save-top-k", "1",
)  # fmt: skip


class Machine:
    """A cgroup with a limit of memory.

    Args:
        root: of the memory cgroups.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._folder = root / name
        self._folder.mkdir()
        self._is_v1 = root.name == "memory"
        limit = "memory.limit_in_bytes" if self._is_v1 else "memory.max"
        (self._folder / limit).write_text(str(_LIMIT))

    def start(self, words: Sequence[str], out: Path, **environ: str) -> subprocess.Popen[bytes]:
        """Start a process in it."""
        procs = self._folder / "cgroup.procs"  # a host name of its own: another machine
        script = f'hostname {self._folder.name} && echo $$ > {procs} && exec "$@"'
        with out.open("wb") as file:
            return subprocess.Popen(
                ["unshare", "--uts", "bash", "-c", script, "bash", *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment(PYTHONPATH=os.pathsep.join(sys.path), **environ),
            )

    def peak_mb(self) -> float:
        """Return the most memory that was used, without the page cache of v2."""
        name = "memory.max_usage_in_bytes" if self._is_v1 else "memory.peak"
        return int((self._folder / name).read_text()) / 1e6

    def remove(self) -> None:
        """Remove it; its processes have ended."""
        for _ in range(50):
            try:
                self._folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)


@contextmanager
def machines(num: int) -> Iterator[list[Machine]]:
    """Make machines, and remove them.

    Raises:
        SystemExit: if cgroups cannot be made.
    """
    root = next((one for one in _ROOTS if one.is_dir() and os.access(one, os.W_OK)), None)
    if root is None:
        sys.exit("needs the right to make memory cgroups: run it as root")
    made: list[Machine] = []
    try:
        for idx in range(num):
            made.append(Machine(root, f"stepladder-{os.getpid()}-{idx}"))
        yield made
    finally:
        for one in made:
            one.remove()


def run(num: int, words: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a command on machines, as one rank on each, and return how it ended."""
    port = free_port()
    with machines(num) as hosts:
        processes = []
        for rank, host in enumerate(hosts):
            world: dict[str, str] = {}
            if num > 1:
                world = {"RANK": str(rank), "WORLD_SIZE": str(num), "LOCAL_RANK": "0"}
                world |= {"LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}
                world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(host.start(words, folder / f"{rank}.txt", **world))
        codes = [process.wait(timeout=300) for process in processes]
        peaks = [host.peak_mb() for host in hosts]
    printed = (folder / "0.txt").read_text()
    return {"code": max(codes, key=abs), "peak": max(peaks), "printed": printed}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="writes no results")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = folder / "wide.py"
        task.write_text(_TASK)
        (folder / "plain.py").write_text(_PLAIN)
        stepladder = [sys.executable, "-m", "stepladder"]
        job = [f"{task}:Wide", *_WORDS]
        cases = {
            "a loop of plain PyTorch": (1, [sys.executable, str(folder / "plain.py")]),
            "stepladder train": (1, [*stepladder, "train", *job, "--run.dir", f"{folder}/a"]),
            "stepladder climb": (1, [*stepladder, "climb", *job, "--run.dir", f"{folder}/b"]),
            "stepladder train --device.sharded, on two": (
                2,
                [*stepladder, "train", *job, "--device.sharded", "--run.dir", f"{folder}/c"],
            ),
        }
        for what, (num, words) in cases.items():
            found = run(num, words, folder)
            said = re.search(r"a step needs .*?free.*?MB", found["printed"], re.DOTALL)
            how = {0: "trained", -9: "killed by the system"}.get(
                found["code"], f"refused, exit code {found['code']}"
            )
            rows.append(
                {
                    "command": what,
                    "machines": num,
                    "ended": how,
                    "most memory of a machine, MB": round(found["peak"]),
                    "said": " ".join(said[0].split()) if said else "",
                }
            )
            if options.quick or found["code"] not in (0, -9):
                print(what, found["code"], found["printed"][-1500:])
    if options.quick:
        print(rows)
        return
    write_rows(
        "memory_limit",
        rows,
        note=f"Limit of each machine: {_LIMIT / 1e6:.0f} MB, a cgroup. "
        f"{WIDTH**2 * LAYERS / 1e6:.0f} million weights, AdamW.",
    )


if __name__ == "__main__":
    main()

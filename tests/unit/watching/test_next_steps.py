"""The next step for slow scripts, in which one cause takes most of the time by construction."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from textwrap import indent

import pytest
import torch

from stepladder.records.climb import NextStep
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

HEAD = """
import gc, os, time
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(256, 32), torch.randint(3, (256,))
"""
MODEL = """
model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """
for step in range(60):
    idx = torch.randint(256, (32,))
    xb, yb = x[idx], y[idx]
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
"""
PASSES = """
for epoch in range(4):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
"""
DATASET = """
class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
{body}

loader = DataLoader(Rows(), batch_size=8, shuffle=True{more})
"""


def of_data(body: str, more: str = "", before: str = "") -> str:
    """Return a script whose dataset has this body."""
    lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
    return HEAD + before + MODEL + DATASET.format(body=lines, more=more) + PASSES


def after_step(*lines: str, before: str = "", model: str = MODEL) -> str:
    """Return a script that runs some lines after each step."""
    return HEAD + before + model + LOOP + "".join(f"    {line}\n" for line in lines)


BIG = "nn.Linear(32, 700), nn.ReLU(), nn.Linear(700, 700), nn.ReLU(), nn.Linear(700, 3)"
TRUNK = "nn.Linear(32, 900), nn.ReLU(), nn.Linear(900, 900), nn.ReLU(), nn.Linear(900, 16)"
PICTURE = (
    "Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 400, 3), dtype=np.uint8))"
    '.save("picture.png")\n'
)
SLOW: dict[str, tuple[str, str, str]] = {
    "decoding in each epoch": (
        of_data(
            'image = Image.open("picture.png").convert("L")\n'
            "return torch.from_numpy(np.asarray(image)[0, :32] / 255).float(), i % 3",
            before=PICTURE,
        ),
        "decoded_once",
        'Image.open("picture.png")',
    ),
    "reading in each epoch": (
        of_data(
            'return torch.from_numpy(np.load("rows.npz")["rows"][0, :32]), i % 3',
            before='np.savez_compressed("rows.npz", rows=np.random.rand(200, 200).astype("f4"))\n',
        ),
        "read_once",
        "np.load(",
    ),
    "single values in a dataset": (
        of_data(
            "row = torch.zeros(32)\nfor _ in range(8):\n    for j in range(32):\n"
            "        row[j] = x[i, j] * 2\nreturn row + torch.rand(()), i % 3"
        ),
        "vectorise",
        "nested Python loops over single values at snippet.py",
    ),
    "turning large images that are shrunk": (
        of_data(
            "image = Image.fromarray(np.full((300, 300), i, dtype=np.uint8))\n"
            "for _ in range(6):\n    image = image.rotate(i, Image.BICUBIC)\n"
            "image = image.resize((32, 1))\n"
            "return torch.from_numpy(np.asarray(image)[0] / 255).float(), i % 3",
        ),
        "resize_first",
        "images of 300 × 300 pixels",
    ),
    "a TensorDataset, one example at a time": (
        HEAD
        + "model = nn.Linear(32, 3)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "x, y = torch.randn(16384, 32), torch.randint(3, (16384,))\n"
        "loader = DataLoader(TensorDataset(x, y), batch_size=1024, shuffle=True)\n"
        "def train():\n" + indent(PASSES, "    ") + "train()\n",
        "whole_batches",
        "TensorDataset",
    ),
    "a dataset of its own, one example at a time": (
        HEAD
        + "model = nn.Linear(32, 3)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "class Rows(Dataset):\n    def __init__(self, x, y):\n        self.x, self.y = x, y\n"
        "    def __len__(self):\n        return len(self.x)\n"
        "    def __getitem__(self, idx):\n"
        "        label = self.y[idx]\n"
        + 6
        * "        row = self.x[idx]\n"
        + "        return self.x[idx], label\n"
        "x, y = torch.randn(16384, 32), torch.randint(3, (16384,))\n"
        "loader = DataLoader(Rows(x, y), batch_size=1024, shuffle=True)\n"
        "def train():\n" + indent(PASSES, "    ") + "train()\n",
        "whole_batches",
        "Rows, which only takes rows of tensors in memory",
    ),
    "a new iterator in each step": (
        HEAD.replace("256", "200_000")
        + MODEL
        + "loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)\n"
        + LOOP.replace("256", "200_000").replace(
            "    xb, yb = x[idx], y[idx]\n", "    xb, yb = next(iter(loader))\n"
        ),
        "one_iterator",
        "snippet.py:",
    ),
    "the model called again": (
        after_step(
            "with torch.no_grad():",
            "    for _ in range(12):",
            "        hits = (model(xb).argmax(1) == yb).sum()",
            model=MODEL.replace("nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)", BIG),
        ),
        "one_forward",
        "just received",
    ),
    "a frozen trunk": (
        HEAD
        + f"trunk = nn.Sequential({TRUNK}).requires_grad_(False)\nhead = nn.Linear(16, 3)\n"
        + "model = nn.Sequential(trunk, head)\n"
        + "optimizer = torch.optim.SGD(head.parameters(), lr=0.01)\n"
        + LOOP,
        "cached_features",
        "`0`",
    ),
    "float64": (
        HEAD
        + f"model = nn.Sequential({BIG}).double()\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\nx = x.double()\n"
        + LOOP,
        "single_precision",
        "float64",
    ),
    "cells in a loop": (
        HEAD
        + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(1, 16), nn.Linear(16, 3)

    def forward(self, x):
        state = torch.zeros(len(x), 16)
        for value in x.unbind(1):
            state = self.cell(value[:, None], state)
        return self.head(state)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + LOOP,
        "whole_sequences",
        "nn.GRU",
    ),
    "a loss of one example after another": (
        HEAD
        + MODEL
        + """
def loss_of(out, target):
    total = 0.0
    for i in range(len(out)):
        total = total + F.cross_entropy(out[i : i + 1], target[i : i + 1])
    return total / len(out)
"""
        + LOOP.replace("(32,)", "(128,)").replace("F.cross_entropy(model(xb)", "loss_of(model(xb)"),
        "whole_sequences",
        "total = total + F.cross_entropy",
    ),
    "enlarged images": (
        HEAD + "x = torch.rand(256, 3, 16, 16) - 0.5\n"
        "model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72200, 3))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.001)\n"
        + LOOP.replace("(32,)", "(2,)").replace(
            "x[idx], y", 'F.interpolate(x[idx], size=97, mode="bilinear"), y'
        ),
        "smaller_images",
        "16 × 16",
    ),
    "validation in each step": (
        after_step(
            "model.eval()",
            "with torch.no_grad():",
            "    for _ in range(60):",
            "        model(x)",
            "model.train()",
        ),
        "fewer_validations",
        "in each step",
    ),
    "a pause": (after_step("time.sleep(0.02)"), "no_sleep", "time.sleep(0.02)"),
    "collecting garbage": (
        after_step("gc.collect()", before="gc.freeze()\nkept = [[i] for i in range(200_000)]\n")
        + "gc.unfreeze()\n",
        "memory_cleanup",
        "gc.collect()",
    ),
    "clipping in Python": (
        after_step(
            "for p in model.parameters():",
            "    norm = 0.0",
            "    for value in p.grad.flatten():",
            "        norm += float(value) ** 2",
        ).replace("16", "64"),
        "foreach",
        "value",
    ),
    "a hook": (
        HEAD
        + MODEL
        + "def keep(module, given, out):\n    kept = sorted(out.flatten().tolist() * 200)\n"
        + "model[0].register_forward_hook(keep)\n"
        + LOOP,
        "fewer_hooks",
        "sorted(",
    ),
    "an optimizer of its own": (
        HEAD
        + MODEL
        + """
class Mine(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                for _ in range(800):
                    p.sub_(p.grad, alpha=1e-5)

optimizer = Mine(model.parameters(), {})
"""
        + LOOP,
        "foreach",
        "p.sub_",
    ),
    "saving in each step": (
        after_step('torch.save([model.state_dict(), torch.zeros(2_000_000)], "last.pt")'),
        "fewer_checkpoints",
        "in each step",
    ),
    "anomaly mode": (
        HEAD + MODEL + "torch.autograd.set_detect_anomaly(True)\n" + LOOP,
        "no_anomaly_mode",
        "stores a traceback for each operation in ",
    ),
    "a batch of one": (
        HEAD + MODEL + "loader = DataLoader(TensorDataset(x, y), batch_size=1)\n" + PASSES,
        "larger_batch",
        "1 example of 256",
    ),
}


@pytest.fixture(autouse=True)
def no_old_objects() -> Iterator[None]:
    """Let no garbage collection look through what other tests left: it takes longer than a step."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute in one thread: with more, busy cores would be the first thing to say."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num)
    torch.autograd.set_detect_anomaly(False)


def first(report: WatchReport) -> NextStep:
    assert report.watcher_error is None
    assert report.next is not None
    return report.next


@pytest.mark.parametrize("name", SLOW)
def test_the_cause_that_takes_most_is_named_first(watched: Watched, name: str) -> None:
    """Two runs of three: where time goes is sampled, and other processes may delay a sample."""
    code, rung, words = SLOW[name]
    step = first(watched(code))
    if step.rung != rung:
        again = [first(watched(code)) for _ in range(2)]
        assert [one.rung for one in again] == [rung, rung], step.text
        step = again[0]
    assert words in step.text
    assert step.gain is not None
    assert step.gain > 1


SOUND = {
    "an average as a teacher": (
        HEAD
        + f"import copy\nmodel = nn.Sequential({BIG})\n"
        + "teacher = copy.deepcopy(model).requires_grad_(False)\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        + LOOP.replace("yb)\n", "yb) + F.mse_loss(model(xb + 0.1), teacher(xb))\n")
        + "    with torch.no_grad():\n        new = list(model.parameters())\n"
        "        torch._foreach_lerp_(list(teacher.parameters()), new, 0.1)\n",
        "cached_features",
    ),
    "sharpness-aware steps": (
        HEAD
        + f"model = nn.Sequential({BIG})\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        + LOOP.replace(
            "    optimizer.step()\n",
            """    held = list(model.parameters())
    with torch.no_grad():
        moves = torch._foreach_mul([p.grad for p in held], 0.1)
        torch._foreach_add_(held, moves)
    optimizer.zero_grad()
    F.cross_entropy(model(xb), yb).backward()
    with torch.no_grad():
        torch._foreach_sub_(held, moves)
    optimizer.step()
""",
        ),
        "one_forward",
    ),
    "longer and longer sequences": (
        HEAD
        + f"model = nn.Sequential({BIG})\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        + LOOP.replace("(32,)", "(8 + 16 * step,)"),
        "constant_steps",
    ),
    "a decoder that enlarges its features": (
        HEAD
        + """
x = torch.randn(256, 3, 16, 16)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 3, 3)

    def forward(self, x):
        return self.up(F.interpolate(self.down(x), scale_factor=8.0)).mean((2, 3))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
        + LOOP,
        "smaller_images",
    ),
    "dropout sampled twice": (
        HEAD
        + f"model = nn.Sequential(nn.Dropout(0.2), {BIG})\n"
        + "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        + LOOP.replace("yb)\n", "yb) + F.mse_loss(model(xb), model(xb))\n"),
        "one_forward",
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_intended_is_no_cause(watched: Watched, name: str) -> None:
    code, rung = SOUND[name]
    report = watched(code)
    assert report.watcher_error is None
    assert rung not in [step.rung for step in (first(report), *report.others)]


def test_further_steps_come_in_order(watched: Watched) -> None:
    save = 'torch.save(torch.zeros(1_000_000), "last.pt")'
    report = watched(after_step("time.sleep(0.01)", save))
    steps = (first(report), *report.others)
    assert {"no_sleep", "fewer_checkpoints"} <= {step.rung for step in steps}
    gains = [step.gain or 0.0 for step in steps]
    assert gains[0] >= gains[1]


def test_time_between_the_phases_is_explained(watched: Watched) -> None:
    report = watched(after_step("time.sleep(0.02)"))
    shares = {time.name: time.share for time in report.times}
    assert shares["own_code"] > 0.5
    assert shares["own_code"] > 5 * shares["unexplained"]


def test_the_script_sees_no_other_thread(watched: Watched) -> None:
    before = sys.getswitchinterval()
    report = watched(
        after_step("names = [t.name for t in threading.enumerate()]", "time.sleep(0.002)").replace(
            "import gc", "import threading, gc"
        )
        + "assert len(names) == threading.active_count() == NUM\n".replace(
            "NUM", str(threading.active_count())
        )
    )
    assert report.exit_code == 0
    assert sys.getswitchinterval() == before


def test_workers_can_be_started_while_the_stack_is_sampled(watched: Watched) -> None:
    code = of_data("return x[i], i % 3", more=", num_workers=1")
    report = watched(code)
    assert report.exit_code == 0
    assert first(report).rung == "persistent_workers"


def test_code_without_line_numbers_is_sampled(watched: Watched) -> None:
    code = after_step("wait()").replace(
        MODEL,
        MODEL
        + "def wait():\n    end = time.perf_counter() + 0.004\n"
        + "    while time.perf_counter() < end:\n        pass\n"
        + 'wait.__code__ = wait.__code__.replace(co_linetable=b"")\n',
    )
    report = watched(code)
    assert report.watcher_error is None
    assert report.exit_code == 0


def test_threads_take_turns_sooner_while_another_one_waits(watched: Watched) -> None:
    """Otherwise a line that lets no thread run would never be the one that is seen."""
    code = after_step(
        "time.sleep(0.005)",
        "found.append(sys.getswitchinterval())",
        before="import sys, threading\nended, found = threading.Event(), []\n"
        "threading.Thread(target=ended.wait, daemon=True).start()\n",
    )
    report = watched(code + "ended.set()\nassert min(found) < 0.001 < max(found)\n")
    assert report.exit_code == 0

"""Why steps become slower: hooks, stores and graphs that grow; and programs that look alike."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from stepladder.records.climb import NextStep
from stepladder.records.watch import WatchReport
from stepladder.watching.causes.contract import Evidence
from stepladder.watching.causes.stores import store_causes
from stepladder.watching.seen.costs import (
    BACKWARD,
    FORWARD,
    OWN,
    SampleSeen,
    Spot,
    StacksSeen,
)
from stepladder.watching.seen.seen import Seen

Watched = Callable[..., WatchReport]

HEAD = """
import time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x, y = torch.randn(256, 32), torch.randint(3, (256,))
model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""
LOOP = """
for step in range({num}):
    idx = torch.randint(256, (32,))
    xb, yb = x[idx], y[idx]
{before}
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    loss.backward()
    optimizer.step()
{after}
"""


def training(setup: str = "", *, before: str = "", after: str = "", num: int = 120) -> str:
    """Return a script that runs some lines before and after each step."""
    indented = ["\n".join("    " + line for line in text.splitlines()) for text in (before, after)]
    return HEAD + setup + LOOP.format(num=num, before=indented[0], after=indented[1])


KEEP = """
kept = {}
def keep(name):
    def hook(module, given, out):
        kept[name] = out.detach().sort().values.mean().item()
    return hook
"""
STORE = """
class Store:
    def __init__(self):
        self.rows = torch.empty(0, 128)

    def add(self, row):
        self.rows = torch.cat([self.rows, row[None]])[-20_000:]

store = Store()
"""
RECURRENT = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(24, 16), nn.Linear(16, 8)

    def forward(self, frames, state):
        for frame in frames.unbind(1):
            state = torch.tanh(self.cell(torch.cat([frame, state], 1)))
        return self.head(state), state

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    frames, state = torch.randn(8, 24, 8), torch.zeros(8, 16)
    optimizer.zero_grad()
{body}
    optimizer.step()
"""


def recurrent(body: str) -> str:
    """Return a script that trains a recurrent net on parts of sequences."""
    lines = "\n".join("    " + line for line in body.strip().splitlines())
    return HEAD + RECURRENT.format(body=lines)


SLOW: dict[str, tuple[str, str, str]] = {
    "forward hooks": (
        training(KEEP, before="for i in (0, 2):\n    model[i].register_forward_hook(keep(i))"),
        "removed_hooks",
        "3 forward hooks each after step 3 and",
    ),
    "hooks on gradients": (
        training(
            "norms = []\n",
            before="for p in model.parameters():\n"
            "    p.register_hook(lambda grad: norms.append(grad.sort().values.norm().item()))",
        ),
        "removed_hooks",
        "hooks on the gradient each after step 3 and",
    ),
    "backward hooks in a method": (
        training(
            "class Probe:\n"
            "    def look(self, module, given, out):\n"
            "        self.last = out[0].flatten().sort().values.norm().item()\n\n"
            "    def attach(self, module):\n"
            "        module.register_full_backward_hook(self.look)\n\n"
            "probe = Probe()\n",
            before="probe.attach(model[2])",
        ),
        "removed_hooks",
        "backward hooks after step 3 and",
    ),
    "a store of tensors": (
        training(STORE, after="for _ in range(30):\n    store.add(torch.ones(128))"),
        "allocated_once",
        "`self.rows = torch.cat([self.rows, row[None]])[-20_000:]`",
    ),
    "an array that is appended to": (
        training(
            "seen = np.empty(0)\n",
            after="for _ in range(20):\n    seen = np.append(seen, np.ones(200))",
        ),
        "allocated_once",
        "call np.concatenate once",
    ),
    "a state that is not detached": (
        recurrent(
            "for part in frames.split(2, 1):\n"
            "    out, state = model(part, state)\n"
            "    F.mse_loss(out, part[:, -1]).backward(retain_graph=True)"
        ),
        "detached_state",
        "each of 12 calls in a step with retain_graph=True at snippet.py:",
    ),
    "a total that backward is called on": (
        recurrent(
            "total = 0.0\n"
            "for part in frames.split(2, 1):\n"
            "    total = total + F.mse_loss(model(part, state)[0], part[:, -1])\n"
            "    total.backward(retain_graph=True)"
        ),
        "detached_state",
        "add the losses and call backward once",
    ),
    "one backward for each step in time": (
        recurrent(
            "outs = []\n"
            "for part in frames.split(2, 1):\n"
            "    out, state = model(part, state)\n"
            "    outs.append(F.mse_loss(out, part[:, -1]))\n"
            "for loss in outs:\n"
            "    loss.backward(retain_graph=True)"
        ),
        "one_backward",
        "call backward once, which gives the same gradients",
    ),
}
NAMES = {"removed_hooks", "allocated_once", "detached_state", "one_backward"}

SOUND = {
    "hooks that are removed": training(
        KEEP,
        before="handle = model[0].register_forward_hook(keep(0))",
        after="handle.remove()",
    ),
    "hooks that are registered once": training(
        KEEP + "handles = [model[0].register_forward_hook(keep(i)) for i in range(20)]\n"
    ),
    "hooks that are removed now and then": training(
        KEEP + "handles = []\n",
        before="handles.append(model[0].register_forward_hook(keep(0)))",
        after="if step % 12 == 11:\n    while handles:\n        handles.pop().remove()",
    ),
    "hooks of layers that are added": training(
        KEEP + "more = nn.ModuleList()\n",
        before="more.append(nn.Linear(32, 8))\n"
        "more[-1].register_forward_hook(keep(len(more)))\n"
        "extra = sum(layer(xb).mean() for layer in more)",
    ),
    "a store that is allocated": training(
        STORE.replace(
            "torch.empty(0, 128)", "torch.empty(5_000, 128)\n        self.num = 0"
        ).replace(
            "self.rows = torch.cat([self.rows, row[None]])[-20_000:]",
            "self.rows[self.num % 5_000] = row\n        self.num += 1",
        ),
        after="for _ in range(30):\n    store.add(torch.ones(128))",
    ),
    "a list that is concatenated once": training(
        "rows = []\n",
        after="rows.clear()\nfor _ in range(40):\n    rows.append(torch.ones(256, 64))\n"
        "rows_at_once = torch.cat(rows)",
    ),
    "a net whose layers receive all earlier outputs": HEAD
    + """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32 + 32 * i, 32) for i in range(12))

    def forward(self, x):
        for layer in self.layers:
            out = layer(x)
            x = torch.cat([x, out], 1)
        return x[:, :3]

x = torch.randn(256, 32)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
"""
    + LOOP.format(num=60, before="    xb = xb.repeat(20, 1); yb = yb.repeat(20)", after=""),
    "two losses of one graph": recurrent(
        "out, state = model(frames, state)\n"
        "F.mse_loss(out, frames[:, 0]).backward(retain_graph=True)\n"
        "out.square().mean().backward()"
    ),
    "many losses of one graph": recurrent(
        "out, state = model(frames, state)\n"
        "for i in range(8):\n"
        "    F.mse_loss(out[:, i], frames[:, 0, i]).backward(retain_graph=True)"
    ),
    "a state that is detached": recurrent(
        "for part in frames.split(2, 1):\n"
        "    out, state = model(part, state)\n"
        "    F.mse_loss(out, part[:, -1]).backward(retain_graph=True)\n"
        "    state = state.detach()"
    ),
    "gradients of each loss by itself": recurrent(
        "outs, norms = [], []\n"
        "for part in frames.split(2, 1):\n"
        "    out, state = model(part, state)\n"
        "    outs.append(F.mse_loss(out, part[:, -1]))\n"
        "for loss in outs:\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward(retain_graph=True)\n"
        "    norms.append(model.head.weight.grad.norm())"
    ),
    "longer parts with graphs of their own": recurrent(
        "for last in range(2, 24, 2):\n"
        "    out, _ = model(frames[:, :last], state)\n"
        "    F.mse_loss(out, frames[:, last]).backward(retain_graph=True)"
    ),
}


TRAINING = ("for xb, yb in loader:",)
JOIN = Spot(
    where="train.py:4", function="longer", text="return torch.cat([held, new])", joins="torch.cat"
)
CALL = Spot(where="train.py:12", function="main", text="held = longer(held, xb)", loops=TRAINING)


def evidence_of(part: str, growth: float, block_s: tuple[float, ...] = ()) -> Evidence:
    """Return what was seen of a line that concatenates, and takes longer from block to block."""
    step = Spot(where="train.py:10", function="main", text="loss.backward()", loops=TRAINING)
    samples = [
        SampleSeen(part=BACKWARD, is_validation=False, spots=(step,), calls=()),
        SampleSeen(part=part, is_validation=False, spots=(CALL, JOIN), calls=()),
    ]
    for one, more in zip(samples, (0.0, growth), strict=True):
        one.by_block = {block: 1.0 + more * block for block in range(9)}
        one.seconds = sum(one.by_block.values())
    seen = Seen()
    seen.costs.stacks = StacksSeen(num=40 if block_s else 400, last_step=8, samples=samples)
    return Evidence(seen=seen, shares={}, whole_s=30.0, num_steps=90, facts={}, block_s=block_s)


@pytest.mark.parametrize("part", [OWN, FORWARD])
def test_a_concatenation_is_named_if_its_share_grows(part: str) -> None:
    (cause,) = store_causes(evidence_of(part, growth=1.0))
    assert cause.name == "allocated_once"
    assert "train.py:4" in cause.text
    assert "(67 % of the first steps and 89 % of the last ones" in cause.text
    assert store_causes(evidence_of(part, growth=0.0)) == []


def test_a_concatenation_is_named_if_steps_become_slower_because_of_it() -> None:
    slower = tuple(float(block) for block in range(1, 10))
    (cause,) = store_causes(evidence_of(OWN, growth=1.0, block_s=slower))
    assert "(the last steps take 4.0 times as long as the first ones" in cause.text
    assert store_causes(evidence_of(OWN, growth=0.0, block_s=slower)) == []
    assert store_causes(evidence_of(OWN, growth=1.0, block_s=(1.0,) * 9)) == []


@pytest.mark.parametrize(
    ("joins", "fix"),
    [
        ("torch.cat", "a tensor allocated beforehand"),
        ("np.vstack", "an array allocated beforehand"),
        ("pd.concat", "one table"),
        ("+", ".append() or .extend()"),
    ],
)
def test_a_store_in_a_loop_within_a_step_need_not_grow(joins: str, fix: str) -> None:
    evidence = evidence_of(OWN, growth=0.0)
    (_, sample) = evidence.seen.costs.stacks.samples
    line = Spot(where="train.py:6", function="add", text="…", joins=joins, store="self.rows")
    for loops, is_named in ((("for row in rows:",), True), ((), False)):
        call = Spot(where="train.py:9", function="main", text="add()", loops=(*loops, *TRAINING))
        sample.spots = (call, line)
        causes = store_causes(evidence)
        assert bool(causes) == is_named
        assert not causes or fix in causes[0].text


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Compute in one thread, and collect no garbage that other tests left."""
    num = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(num)


def first(report: WatchReport) -> NextStep:
    assert report.watcher_error is None
    assert report.next is not None
    return report.next


@pytest.mark.parametrize("name", SLOW)
def test_the_reason_is_named_first(watched: Watched, name: str) -> None:
    """Two runs of three: where time goes is sampled, and other processes may delay a sample."""
    code, rung, words = SLOW[name]
    report = watched(code)
    if first(report).rung != rung:
        again = [watched(code) for _ in range(2)]
        assert [first(one).rung for one in again] == [rung, rung], first(report).text
        report = again[0]
    assert words in first(report).text
    more_general = {"constant_steps", "fewer_hooks"} if rung == "removed_hooks" else set()
    assert not more_general & {step.rung for step in report.others}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOUND)
def test_what_looks_alike_is_not_named(watched: Watched, name: str) -> None:
    report = watched(SOUND[name])
    assert report.exit_code == 0
    steps = (first(report), *report.others)
    assert not NAMES & {step.rung for step in steps}, [step.text for step in steps]


def test_the_line_that_registers_hooks_is_named(watched: Watched) -> None:
    code, *_ = SLOW["forward hooks"]
    line = next(i for i, text in enumerate(code.splitlines(), 1) if "].register_forward" in text)
    step = first(watched(code))
    assert f"as `hook`, which snippet.py:{line} registers, is not removed" in step.text
    assert "`0` and 1 other had 3 forward hooks each" in step.text


def test_watching_leaves_the_script_no_wrapper(watched: Watched) -> None:
    before = torch.nn.Module.register_forward_hook, torch.Tensor.register_hook
    for name in ("forward hooks", "hooks on gradients"):
        watched(SLOW[name][0])
    assert (torch.nn.Module.register_forward_hook, torch.Tensor.register_hook) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["hooks on gradients", "a state that is not detached"])
def test_watching_changes_no_weight(watched: Watched, name: str, tmp_path: Path) -> None:
    code = SLOW[name][0] + (
        "with open('weights.txt', 'a') as file:\n"
        "    print([p.flatten().tolist() for p in model.parameters()], file=file)\n"
    )
    watched(code)
    exec(compile(code, "alone.py", "exec"), {"__name__": "__main__"})
    lines = (tmp_path / "weights.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert lines[0] == lines[1]

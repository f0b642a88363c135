"""Training that resumes from a checkpoint whose optimizer is not restored, and what looks alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
def build(rate=0.05):
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    return net, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)
def one_epoch(net, opt, sched):
    for rows in torch.randperm(256).split(64):
        opt.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        opt.step()
    sched.step()
net, opt, sched = build()
for epoch in range(4):
    one_epoch(net, opt, sched)
torch.save({"epoch": epoch, "model": net.state_dict(), "optim": opt.state_dict(),
            "plan": sched.state_dict()}, "last.pt")
"""
RESUME = """
net, opt, sched = build()
state = torch.load("last.pt")
net.load_state_dict(state["model"])
start = state["epoch"] + 1
for epoch in range(start, 8):
    one_epoch(net, opt, sched)
"""
IN_A_FUNCTION = """
def restore(path, net):
    checkpoint = torch.load(path, map_location="cpu")
    net.load_state_dict(checkpoint["model"])
    return checkpoint["epoch"] + 1
net, opt, sched = build()
first = restore("last.pt", net)
for epoch in range(first, 8):
    one_epoch(net, opt, sched)
"""
IN_A_CLASS = """
class Session:
    def __init__(self):
        self.net, self.opt, self.sched = build()
        self.epoch = 0
    def restore(self):
        state = torch.load("last.pt")
        self.net.load_state_dict(state["model"])
        self.epoch = state.get("epoch", 0)
    def run(self):
        while self.epoch < 8:
            one_epoch(self.net, self.opt, self.sched)
            self.epoch += 1
session = Session()
session.restore()
session.run()
"""
RESTORED = RESUME.replace("start =", 'opt.load_state_dict(state["optim"])\nstart =')
IGNORED = {
    "weights_and_epoch": RESUME,
    "from_where_it_was": RESUME.replace("range(start,", 'range(state["epoch"] + 1,').replace(
        'start = state["epoch"] + 1\n', ""
    ),
    "as_an_option": RESUME.replace("start =", "args.start =")
    .replace("range(start", "range(args.start")
    .replace(
        "net, opt, sched =", "import argparse\nargs = argparse.Namespace()\nnet, opt, sched ="
    ),
    "in_a_function": IN_A_FUNCTION,
    "in_a_class": IN_A_CLASS,
}
SOUND = {
    "restored": RESTORED.replace("start =", 'sched.load_state_dict(state["plan"])\nstart ='),
    "restored_on_request": RESUME.replace(
        "start =", 'if len(x) < 99: opt.load_state_dict(state["optim"])\nstart ='
    ),
    "restored_as_a_whole": RESUME.replace(
        "start =", "def rest(one): opt.load_state_dict(one['optim'])\nrest(state)\nstart ="
    ),
    "a_second_stage": RESUME.replace("build()", "build(0.005)"),
    "other_training_with_these_weights": RESUME.replace(
        'start = state["epoch"] + 1', 'print(state["epoch"])'
    ).replace("range(start, 8)", "range(0, 4)"),
    "a_new_head": RESUME.replace(
        "start =",
        "opt = torch.optim.SGD(net[2].parameters(), lr=0.05, momentum=0.9)\n"
        "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)\nstart =",
    ),
    "another_optimizer": RESUME.replace(
        "start =",
        "opt = torch.optim.RMSprop(net.parameters(), lr=0.05)\n"
        "sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)\nstart =",
    ),
    "only_tested": RESUME.replace("    one_epoch(net, opt, sched)", "    net(x)"),
    "back_to_earlier_weights": RESUME.replace("net, opt, sched = build()\n", ""),
}  # fmt: skip


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == "checkpoint_incomplete"]
    return one


@pytest.mark.parametrize("name", IGNORED)
def test_an_optimizer_that_is_not_restored_is_found(name: str, watched: Watched) -> None:
    code = START + IGNORED[name]
    one = found(watched(code))
    lines = enumerate(code.splitlines(), 1)
    load = next(at for at, text in lines if "load_state_dict" in text)
    assert one.outcome is Outcome.WARNED
    assert one.where == f"snippet.py:{load}"
    assert 'the state of an optimizer ("optim") and of a scheduler ("plan")' in one.evidence
    assert 'takes only "epoch", "model"' in one.evidence
    assert "SGD starts without its state (momentum_buffer)" in one.evidence
    assert "its learning rate is 0.05 instead of 0.025" in one.evidence
    assert '.load_state_dict(checkpoint["optim"])' in one.fix.replace("state[", "checkpoint[")


def test_a_scheduler_that_is_restored_is_not_named(watched: Watched) -> None:
    code = START + RESUME.replace("start =", 'sched.load_state_dict(state["plan"])\nstart =')
    one = found(watched(code))
    assert one.outcome is Outcome.WARNED
    assert "scheduler" not in one.evidence + one.fix


@pytest.mark.parametrize("name", SOUND)
def test_what_restores_it_or_trains_otherwise_is_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(START + SOUND[name]))
    assert one.fault is None, one.evidence

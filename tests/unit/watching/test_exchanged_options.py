"""Options that an optimizer gets instead of the learning rate that the script has for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]

START = """
import argparse
import torch
import torch.nn.functional as F
from dataclasses import dataclass
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--weight-decay", type=float, default=1e-5)
parser.add_argument("--momentum", type=float, default=0.9)
args = parser.parse_args([])
torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
net = nn.Linear(8, 3)
"""
END = """
for step in range(12):
    opt.zero_grad()
    F.cross_entropy(net(x), y).backward()
    opt.step()
"""
LOW = "learning_rate_too_low"
HIGH = "learning_rate_too_high"
SETTINGS = """
@dataclass
class Settings:
    learning_rate: float = 1e-2
    wd: float = 1e-5
cfg = Settings()
"""
BUILD = """
def build(net, args):
    return torch.optim.AdamW(
        net.parameters(),
        lr=args.weight_decay,
        weight_decay=args.weight_decay,
    )
opt = build(net, args)
"""

# each: code, the finding, the option that is passed and the one that is meant
EXCHANGED = {
    "weight_decay": (BUILD, LOW, "args.weight_decay = 1e-05", "args.lr"),
    "both": (
        "opt = torch.optim.AdamW(net.parameters(), lr=args.weight_decay, weight_decay=args.lr)",
        LOW,
        "args.weight_decay = 1e-05",
        "args.lr",
    ),
    "by_position": (
        "opt = torch.optim.SGD(net.parameters(), args.momentum, args.momentum)",
        HIGH,
        "args.momentum = 0.9",
        "args.lr",
    ),
    "a_dict": (
        'cfg = {"lr": 0.01, "weight_decay": 1e-4}\n'
        'opt = torch.optim.Adam(net.parameters(), lr=cfg["weight_decay"])',
        LOW,
        "cfg['weight_decay'] = 0.0001",
        'cfg["lr"]',
    ),
    "settings": (
        SETTINGS + "opt = torch.optim.Adam(net.parameters(), lr=cfg.wd)",
        LOW,
        "cfg.wd = 1e-05",
        "cfg.learning_rate",
    ),
    "constants": (
        "LR = 1e-2\nWEIGHT_DECAY = 1e-5\n"
        "opt = torch.optim.Adam(net.parameters(), lr=WEIGHT_DECAY, weight_decay=WEIGHT_DECAY)",
        LOW,
        "WEIGHT_DECAY = 1e-05",
        "LR",
    ),
    "a_rate_that_is_only_printed": (
        BUILD + 'print(f"learning rate {args.lr}", args.lr)',
        LOW,
        "args.weight_decay = 1e-05",
        "args.lr",
    ),
    "arguments": (
        "def build(net, lr, weight_decay):\n"
        "    return torch.optim.Adam(net.parameters(), lr=weight_decay)\n"
        "opt = build(net, args.lr, args.weight_decay)",
        LOW,
        "weight_decay = 1e-05",
        "lr",
    ),
}
SOUND = {
    "its_own": "opt = torch.optim.AdamW(net.parameters(), lr=args.lr, "
    "weight_decay=args.weight_decay)",
    "no_other_rate": "cfg = {'momentum': 0.1}\n"
    "opt = torch.optim.SGD(net.parameters(), lr=cfg['momentum'])",
    "used_later": "opt = torch.optim.SGD(net.parameters(), lr=args.weight_decay)\n"
    "for group in opt.param_groups: group['lr'] = args.lr",
    "of_a_schedule": "opt = torch.optim.SGD(net.parameters(), lr=args.weight_decay)\n"
    "plan = torch.optim.lr_scheduler.OneCycleLR(opt, args.lr, total_steps=20)",
    "of_a_group": "opt = torch.optim.SGD([{'params': net.parameters(), 'lr': args.lr}], "
    "lr=args.weight_decay)",
    "as_keywords": "def build(params, lr, **_): return torch.optim.SGD(params, lr=lr)\n"
    "opt = build(net.parameters(), **vars(args))\n"
    "opt = torch.optim.SGD(net.parameters(), lr=args.weight_decay)",
    "the_same_value": "args.lr = args.weight_decay = 0.01\n"
    "opt = torch.optim.SGD(net.parameters(), lr=args.weight_decay)",
}  # fmt: skip


def found(report: WatchReport, name: str) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == name]
    return one


@pytest.mark.parametrize("name", EXCHANGED)
def test_another_option_as_the_learning_rate_is_found(name: str, watched: Watched) -> None:
    middle, fault, passed, meant = EXCHANGED[name]
    code = START + middle + END
    one = found(watched(code), fault)
    assert one.outcome is Outcome.WARNED, one.evidence
    assert f"gets {passed} as its learning rate, while {meant} = 0.01 is not" in one.evidence
    assert one.fix == f"Pass lr={meant}."
    words = passed.partition(" ")[0].replace("'", '"')
    lines = [at for at, text in enumerate(code.splitlines(), 1) if words in text]
    assert one.where in {f"snippet.py:{at}" for at in lines}


@pytest.mark.parametrize("name", SOUND)
def test_rates_that_the_script_means_are_not(name: str, watched: Watched) -> None:
    report = watched(START + SOUND[name] + END)
    for fault in (LOW, HIGH):
        one = found(report, fault)
        assert "as its learning rate" not in one.evidence

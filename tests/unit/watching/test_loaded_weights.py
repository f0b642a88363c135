"""Weights that are loaded: whether they arrive in the model."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
FAILED = Outcome.FAILED

START = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
class Net(nn.Module):
    def __init__(self, num=3, width=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, num)
    def forward(self, x):
        return self.head(self.trunk(x))
def train(net, num=5):
    sgd = torch.optim.SGD(net.parameters(), 0.05)
    for _ in range(num):
        rows = torch.randint(320, (32,))
        sgd.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        sgd.step()
old = Net()
torch.save(old.state_dict(), "old.pt")
torch.save({"module." + k: v for k, v in old.state_dict().items()}, "wrapped.pt")
torch.save({"epoch": 3, "model": old.state_dict()}, "whole.pt")
net = Net()
"""

# each: the outcome, the code, the words of its line, and those of evidence and fix
FAULTY = {
    "saved_from_a_wrapper": (
        FAILED,
        'net.load_state_dict(torch.load("wrapped.pt"), strict=False)\n',
        "net.load_state_dict",
        '6 of 6 would fit without the prefix "module."',
        'removeprefix("module."): v for k, v in state.items()}, with strict=True.',
    ),
    "loaded_after_wrapping": (
        FAILED,
        'net = nn.DataParallel(net)\nnet.load_state_dict(torch.load("old.pt"), strict=False)\n',
        "net.load_state_dict",
        '6 of 6 would fit with the prefix "module."',
        "before the model is wrapped, or into model.module",
    ),
    "a_whole_checkpoint": (
        FAILED,
        'net.load_state_dict(torch.load("whole.pt"), strict=False)\n',
        "net.load_state_dict",
        'would fit in the entry "model"',
        'Load state["model"], with strict=True.',
    ),
    "another_prefix_and_a_new_head": (
        FAILED,
        "net.backbone, net.trunk = net.trunk, nn.Identity()\n"
        "net.forward = lambda x: net.head(net.backbone(x))\n"
        'state = {k: v for k, v in torch.load("old.pt").items() if "head" not in k}\n'
        "net.load_state_dict(state, False)\n",
        "net.load_state_dict",
        '4 of 6 would fit with "backbone." instead of the prefix "trunk."',
        '{"backbone." + k.removeprefix("trunk."): v',
    ),
    "filtered_by_name_until_nothing_is_left": (
        FAILED,
        'state, own = torch.load("wrapped.pt"), net.state_dict()\n'
        "state = {k: v for k, v in state.items() if k in own and v.shape == own[k].shape}\n"
        "net.load_state_dict(state, strict=False)\n",
        "net.load_state_dict",
        "was given an empty dict",
        'removeprefix("module.")',
    ),
    "filtered_by_shape_until_nothing_is_left": (
        FAILED,
        "net = Net(num=5, width=24)\n"
        'state, own = torch.load("old.pt"), net.state_dict()\n'
        "state = {k: v for k, v in state.items() if v.shape == own[k].shape and v.dim()}\n"
        "net.load_state_dict(state, strict=False)\n",
        "net.load_state_dict",
        "trunk.0.weight is 16×8 in what was read, and 24×8 in the model",
        "with the same layers and sizes",
    ),
    "an_update_with_nothing": (
        FAILED,
        'state, own = torch.load("wrapped.pt"), net.state_dict()\n'
        "own.update({k: v for k, v in state.items() if k in own})\n"
        "net.load_state_dict(own)\n",
        "net.load_state_dict",
        "into itself: all 6 were its own",
        'removeprefix("module.")',
    ),
    "a_loop_that_copies_nothing": (
        Outcome.WARNED,
        'state = torch.load("wrapped.pt")\n'
        "for name, p in net.named_parameters():\n"
        "    if name in state:\n"
        "        p.data.copy_(state[name])\n",
        "state = torch.load",
        "are in none of the models",
        'removeprefix("module.")',
    ),
    "only_the_head_has_its_name": (
        Outcome.WARNED,
        "state = {k.replace('trunk', 'body'): v for k, v in torch.load('old.pt').items()}\n"
        "net.load_state_dict(state, strict=False)\n",
        "net.load_state_dict",
        'loaded only 2 of 6 weights of Net; 4 of 6 would fit with "trunk." instead of',
        "missing_keys",
    ),
    "not_from_a_file": (
        FAILED,
        "state = {'encoder.' + k: v for k, v in old.trunk.state_dict().items()}\n"
        "net.load_state_dict(state, strict=False)\n",
        "net.load_state_dict",
        '4 of 6 would fit with "trunk." instead of the prefix "encoder."',
        "missing_keys",
    ),
}

SOUND = {
    "a_new_head": (
        "net = Net(num=5)\n"
        'state = {k: v for k, v in torch.load("old.pt").items() if "head" not in k}\n'
        "net.load_state_dict(state, strict=False)\n"
    ),
    "the_prefix_is_tried_first": (
        'state = torch.load("wrapped.pt")\n'
        "if net.load_state_dict(state, strict=False).missing_keys:\n"
        "    net.load_state_dict({k.removeprefix('module.'): v for k, v in state.items()})\n"
    ),
    "several_files_of_which_one_has_nothing_for_it": (
        "parts = [{'other.weight': torch.zeros(2, 2)}, torch.load('old.pt'), {'no.bias': x}]\n"
        "for part in parts:\n    net.load_state_dict(part, strict=False)\n"
    ),
    "each_part_takes_its_own_names": (
        "state = old.trunk.state_dict()\n"
        "for part in (net.trunk, net.head):\n"
        "    part.load_state_dict({k: v for k, v in state.items()}, strict=False)\n"
    ),
    "a_hook_that_renames": (
        "def rename(module, state, *_):\n"
        "    for key in list(state):\n"
        "        state[key.removeprefix('module.')] = state.pop(key)\n"
        "net.register_load_state_dict_pre_hook(rename)\n"
        'net.load_state_dict(torch.load("wrapped.pt"), strict=False)\n'
    ),
    "copied_by_hand": (
        'state = torch.load("wrapped.pt")\n'
        "for name, p in net.named_parameters():\n"
        "    p.data.copy_(state['module.' + name])\n"
    ),
    "an_average_of_files": (
        'first, second = torch.load("wrapped.pt"), torch.load("wrapped.pt")\n'
        "net.load_state_dict({k[7:]: (v + second[k] * 3) / 2 for k, v in first.items()})\n"
    ),
    "copied_into_few_bits": (
        'state = torch.load("wrapped.pt")\n'
        "for name, p in net.named_parameters():\n"
        "    p.data.copy_(state['module.' + name].bfloat16())\n"
    ),
    "layers_without_a_size_yet": (
        "lazy = nn.LazyLinear(3)\nlazy.load_state_dict(lazy.state_dict())\n"
    ),
    "read_for_another_model": (
        'state = torch.load("wrapped.pt")\n'
        "teacher = Net()\n"
        "teacher.load_state_dict({k[7:]: v for k, v in state.items()})\n"
    ),
    "nothing_to_resume": (
        "import os\n"
        "state = torch.load('last.pt') if os.path.exists('last.pt') else {}\n"
        "if state:\n    net.load_state_dict(state)\n"
    ),
    "its_own_weights": "net.load_state_dict(net.state_dict())\n",
    "its_own_weights_after_those_of_a_file": (
        "whole = torch.load('whole.pt')\nnet.load_state_dict(whole['model'])\n"
        "net.load_state_dict(net.state_dict())\n"
    ),
    "one_entry_of_several": (
        "old = {'module.' + k: v for k, v in Net().state_dict().items()}\n"
        "torch.save({'model': net.state_dict(), 'average': old}, 'both.pt')\n"
        "net = Net()\nstate = torch.load('both.pt')['model']\n"
        "for name, p in net.named_parameters():\n    p.data.copy_(state[name])\n"
    ),
    "never_used": (
        "spare = Net()\n"
        "spare.load_state_dict({'no.' + k: v for k, v in old.state_dict().items()}, strict=False)\n"
    ),
    "best_weights_at_the_end": (
        "train(net)\ntorch.save(net.state_dict(), 'best.pt')\ntrain(net)\n"
        "net.load_state_dict(torch.load('best.pt'))\n"
    ),
}


def found_in(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    return next(one for one in report.findings if one.check == "pretrained_not_loaded")


@pytest.mark.parametrize("name", FAULTY)
def test_weights_that_do_not_arrive_are_reported_with_what_would_fit(
    watched: Watched, name: str
) -> None:
    outcome, code, words, evidence, fix = FAULTY[name]
    code = START + code + "train(net)\n"
    found = found_in(watched(code))
    assert found.outcome is outcome, found
    assert evidence in found.evidence
    assert fix in found.fix
    line = max(i for i, text in enumerate(code.splitlines(), 1) if words in text)
    assert found.where == f"snippet.py:{line}"


@pytest.mark.parametrize("name", SOUND)
def test_weights_that_arrive_or_were_not_meant_are_not(watched: Watched, name: str) -> None:
    found = found_in(watched(START + SOUND[name] + "train(net)\n"))
    assert found.fault is None, found.evidence


def test_a_second_training_is_judged_as_well(watched: Watched) -> None:
    code = FAULTY["filtered_by_name_until_nothing_is_left"][1]
    assert found_in(watched(START + "train(old)\n" + code + "train(net)\n")).outcome is FAILED


def test_a_load_for_the_evaluation_is_judged_as_well(watched: Watched) -> None:
    end = (
        "def evaluate(net):\n"
        '    net.load_state_dict(torch.load("wrapped.pt"), strict=False)\n'
        "    net.eval()\n    net(x)\n"
        "evaluate(net)\ndel net\n"
    )
    assert found_in(watched(START + "train(net)\n" + end)).outcome is FAILED

"""Backwards whose gradients no step of their optimizer uses: after the step, or before clearing."""

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
x = torch.randn(320, 8)
y, z = x[:, :3].argmax(1), x[:, 3:5]
body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
one, two = nn.Linear(16, 3), nn.Linear(16, 2)
net = nn.ModuleList([body, one, two])
adam = torch.optim.Adam(net.parameters(), 0.01)
def classes(rows): return F.cross_entropy(one(body(x[rows])), y[rows])
def places(rows): return F.mse_loss(two(body(x[rows])), z[rows])
for step in range(30):
    rows = torch.randint(320, (32,))
"""


def code_of(*lines: str) -> str:
    return START + "".join(f"    {line}\n" for line in lines)


LATE = {
    "two_losses": code_of(
        "adam.zero_grad()",
        "classes(rows).backward()",
        "adam.step()",
        "places(rows).backward()",
    ),
    "cleared_by_the_model": code_of(
        "net.zero_grad()",
        "classes(rows).backward()",
        "adam.step()",
        "(0.1 * places(rows)).backward()",
    ),
    "set_to_zero": code_of(
        "adam.zero_grad(set_to_none=False)",
        "classes(rows).backward()",
        "adam.step()",
        "places(rows).backward()",
    ),
    "cleared_at_the_end": code_of(
        "classes(rows).backward()",
        "adam.step()",
        "places(rows).backward()",
        "adam.zero_grad()",
    ),
}
SOUND = {
    "one_step_after_both": code_of(
        "adam.zero_grad()",
        "classes(rows).backward()",
        "places(rows).backward()",
        "adam.step()",
    ),
    "a_step_for_each": code_of(
        "adam.zero_grad()",
        "classes(rows).backward()",
        "adam.step()",
        "adam.zero_grad()",
        "places(rows).backward()",
        "adam.step()",
    ),
    "a_step_for_each_after_zeros": code_of(
        "adam.zero_grad(set_to_none=False)",
        "classes(rows).backward()",
        "adam.step()",
        "adam.zero_grad(set_to_none=False)",
        "places(rows).backward()",
        "adam.step()",
    ),
    "only_the_other_part_is_cleared": code_of(
        "body.zero_grad(set_to_none=False)",
        "one.zero_grad(set_to_none=False)",
        "classes(rows).backward()",
        "adam.step()",
        "two.zero_grad(set_to_none=False)",
        "places(rows).backward()",
    ),
    "gradients_are_only_printed": code_of(
        "adam.zero_grad()",
        "(classes(rows) + places(rows)).backward()",
        "adam.step()",
        "adam.zero_grad()",
        "places(rows).backward()",
        "norm = float(two.weight.grad.norm())",
    ),
    "the_other_task_begins_later": code_of(
        "adam.zero_grad()",
        "classes(rows).backward()",
        "if step > 15: places(rows).backward()",
        "adam.step()",
        "if step <= 15: places(rows).backward()",
    ),
}


def found(report: WatchReport, name: str = "frozen_by_accident") -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == name]
    return one


def line_of(code: str, words: str) -> str:
    lines = enumerate(code.splitlines(), 1)
    return f"snippet.py:{next(at for at, text in lines if text.lstrip().startswith(words))}"


@pytest.mark.parametrize("name", LATE)
def test_a_backward_after_the_step_is_named(name: str, watched: Watched) -> None:
    code = LATE[name]
    one = found(watched(code))
    lines = [text.strip() for text in code.splitlines()]
    late = next(text for text in lines if "places" in text and text.endswith(".backward()"))
    clear = next(text for text in lines if "zero_grad" in text)
    assert one.outcome is Outcome.WARNED
    assert one.where == line_of(code, "adam.step()")
    assert one.evidence.endswith(
        f"after the step, the backward at {line_of(code, late)} computes gradients of them, but "
        f"{line_of(code, clear)} clears them before the next step"
    )
    assert line_of(code, late) in one.fix
    assert found(watched(code), "accumulation_unscaled").fault is None


def test_gradients_that_are_cleared_between_two_losses_are_named(watched: Watched) -> None:
    code = code_of(
        "places(rows).backward()",
        "adam.zero_grad()",
        "classes(rows).backward()",
        "adam.step()",
    )
    one = found(watched(code))
    assert one.outcome is Outcome.WARNED
    assert one.where == line_of(code, "places")
    assert "; the backward at" in one.evidence
    assert one.evidence.endswith("clears them before the step")
    assert "before the first backward" in one.fix


def test_an_optimizer_that_always_steps_too_early_is_named(watched: Watched) -> None:
    code = START.replace(
        "adam = torch.optim.Adam(net.parameters(), 0.01)",
        "adam = torch.optim.Adam([*body.parameters(), *one.parameters()], 0.01)\n"
        "sgd = torch.optim.SGD(two.parameters(), 0.01)",
    )
    for line in (
        "net.zero_grad()",
        "classes(rows).backward()",
        "sgd.step()",
        "adam.step()",
        "places(rows).backward()",
    ):
        code += f"    {line}\n"
    one = found(watched(code), "parameters_never_step")
    assert one.outcome is Outcome.FAILED
    assert one.where == line_of(code, "sgd.step()")
    assert "after the step, the backward at" in one.evidence


@pytest.mark.parametrize("name", SOUND)
def test_gradients_that_a_step_uses_are_not_reported(name: str, watched: Watched) -> None:
    one = found(watched(SOUND[name]))
    assert one.fault is None, one.evidence

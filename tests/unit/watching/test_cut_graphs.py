"""A loss without a graph: the operation that cut it is named if that is proven."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.overrides import _len_torch_function_stack

from stepladder.records.findings import Finding, Outcome
from stepladder.records.watch import WatchReport

Watched = Callable[..., WatchReport]
NAME = "parameters_never_step"

START = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
sgd = torch.optim.SGD(net.parameters(), 1e-2)
for step in range(20):
    rows = torch.randint(320, (32,))
    sgd.zero_grad()
    SCORES
    LOSS
    loss.backward()
    sgd.step()
"""
PLAIN = "scores = net(x[rows])"

# each: scores, loss, the operation that is named, and the words of its line
CUT = {
    "argmax": (
        PLAIN,
        "loss = F.mse_loss(scores.argmax(1).float(), y[rows].float()); loss.requires_grad = True",
        "argmax()",
        "argmax",
    ),
    "largest": (
        PLAIN,
        "loss = F.l1_loss(scores.max(1)[1].float(), y[rows].float()).requires_grad_()",
        "max()",
        "max(1)",
    ),
    "detach": (
        "scores = net(x[rows]).detach()",
        "loss = F.cross_entropy(scores, y[rows]).requires_grad_()",
        "detach()",
        ".detach()",
    ),
    "data": (
        "scores = net(x[rows]).data",
        "loss = F.cross_entropy(scores, y[rows]).requires_grad_()",
        ".data",
        ".data",
    ),
    "item": (
        PLAIN,
        "loss = torch.tensor(F.cross_entropy(scores, y[rows]).item(), requires_grad=True)",
        "item()",
        ".item()",
    ),
    "number_that_is_divided": (
        PLAIN,
        "loss = torch.tensor(F.cross_entropy(scores, y[rows]).item() / 2, requires_grad=True)",
        "item()",
        ".item()",
    ),
    "copy": (
        PLAIN,
        "loss = torch.tensor(F.cross_entropy(scores, y[rows]), requires_grad=True)",
        "tensor()",
        "torch.tensor(",
    ),
    "array": (
        "scores = net(x[rows]).detach().numpy()",
        "loss = F.cross_entropy(torch.from_numpy(scores), y[rows]).requires_grad_()",
        "detach()",
        ".detach()",
    ),
    "no_grad": (
        "with torch.no_grad(): scores = net(x[rows])",
        "loss = F.cross_entropy(scores, y[rows]).requires_grad_()",
        "torch.no_grad()",
        "no_grad",
    ),
    "middle": (
        "scores = net(x[rows]).detach().requires_grad_()",
        "loss = F.cross_entropy(scores, y[rows])",
        "detach()",
        ".detach()",
    ),
}


def code_of(scores: str, loss: str) -> str:
    return START.replace("SCORES", scores).replace("LOSS", loss)


def found(report: WatchReport) -> Finding:
    assert report.watcher_error is None
    assert report.ending == "it ran to completion"
    (one,) = [finding for finding in report.findings if finding.check == NAME]
    return one


@pytest.mark.parametrize("name", CUT)
@pytest.mark.filterwarnings("ignore")
def test_the_operation_that_cut_the_graph_is_named_with_its_line(
    name: str, watched: Watched
) -> None:
    scores, loss, operation, words = CUT[name]
    code = code_of(scores, loss)
    one = found(watched(code))
    (line,) = [i for i, text in enumerate(code.splitlines(), 1) if words in text and i > 10]
    assert one.outcome is Outcome.FAILED
    assert f"it was cut by {operation} at snippet.py:{line}" in one.evidence
    assert one.where == f"snippet.py:{line}"
    assert ("backward begins at a leaf" in one.evidence) is (name != "middle")
    assert _len_torch_function_stack() == 0


def test_no_operation_is_named_if_none_is_proven(watched: Watched) -> None:
    loss = "a = scores.mean().item(); b = scores.tolist()[0][0]; "
    code = code_of(PLAIN, loss + "loss = torch.tensor(a * b, requires_grad=True)")
    one = found(watched(code))
    assert "backward begins at a leaf, which has no graph" in one.evidence
    assert "cut" not in one.evidence
    line = code.splitlines().index("    loss.backward()") + 1
    assert one.where == f"snippet.py:{line}"


def test_weights_of_another_model_are_named_as_such(watched: Watched) -> None:
    code = code_of(PLAIN, "loss = F.cross_entropy(scores, y[rows])").replace(
        "for step", "import copy\nnet = copy.deepcopy(net)\nfor step"
    )
    assert "holds weights that the model does not use" in found(watched(code)).evidence


def test_a_part_that_is_detached_is_not_called_unused(watched: Watched) -> None:
    code = (
        code_of(PLAIN, "loss = F.cross_entropy(head(scores.detach()), y[rows])")
        .replace(
            "for step",
            "head = nn.Linear(3, 3)\nalso = torch.optim.SGD(head.parameters(), 1e-2)\nfor step",
        )
        .replace("    sgd.step()", "    sgd.step()\n    also.step()\n    also.zero_grad()")
    )
    one = found(watched(code))
    assert one.fault == NAME
    line = next(i for i, text in enumerate(code.splitlines(), 1) if "detach" in text)
    assert f"detach() at snippet.py:{line} cuts them off from the loss" in one.evidence
    assert one.where == f"snippet.py:{line}"


@pytest.mark.filterwarnings("ignore")
def test_following_operations_changes_no_result(watched: Watched) -> None:
    scores, loss, _, _ = CUT["argmax"]
    code = code_of(scores, loss) + "torch.save([net.state_dict(), torch.rand(4)], 'end.pt')\n"
    watched(code)
    first = torch.load("end.pt")
    exec(compile(code, "snippet.py", "exec"), {"__name__": "__main__"})
    second = torch.load("end.pt")
    assert all(torch.equal(first[0][key], second[0][key]) for key in first[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.filterwarnings("ignore")
def test_a_mode_of_the_script_ends_as_without_watching(watched: Watched) -> None:
    scores, loss, _, _ = CUT["argmax"]
    code = (
        code_of(scores, loss)
        .replace(
            "for step in range(20):",
            "mode = torch.device('cpu')\nfor step in range(20):\n"
            "    mode.__enter__() if step % 3 == 2 else None",
        )
        .replace(
            "    sgd.step()",
            "    mode.__exit__(None, None, None) if step % 3 == 2 else None\n    sgd.step()",
        )
    )
    one = found(watched(code))
    assert one.fault == NAME
    assert _len_torch_function_stack() == 0

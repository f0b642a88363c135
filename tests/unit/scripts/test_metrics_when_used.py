"""Lines move into the `if` that alone uses them, where they only compute."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepladder.scripts.contract import ScriptRung
from stepladder.scripts.metric_lines import metric_lines, moved, timed, why_impure
from stepladder.scripts.settings import Settings

RUNG = "metrics_when_used"
SCRIPT = textwrap.dedent(
    '''
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 2)
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(512, 64)
    y = (x.sum(1) > 0).long()
    seen = []


    def evaluate(model, inputs, targets):
        """Return loss and accuracy."""
        model.eval()
        right = 0
        with torch.no_grad():
            output = model(inputs)
            for row, target in zip(output.argmax(1).tolist(), targets.tolist()):
                right += row == target
        EXTRA
        return torch.nn.functional.cross_entropy(output, targets).item(), right / len(targets)


    def train(epoch):
        net.train()
        opt.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()

        # how good it is
        loss_train, acc = evaluate(net, x, y)
        rounded = round(acc, 2)

        if epoch % 5 == 0:
            # seldom
            print(epoch, f"{loss_train:.6f}", rounded)
        return loss.item()


    for epoch in range(40):
        print(f"{train(epoch):.9f}")
    print(evaluate(net, x, y), len(seen))
    '''
).lstrip()
PLAIN = SCRIPT.replace("    EXTRA\n", "")


def test_what_is_printed_is_the_same(climber: Callable[[str], Any], rung: ScriptRung) -> None:
    ways = climber(PLAIN).both_ways(rung)
    (block,) = ways.facts.metrics
    assert block.num_statements == 2
    assert block.used_share == pytest.approx(0.2, abs=0.05)
    assert block.share > 0.1
    assert ways.outside == ways.diff == ways.original
    body = ways.patched.partition("    opt.step()\n")[2]
    assert body.startswith(
        """
    # stepladder, metrics_when_used
    if epoch % 5 == 0:
        # how good it is
        loss_train, acc = evaluate(net, x, y)
        rounded = round(acc, 2)
        # seldom
        print("""
    )


def test_the_lines_run_only_when_they_are_used() -> None:
    text = """
for step in range(10):
    acc = f(step)
    if step % 5 == 0:
        shown.append(acc)
"""
    tree = ast.parse(text)
    for changed, expected in ((tree, 10), (moved(tree, [(4, 4)]), 2), (moved(tree, [(3, 4)]), 10)):
        calls: list[int] = []
        shown: list[int] = []
        scope = {"f": lambda step, calls=calls: calls.append(step) or step, "shown": shown}
        exec(compile(changed, "train.py", "exec"), scope)
        assert shown == [0, 5]
        assert len(calls) == expected


EXTRA = {
    "seen.append(right)": "in evaluate, line 21 calls append",
    "torch.rand(1)": "it draws random numbers",
    "print(right)": "in evaluate, line 21 calls print",
    "model.train(); model(inputs)": "it changes the model, such as running statistics",
    "model.note = right": "in evaluate, model is changed",
    "targets += 0": "in evaluate, line 21 may change targets in place",
    "import logging; logging.getLogger().error('x')": "it calls logging",
    "__import__('psutil').cpu_count()": "in evaluate, line 21 calls __import__",
    "from torch import distributed; distributed.is_initialized()": "it calls torch.distributed",
    "import psutil; psutil.cpu_count()": "it calls psutil",
}


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.thorough) if idx > 3 else line
        for idx, line in enumerate(EXTRA)
    ],
)
def test_lines_that_do_more_stay(
    climber: Callable[[str], Any], rung: ScriptRung, line: str
) -> None:
    facts = climber(SCRIPT.replace("EXTRA", line)).facts()
    assert rung.why_not(facts, Settings()) == f"line 33 cannot wait: {EXTRA[line]}"


def found_in(body: str, *, is_file: bool = False) -> list[str]:
    text = textwrap.dedent(body)
    if not is_file:
        text = f"def train(step, model, total):\n{textwrap.indent(text, '    ')}"
    tree = ast.parse(text)
    compile(moved(tree, [one.start for one in metric_lines(tree)]), "x", "exec")
    compile(timed(tree, "timer"), "x", "exec")
    return [text.splitlines()[one.first_line - 1].strip() for one in metric_lines(tree)]


USED = {
    "if": "acc = f(model)\nif step % 5 == 0:\n    print(acc)\n",
    "two": "acc = f(model)\nbest = max(acc, 1)\nif step % 5 == 0:\n    print(best, acc)\n",
    "a loop": "for i in x:\n    acc = f(i)\n    if i % 5 == 0:\n        print(acc)\n",
    "a branch": "if model:\n    acc = f(1)\n    if step:\n        print(acc)\n",
    "its own name": "acc = f(1)\nif step:\n    print(acc)\nother = [1 for one in total]\n",
}


@pytest.mark.parametrize("body", USED.values(), ids=USED.keys())
def test_lines_that_only_an_if_uses(body: str) -> None:
    assert len(found_in(body)) == 1
    assert len(found_in(body, is_file=True)) == 1


NOT_ONLY = {
    "after it": "acc = f(1)\nif step:\n    print(acc)\nreturn acc\n",
    "in its test": "acc = f(1)\nif acc > 1:\n    print(acc)\n",
    "in its else": "acc = f(1)\nif step:\n    pass\nelse:\n    print(acc)\n",
    "a test that acts": "acc = f(1)\nif next(model):\n    print(acc)\n",
    "a sum over steps": "for i in x:\n    acc = acc + f(i)\n    if step:\n        print(acc)\n",
    "a closure": "acc = f(1)\nif step:\n    print(acc)\nreturn lambda: acc\n",
    "all names": "acc = f(1)\nif step:\n    print(acc)\nreturn locals()\n",
    "an attribute": "model.acc = f(1)\nif step:\n    print(model.acc)\n",
    "one process": "acc = f(1)\nif step % 5 == 0 and args.local_rank == 0:\n    print(acc)\n",
    "all processes": "acc = dist.all_reduce(total)\nif step:\n    print(acc)\n",
    "a step": "acc = model.step()\nif step:\n    print(acc)\n",
    "in place": "acc = total.add_(1)\nif step:\n    print(acc)\n",
    "an iterator": "acc = next(total)\nif step:\n    print(acc)\n",
    "a line of two": "g(); acc = f(1)\nif step:\n    print(acc)\n",
    "no computation": "acc = model\nif step:\n    print(acc)\n",
    "a global": "global acc\nacc = f(1)\nif step:\n    print(acc)\n",
}


@pytest.mark.parametrize("body", NOT_ONLY.values(), ids=NOT_ONLY.keys())
def test_lines_that_something_else_uses(body: str) -> None:
    assert found_in(body) == []


def test_variables_of_the_file_may_be_used_by_functions() -> None:
    lines = "acc = f(1)\nif step:\n    print(acc)\n"
    assert found_in(f"def g():\n    return acc\n{lines}", is_file=True) == []
    assert found_in(f"def g(acc):\n    return acc\n{lines}", is_file=True) == ["acc = f(1)"]
    assert found_in(f"def g():\n    acc = 1\n    return acc\n{lines}", is_file=True) != []


PURE = [
    "total = 0\nfor x in xs:\n    total += x.item()\nreturn total / len(xs)",
    "rows = []\nfor x in xs:\n    rows.append(x)\nreturn torch.cat(rows)",
    "with torch.no_grad():\n    out = model(xs)\nreturn out.argmax(1)",
    "table = torch.zeros(3)\ntable[0] = 1\nreturn table",
    "return math.log(xs) + xs.softmax(1).__len__()",
]
IMPURE = [
    "total = xs\ntotal += 1\nreturn total",
    "xs.append(1)",
    "xs[0] = 1",
    "global count\ncount = 1",
    "yield 1",
    "del xs[0]",
    "loss.backward()",
    "xs.clamp_(0)",
    "open('log.txt', 'a').write('x')",
    "torch.manual_seed(0)",
]


@pytest.mark.parametrize("body", PURE)
def test_what_only_computes(body: str) -> None:
    assert why_impure(ast.parse(body).body, is_function=True) is None


@pytest.mark.parametrize("body", IMPURE)
def test_what_does_more(body: str) -> None:
    assert re.search("line|changed", why_impure(ast.parse(body).body, is_function=True) or "")


def test_a_module_has_no_lines_that_move(
    tmp_path: Path, climber: Callable[[str], Any], rung: ScriptRung
) -> None:
    (tmp_path / "inner.py").write_text(PLAIN.replace("    EXTRA\n", ""))
    facts = climber("import inner\n").facts()
    assert facts.num_steps == 40
    assert facts.metrics == ()
    assert (
        rung.why_not(facts, Settings()) == "no costly line computes what only the if after it uses"
    )

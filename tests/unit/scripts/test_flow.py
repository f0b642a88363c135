"""Names of statements: which are assigned on every path, and which are needed from before."""

from __future__ import annotations

import ast
import textwrap

import pytest

from stepladder.scripts.flow import flow_of

ASSIGNED = {
    "x = 1": "x",
    "x, (y, *z) = f()": "x y z",
    "x = y = 1": "x y",
    "x: int = 1": "x",
    "x: int": "",
    "import a.b, c as d": "a d",
    "if p:\n    x = 1\nelse:\n    x = 2\n    y = 3": "x",
    "if p:\n    x = 1": "",
    "if p:\n    x = 1\nelse:\n    raise ValueError": "x",
    "for x in p:\n    y = x": "",
    "while True:\n    x = 1\n    break": "",
    "with open(p) as x:\n    y = x.read()": "x y",
    "try:\n    x = f()\nexcept OSError:\n    x = 1": "x",
    "try:\n    x = f()\nexcept OSError as error:\n    raise ValueError": "x",
    "try:\n    x = f()\nexcept OSError as error:\n    y = error": "",
    "try:\n    x = f()\nfinally:\n    y = 1": "x y",
    "try:\n    f()\nexcept OSError:\n    x = 1\nelse:\n    x = 2": "x",
    "match p:\n    case [x, *y]:\n        z = 1\n    case _:\n        z = 2": "z",
    "match p:\n    case {'a': x, **y}:\n        z = 1": "",
    "match p:\n    case x:\n        z = 1": "x z",
    "if (x := f()):\n    pass": "",
    "y = [(x := a) for a in p]": "y",
    "def f(a):\n    b = a": "f",
}


@pytest.mark.parametrize("code", ASSIGNED)
def test_names_that_are_assigned_on_every_path(code: str) -> None:
    found = flow_of(ast.parse(code).body, {"p", "f"})
    assert found.assigned - {"p"} == {*ASSIGNED[code].split()} | {"f"}


@pytest.mark.parametrize(
    ("code", "names"),
    [("for x in p: y = x", "x y"), ("match p:\n case [a, *b] | {'c': a, **b}: pass", "a b")],
)
def test_all_names_that_are_assigned_on_some_path(code: str, names: str) -> None:
    assert {*flow_of(ast.parse(code).body).bound} == {*names.split()}


NEEDED = {
    "return x": "x",
    "x = 1\nreturn x": "",
    "x += 1": "x",
    "x.y = z[i]": "x z i",
    "if p:\n    x = 1\nreturn x": "p x",
    "for x in p:\n    y = x\nreturn x": "p x",
    "y = [x for x in p]": "p",
    "y = lambda a, c=d: a + b": "b d",
    "y = [x for x in p] + [x]": "p x",
    "y = {x: z for x in p for z in x if x != q}": "p q",
    "y = [x for x in x]": "x",
    "del x": "x",
    "while p:\n    z = x\n    x = 1": "p x",
    "x = f(key=1).part": "f",
}


@pytest.mark.parametrize("code", NEEDED)
def test_names_that_are_needed_from_before(code: str) -> None:
    text = f"def f():\n{textwrap.indent(code, '    ')}"
    function = ast.parse(text).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert flow_of(function.body).needed == {*NEEDED[code].split()}

"""Split a dataset's `__getitem__` in two: what always reads the same, and what follows."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import chain, count
from typing import Any, Final

import libcst as cst

from stepladder.scripts.flow import aliases_in, changed_in, flow_of

READ: Final = "_read_once"
KEPT: Final = "kept_in_memory"
_NOT_MOVED: Final = (
    ast.Return,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.Global,
    ast.Nonlocal,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_SEES_ALL: Final = {"locals", "vars", "exec", "eval", "super"}
"""Functions whose result depends on the function that calls them."""


def num_statements(function: cst.FunctionDef) -> int:
    """Return the statements of a method that could be split; 0: it cannot be.

    It must have an index besides `self`, no decorator, and a body of lines.
    """
    params = function.params
    others = (params.kwonly_params, params.posonly_params, params.star_kwarg)
    is_plain = len(params.params) == 2 and not any(others) and not function.decorators
    is_plain = is_plain and not isinstance(params.star_arg, cst.Param)
    if not is_plain or function.asynchronous or not isinstance(function.body, cst.IndentedBlock):
        return 0
    return len(_without_docstring(function.body.body))


def split_points(function: cst.FunctionDef) -> list[float]:
    """Return where a method may be split, the longest first part first.

    2 is after the second statement; 2.5 is within the third: what the call in it gets, as the
    picture in `x = self.transform(Image.open(path))`, belongs to the first part.
    """
    num = num_statements(function)
    return [at / 2 for at in range(2 * num - 1, 0, -1)]


def split(function: cst.FunctionDef, num: float) -> tuple[cst.FunctionDef, cst.FunctionDef] | None:
    """Return a method with its first statements, and the method that calls it instead.

    Args:
        num: statements that are moved, one of `split_points`.

    Returns:
        None where that would change what they do, such as at a `return`, where the others use
        nothing of what they read, or a name that may not be assigned.
    """
    if not 0 < num < num_statements(function) or not isinstance(function.body, cst.IndentedBlock):
        return None
    body = _without_docstring(function.body.body)
    first, second = list(body[: int(num)]), list(body[int(num) :])
    if num != int(num):
        both = _apart(second[0], function)
        if both is None:
            return None
        first, second = [*first, both[0]], [both[1], *second[1:]]
    owner, index = (one.name.value for one in function.params.params)
    names = _handed_over(_parsed(first), _parsed(second), owner, index)
    if not names:
        return None
    found = ", ".join(names)
    back = cst.parse_statement(f"return {found}")
    call = cst.parse_statement(f"{found} = {owner}.{READ}({index})")
    docstring = function.body.body[: len(function.body.body) - len(body)]
    reads = function.with_changes(
        name=cst.Name(READ),
        decorators=[cst.Decorator(cst.Name(KEPT))],
        body=function.body.with_changes(body=[*first, back], footer=[]),
        returns=None,
    )
    rest = function.with_changes(
        body=function.body.with_changes(body=[*docstring, call, *second]),
        leading_lines=[cst.EmptyLine(indent=False)],
    )
    return reads, rest


def _apart(
    statement: cst.BaseStatement, function: cst.FunctionDef
) -> tuple[cst.BaseStatement, cst.BaseStatement] | None:
    """Return a line that computes what the call in a statement gets, and the statement with it.

    The call is the whole value that is assigned or returned, or the first of several; what it gets
    is its first argument, and has a call in it.
    """
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    value = getattr(statement.body[0], "value", None)
    outer = value.elements[0].value if isinstance(value, cst.Tuple) and value.elements else value
    is_line = isinstance(statement.body[0], (cst.Assign, cst.Return))
    if not is_line or not isinstance(outer, cst.Call) or not outer.args:
        return None
    argument = outer.args[0]
    is_plain = argument.keyword is None and not argument.star
    if not is_plain or not _is_name(outer.func) or not _has_call(argument.value):
        return None
    names = {one.id for one in ast.walk(ast.parse(_code_of(function))) if isinstance(one, ast.Name)}
    more = (f"decoded_{number}" for number in count())
    name = next(one for one in chain(("decoded",), more) if one not in names)
    before = cst.SimpleStatementLine(
        [cst.Assign([cst.AssignTarget(cst.Name(name))], argument.value)],
        leading_lines=statement.leading_lines,
    )
    after = statement.deep_replace(argument.value, cst.Name(name))
    assert isinstance(after, cst.SimpleStatementLine)
    return before, after.with_changes(leading_lines=[])


def _is_name(function: cst.BaseExpression) -> bool:
    """Return whether a call names its function, as in `self.transform(...)`."""
    while isinstance(function, cst.Attribute):
        function = function.value
    return isinstance(function, cst.Name)


def _has_call(value: cst.BaseExpression) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(ast.parse(_code_of(value))))


def _code_of(node: cst.CSTNode) -> str:
    is_statement = isinstance(node, cst.FunctionDef)
    line = node if is_statement else cst.SimpleStatementLine([cst.Expr(node)])  # type: ignore[arg-type]
    return cst.Module([line]).code  # type: ignore[list-item]


def _parsed(statements: Sequence[Any]) -> list[ast.stmt]:
    return ast.parse(cst.Module(list(statements)).code).body


def _handed_over(
    first: Sequence[ast.stmt], second: Sequence[ast.stmt], owner: str, index: str
) -> list[str]:
    """Return the names that the first statements assign for the others; empty: do not split."""
    nodes = [node for statement in first for node in ast.walk(statement)]
    is_fixed = any(
        isinstance(node, _NOT_MOVED)
        or (isinstance(node, ast.Name) and node.id in _SEES_ALL)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del))
        for node in nodes
    )
    flow = flow_of(first, {owner, index})
    needed = flow_of(second).needed
    is_local = changed_in(nodes) <= flow.bound.keys() - aliases_in(nodes)
    names = [name for name in flow.bound if name in needed]
    if is_fixed or owner in flow.bound or not is_local or not flow.assigned.issuperset(names):
        return []
    return names


def _without_docstring(body: Sequence[cst.BaseStatement]) -> Sequence[cst.BaseStatement]:
    first = body[0] if body else None
    is_line = isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1
    if is_line and isinstance(value := first.body[0], cst.Expr):  # type: ignore[union-attr]
        is_text = isinstance(value.value, (cst.SimpleString, cst.ConcatenatedString))
        return body[1:] if is_text else body
    return body

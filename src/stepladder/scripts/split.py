"""Split a dataset's `__getitem__` in two: what always reads the same, and what follows."""

from __future__ import annotations

import ast
from collections.abc import Sequence
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


def split(function: cst.FunctionDef, num: int) -> tuple[cst.FunctionDef, cst.FunctionDef] | None:
    """Return a method with its first statements, and the method that calls it instead.

    Args:
        num: statements that are moved.

    Returns:
        None where that would change what they do, such as at a `return`, where the others use
        nothing of what they read, or a name that may not be assigned.
    """
    if not 0 < num < num_statements(function) or not isinstance(function.body, cst.IndentedBlock):
        return None
    body = _without_docstring(function.body.body)
    first, second = body[:num], body[num:]
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

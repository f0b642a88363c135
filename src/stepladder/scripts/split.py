"""Split a dataset's `__getitem__` in two: what always reads the same, and what follows."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, Final

import libcst as cst

from stepladder.scripts.flow import flow_of

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
    is_local = _changed(nodes) <= flow.bound.keys() - _aliases(nodes)
    names = [name for name in flow.bound if name in needed]
    if is_fixed or owner in flow.bound or not is_local or not flow.assigned.issuperset(names):
        return []
    return names


def _changed(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names whose attributes or items are assigned or deleted."""
    found = set()
    for node in nodes:
        is_part = isinstance(node, (ast.Attribute, ast.Subscript))
        if is_part and not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            inner: ast.AST = node
            while isinstance(inner, (ast.Attribute, ast.Subscript)):
                inner = inner.value
            found.add(inner.id if isinstance(inner, ast.Name) else "")
    return found


def _aliases(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are assigned what an object holds, rather than a new object."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript)):
                found.update(name for target in targets for name in _names_in(target))
    return found


def _names_in(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _without_docstring(body: Sequence[cst.BaseStatement]) -> Sequence[cst.BaseStatement]:
    first = body[0] if body else None
    is_line = isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1
    if is_line and isinstance(value := first.body[0], cst.Expr):  # type: ignore[union-attr]
        is_text = isinstance(value.value, (cst.SimpleString, cst.ConcatenatedString))
        return body[1:] if is_text else body
    return body

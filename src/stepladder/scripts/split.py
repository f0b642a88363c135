"""Split a dataset's `__getitem__` in two: what always reads the same, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import libcst as cst

READ: Final = "_read_once"
KEPT: Final = "kept_in_memory"
_SCOPES: Final = (
    cst.FunctionDef,
    cst.ClassDef,
    cst.Lambda,
    cst.ListComp,
    cst.SetComp,
    cst.DictComp,
    cst.GeneratorExp,
)
_NOT_MOVED: Final = (
    cst.Return,
    cst.Yield,
    cst.Await,
    cst.Global,
    cst.Nonlocal,
    cst.FunctionDef,
    cst.ClassDef,
)


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
        None where that would change what they do, such as at a `return`, or where the others use
        nothing of what they read.
    """
    if not 0 < num < num_statements(function) or not isinstance(function.body, cst.IndentedBlock):
        return None
    body = _without_docstring(function.body.body)
    first, second = body[:num], body[num:]
    names = _Names()
    for statement in first:
        statement.visit(names)
    if names.is_fixed or not _is_local(names):
        return None
    used = _used(second)
    live = [name for name in names.bound if name in used]
    if not live:
        return None
    owner, index = (one.name.value for one in function.params.params)
    found = ", ".join(live)
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


def _without_docstring(body: Sequence[cst.BaseStatement]) -> Sequence[cst.BaseStatement]:
    first = body[0] if body else None
    is_line = isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1
    if is_line and isinstance(value := first.body[0], cst.Expr):  # type: ignore[union-attr]
        is_text = isinstance(value.value, (cst.SimpleString, cst.ConcatenatedString))
        return body[1:] if is_text else body
    return body


class _Names(cst.CSTVisitor):
    """Collects what statements bind, and whether they can be moved.

    Attributes:
        bound: names, in order.
        changed: names whose attributes or items are assigned.
        is_fixed: a statement only works in its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bound: dict[str, None] = {}
        self.changed: set[str] = set()
        self.is_fixed = False

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.is_fixed = self.is_fixed or isinstance(node, _NOT_MOVED)
        match node:
            case cst.AssignTarget() | cst.AnnAssign() | cst.AugAssign() | cst.NamedExpr():
                self._bind(node.target)
            case cst.For():
                self._bind(node.target)
            case cst.AsName():
                self._bind(node.name)
            case cst.ImportAlias() if node.asname is None:
                self.bound[node.evaluated_name.partition(".")[0]] = None
        return not isinstance(node, _SCOPES)

    def _bind(self, target: cst.BaseExpression) -> None:
        match target:
            case cst.Name():
                self.bound[target.value] = None
            case cst.Tuple() | cst.List():
                for element in target.elements:
                    self._bind(element.value)
            case cst.Attribute() | cst.Subscript():
                inner: cst.BaseExpression = target
                while isinstance(inner, (cst.Attribute, cst.Subscript)):
                    inner = inner.value
                self.changed.add(inner.value if isinstance(inner, cst.Name) else "")


def _is_local(names: _Names) -> bool:
    """Return whether only objects that the statements made are changed."""
    return names.changed <= names.bound.keys()


class _Used(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:  # noqa: N802
        self.names.add(node.value)


def _used(statements: Iterable[cst.CSTNode]) -> set[str]:
    """Return all names in some statements, of whatever kind."""
    used = _Used()
    for statement in statements:
        statement.visit(used)
    return used.names

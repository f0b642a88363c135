"""Read from a script's source what divides the sum of a loop over a loader."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_PASSING: Final = frozenset({
    "sum", "item", "cpu", "float", "double", "detach", "numpy", "tolist", "stack", "tensor",
    "array", "asarray",
})  # fmt: skip
_SCALING: Final = (ast.Mult, ast.Div, ast.Pow, ast.MatMult, ast.FloorDiv)
_OPEN: Final = (ast.With, ast.AsyncWith, ast.Try, ast.If)  # what follows them follows the loop
_CLOSED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_MAX_DEPTH: Final = 8


@dataclass(frozen=True)
class Division:
    """A sum that is divided after the loop in which it was added up.

    Attributes:
        name: the variable of the sum.
        divisor: the code that it is divided by.
        given: values of variables that are assigned between the loop and the division.
        line: of the division.
    """

    name: str
    divisor: ast.expr
    line: int
    given: dict[str, ast.expr] = field(default_factory=dict)


def divisions(tree: ast.Module, line: int, names: Sequence[str]) -> list[Division]:
    """Return the divisions of sums by which their loop is followed.

    Args:
        line: of the loop.
        names: variables of the sums.
    """
    after = _after(tree.body, line)
    if not after:
        return []
    found: list[Division] = []
    left, given = set(names), dict[str, ast.expr]()
    for idx, statement in enumerate(after):
        for one in _divided(statement, left):
            kept = _kept_in(statement)
            if not any(_is_scaled(later, kept) for later in after[idx + 1 :]):
                found.append(Division(one.name, one.divisor, one.line, dict(given)))
        left -= _stored_in(statement)
        if not left:
            break
        given.update(_assigned(statement))
    return found


def _after(body: list[ast.stmt], line: int) -> list[ast.stmt] | None:
    """Return the statements after a loop; None if there is no such loop."""
    for idx, statement in enumerate(body):
        if not statement.lineno <= line <= (statement.end_lineno or 0):
            continue
        for inner in _bodies(statement):
            found = _after(inner, line)
            if found is not None:
                return found + (body[idx + 1 :] if isinstance(statement, _OPEN) else [])
        if isinstance(statement, ast.For) and line <= (statement.iter.end_lineno or 0):
            return body[idx + 1 :]
    return None


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        inner: Any = getattr(statement, name, None)
        if isinstance(inner, list):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _own(node: ast.AST, above: tuple[ast.AST, ...] = ()) -> Iterator[tuple[ast.AST, Any]]:
    """Yield the nodes of a statement, each with those above it, without functions within it."""
    yield node, above
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _CLOSED):
            yield from _own(child, (*above, node))


def _divided(statement: ast.stmt, names: set[str]) -> Iterator[Division]:
    if isinstance(statement, _CLOSED):
        return
    for node, above in _own(statement):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            if isinstance(node.target, ast.Name) and node.target.id in names:
                yield Division(node.target.id, node.value, node.lineno)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            name = _sum_of(node.left, names)
            if name is not None and not any(_scales(one) for one in above):
                yield Division(name, node.right, node.lineno)


def _scales(node: ast.AST) -> bool:
    return isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, _SCALING)


def _sum_of(node: ast.expr, names: set[str]) -> str | None:
    """Return the variable that an expression is, or adds up."""
    for _ in range(_MAX_DEPTH):
        if isinstance(node, ast.Name):
            return node.id if node.id in names else None
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        function = node.func
        called = getattr(function, "attr", getattr(function, "id", ""))
        if called not in _PASSING or len(node.args) > 1:
            return None
        if node.args:
            node = node.args[0]
        elif isinstance(function, ast.Attribute):
            node = function.value
        else:
            return None
    return None


def _kept_in(statement: ast.stmt) -> set[str]:
    """Return the variables in which a statement stores a quotient."""
    return _stored_in(statement) if isinstance(statement, (ast.Assign, ast.AugAssign)) else set()


def _stored_in(statement: ast.stmt) -> set[str]:
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _assigned(statement: ast.stmt) -> dict[str, ast.expr]:
    """Return the value that a statement assigns to a variable."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return {target.id: statement.value}
    return {name: ast.Constant(None) for name in _stored_in(statement)}  # unknown


def _is_scaled(statement: ast.stmt, names: set[str]) -> bool:
    """Return whether a statement multiplies one of these variables."""
    return any(
        isinstance(inner, ast.Name) and inner.id in names
        for node in ast.walk(statement)
        if _scales(node)
        for inner in ast.walk(node)
    )

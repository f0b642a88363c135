"""Read from a script's source whether held-out examples are scaled with their own statistics."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from stepladder.watching.script.held_out import is_held_out

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS: Final = (
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_SCALERS: Final = re.compile(r"\w*(scale|norm|standard)\w*", re.IGNORECASE)
_MEANS: Final = frozenset({"mean", "nanmean", "average"})
_SPREADS: Final = frozenset({"std", "nanstd", "var"})
_MAX_CODE: Final = 70  # characters


@dataclass(frozen=True)
class OwnScale:
    """A statement that scales held-out examples with their own statistics.

    Attributes:
        line: of the statement.
        code: its text.
        names: the variables in it.
    """

    line: int
    code: str
    names: frozenset[str]


@dataclass(frozen=True)
class _Use:
    """Data that is scaled with its own statistics, and how.

    Attributes:
        way: equal for uses of the same scaler, function or formula.
        names: of the data and of what it is assigned to.
        loop: the innermost one around it, which may be a comprehension.
    """

    way: str
    names: frozenset[str]
    statement: ast.stmt
    loop: ast.AST | None


def own_scales(tree: ast.Module) -> list[OwnScale]:
    """Return where held-out data is scaled in the way that other data is fitted in, too.

    These are a second fit of a scaler, a function that computes mean and standard deviation of what
    it scales, and the same as a formula. Training data that is scaled in parts, in a loop of its
    own, is left out: each part, such as a subject, may be meant to have its own scale.
    """
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    scaling = {one.name for one in functions if _scales_its_argument(one)}
    uses = [use for scope in (tree, *functions) for use in _uses(scope, scaling)]
    found = []
    for use in uses:
        if not is_held_out(use.names):
            continue
        others = [one for one in uses if one.way == use.way and one.loop is use.loop]
        if any(not is_held_out(one.names) for one in others):
            text = " ".join(ast.unparse(use.statement).split())
            code = text if len(text) <= _MAX_CODE else f"{text[: _MAX_CODE - 1]}…"
            found.append(OwnScale(use.statement.lineno, code, use.names))
    return found


def _nodes(scope: ast.AST, loop: ast.AST | None = None) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Yield the nodes of a function or module with their loops, not those of inner functions."""
    left = [(node, loop) for node in ast.iter_child_nodes(scope)]
    while left:
        node, around = left.pop(0)
        yield node, around
        if not isinstance(node, _FUNCTIONS):
            inside = node if isinstance(node, _LOOPS) else around
            left += [(one, inside) for one in ast.iter_child_nodes(node)]


def _uses(scope: ast.AST, scaling: set[str]) -> Iterator[_Use]:
    nodes = list(_nodes(scope))
    pairs = [
        (target, value, node, loop)
        for node, loop in nodes
        if isinstance(node, ast.Assign)
        for one in node.targets
        for target, value in _pairs(one, node.value)
    ]
    given = {ast.unparse(target): value for target, value, _, _ in pairs}
    for target, value, statement, loop in pairs:
        for way, data, around in _ways(value, loop, given, scaling):
            yield _Use(way, frozenset(_names(data) | _names(target)), statement, around)
    for node, loop in nodes:
        if isinstance(node, ast.Return) and node.value is not None:
            for way, data, around in _ways(node.value, loop, given, scaling):
                yield _Use(way, frozenset(_names(data)), node, around)
        else:
            yield from _in_place(node, loop, given)


def _in_place(node: ast.AST, loop: ast.AST | None, given: dict[str, ast.expr]) -> Iterator[_Use]:
    """Yield a fit of a scaler as a statement, or the subtraction of the data's own mean."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func, args = node.value.func, node.value.args
        if isinstance(func, ast.Attribute) and func.attr == "fit" and len(args) == 1:
            receiver = _receiver(func.value, given)
            if _SCALERS.search(receiver):
                yield _Use(receiver, frozenset(_names(args[0])), node, loop)
    elif (
        isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Sub)
        and _is_of(node.value, node.target, _MEANS, given)
    ):
        yield _Use("in place", frozenset(_names(node.target)), node, loop)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each variable of an assignment with its value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _ways(
    value: ast.expr, loop: ast.AST | None, given: dict[str, ast.expr], scaling: set[str]
) -> Iterator[tuple[str, ast.expr, ast.AST | None]]:
    """Yield how an expression scales data with its own statistics, the data, and the loop."""
    for node, around in _nodes(ast.Expr(value), loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inner = node.func.value
            if node.func.attr == "fit_transform" and node.args:
                yield _receiver(inner, given), node.args[0], around
            elif node.func.attr == "transform" and isinstance(inner, ast.Call):
                fit = inner.func
                if isinstance(fit, ast.Attribute) and fit.attr == "fit" and inner.args:
                    yield _receiver(fit.value, given), inner.args[0], around
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in scaling and len(node.args) == 1:
                yield f"{node.func.id}()", node.args[0], around
        elif isinstance(node, ast.BinOp):
            data = _scaled_by_formula(node, given)
            if data is not None:
                yield "a formula", data, around


def _receiver(node: ast.expr, given: dict[str, ast.expr]) -> str:
    """Return the class of a scaler, or its name if that is unknown."""
    made = given.get(ast.unparse(node), node)
    return ast.unparse(made.func) if isinstance(made, ast.Call) else ast.unparse(node)


def _scaled_by_formula(node: ast.BinOp, given: dict[str, ast.expr]) -> ast.expr | None:
    """Return x of (x - x.mean()) / x.std(), whose statistics may be variables."""
    above = node.left
    if not isinstance(node.op, ast.Div) or not isinstance(above, ast.BinOp):
        return None
    if not isinstance(above.op, ast.Sub) or not _is_of(above.right, above.left, _MEANS, given):
        return None
    return above.left if _is_of(node.right, above.left, _SPREADS, given) else None


def _is_of(
    node: ast.expr, data: ast.expr, functions: frozenset[str], given: dict[str, ast.expr]
) -> bool:
    """Return whether an expression has such a statistic of the data, or a variable of it."""
    text = ast.unparse(data)
    parts = [node, *(given[name] for name in _texts(node) if name in given)]
    for call in (one for part in parts for one in ast.walk(part) if isinstance(one, ast.Call)):
        func = call.func
        name = func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)
        of = [*([func.value] if isinstance(func, ast.Attribute) else []), *call.args[:1]]
        if name in functions and any(ast.unparse(one) == text for one in of):
            return True
    return False


def _texts(node: ast.expr) -> set[str]:
    return {
        ast.unparse(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))
    }


def _names(node: ast.expr) -> set[str]:
    """Return the variables and attributes in an expression."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _scales_its_argument(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether it takes data alone, and scales that by the formula."""
    its = function.args
    if not its.args or len(its.args) - len(its.defaults) > 1 or its.args[0].arg in ("self", "cls"):
        return False
    return any(
        its.args[0].arg in use.names for use in _uses(function, set()) if "formula" in use.way
    )

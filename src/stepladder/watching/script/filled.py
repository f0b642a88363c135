"""Nested loops of a script that compute single values, and whether these depend on sizes alone."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

SIZES, VALUES = "sizes", "values"  # what the values depend on
_MAX_LINES: Final = 120  # of a function
_NUMBERS: Final = ("math", "np", "numpy", "torch", "cmath")
_PLAIN: Final = frozenset({
    "range", "len", "float", "int", "min", "max", "abs", "pow", "round", "enumerate", "zip",
})  # fmt: skip
_METHODS: Final = frozenset({"append", "item", "size", "dim"})
_OF_SIZE: Final = frozenset({"shape", "device", "dtype", "ndim"})
_OF_SIZE_CALLS: Final = frozenset({"size", "dim", "numel"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENTS: Final = (
    ast.For, ast.If, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr, ast.Pass, ast.Continue,
)  # fmt: skip


def function_of(lines: Sequence[str], first: int, line: int) -> tuple[tuple[str, ...], int]:
    """Return the lines of a function, and the number of a line among them, from 1.

    Nothing is parsed: of two threads that do so, Python 3.11 lets one fail.

    Returns:
        No lines, and 0, if it has too many.
    """
    head = lines[first - 1] if 0 < first <= len(lines) else ""
    indent = len(head) - len(head.lstrip())
    end = line
    while end < len(lines) and end - first < _MAX_LINES:
        text = lines[end]
        if text.strip() and len(text) - len(text.lstrip()) <= indent:
            break
        end += 1
    found = tuple(lines[first - 1 : end])
    return (found, line - first + 1) if len(found) <= _MAX_LINES else ((), 0)


def filled_by(lines: Sequence[str], at: int) -> str:
    """Return what single values depend on that nested loops around a line compute.

    Returns:
        SIZES or VALUES; empty if there are no such loops, or these do more.
    """
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if len(tree.body) != 1 or not isinstance(tree.body[0], _FUNCTIONS):
        return ""
    function = tree.body[0]
    nest = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.For) and node.lineno <= at <= (node.end_lineno or node.lineno)
    ]
    while len(nest) >= 2:  # outermost first
        if _are_single(nest[0]):
            return SIZES if _is_of_sizes(function, nest[0]) else VALUES
        nest = nest[1:]
    return ""


def _are_single(loop: ast.For) -> bool:
    """Return whether a loop sets or appends single values, by arithmetic alone."""
    nodes = list(ast.walk(loop))
    if any(isinstance(one, ast.stmt) and not isinstance(one, _STATEMENTS) for one in nodes):
        return False
    if not all(_is_plain(one) for one in nodes if isinstance(one, ast.Call)):
        return False
    targets = [
        target
        for one in nodes
        if isinstance(one, (ast.Assign, ast.AugAssign))
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
    ]
    subscripts = [one for one in targets if isinstance(one, ast.Subscript)]
    if any(isinstance(part, ast.Slice) for one in subscripts for part in ast.walk(one.slice)):
        return False
    appends = [one for one in nodes if isinstance(one, ast.Attribute) and one.attr == "append"]
    return bool(subscripts or appends)


def _is_plain(call: ast.Call) -> bool:
    func = call.func
    if isinstance(func, ast.Name):
        return func.id in _PLAIN
    if not isinstance(func, ast.Attribute):
        return False
    is_library = isinstance(func.value, ast.Name) and func.value.id in _NUMBERS
    return is_library or func.attr in _METHODS


def _is_of_sizes(function: ast.FunctionDef | ast.AsyncFunctionDef, loop: ast.For) -> bool:
    """Return whether all variables that a loop reads are sizes, or computed from them."""
    arguments = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.lineno < loop.lineno:
            for target in node.targets:
                for name in _stored(target):
                    given.setdefault(name, []).append(node.value)
    inside = {name for node in ast.walk(loop) for name in _stored(node)}
    sizes = set(_ranged(loop))
    known = inside | sizes

    def is_fixed(name: str, depth: int = 0) -> bool:
        if name in known:
            return True
        if name in given:
            return depth < 6 and all(
                is_fixed(one, depth + 1) for value in given[name] for one in _read(value)
            )
        return name not in arguments

    attributes_are_sizes = all(
        ast.unparse(one) in sizes or _is_in_call(one, loop) for one in _attributes(loop)
    )
    filled = {
        target.value.id
        for node in ast.walk(loop)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
    }
    if any(name in arguments for name in filled):
        return False
    return attributes_are_sizes and all(is_fixed(name) for name in _read(loop))


def _stored(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node) if isinstance(node, ast.expr) else [node]:
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id


def _ranged(loop: ast.For) -> Iterator[str]:
    """Yield variables and attributes that are arguments of `range`, and so are numbers."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
            for one in (part for arg in node.args for part in ast.walk(arg)):
                if isinstance(one, (ast.Name, ast.Attribute)):
                    yield ast.unparse(one)


def _attributes(loop: ast.For) -> Iterator[ast.Attribute]:
    """Yield the attributes of `self` that a loop reads."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield node


def _is_in_call(attribute: ast.Attribute, loop: ast.For) -> bool:
    """Return whether it is an argument of a function of `math`, which takes numbers alone."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).startswith("math.")
        and any(one is attribute for arg in node.args for one in ast.walk(arg))
        for node in ast.walk(loop)
    )


def _read(tree: ast.AST) -> Iterator[str]:
    """Yield the variables that an expression depends on, other than by their sizes."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Attribute) and node.attr in _OF_SIZE:
            continue
        if isinstance(node, ast.Call):
            func = node.func
            if isinstance(func, ast.Name) and func.id == "len":
                continue
            if isinstance(func, ast.Attribute) and func.attr in _OF_SIZE_CALLS:
                continue
            is_plain = _is_plain(node) or (isinstance(func, ast.Attribute) and func.attr == "to")
            left += [*node.args, *(one.value for one in node.keywords)]
            left += [func.value] if isinstance(func, ast.Attribute) else []
            if not is_plain:
                yield "self" if isinstance(func, ast.Attribute) else ast.unparse(func)
            continue
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            continue  # judged by how it is used
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        left += ast.iter_child_nodes(node)

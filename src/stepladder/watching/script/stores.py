"""Statements that concatenate tensors, arrays, tables or lists, by their text."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

_MAX_BEFORE: Final = 3  # lines of the statement before the one in question
_MAX_LINES: Final = 12  # of a statement
_LIBRARIES: Final = ("torch", "np", "numpy", "pd", "pandas")
_NAMES: Final = ("cat", "concat", "concatenate", "vstack", "hstack", "column_stack", "row_stack")
_MAYBE: Final = re.compile(rf"\b({'|'.join(_NAMES)}|append)\(|[\]\)]\s*\+|\+=?\s*[\[\(]")
_COMPOUND: Final = re.compile(
    r"\s*(async|class|def|elif|else|except|finally|for|if|match|try|while|with)\b|\s*@"
)
_SIMPLE: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
_CHEAP: Final = re.compile(  # functions that compute next to nothing of what is appended
    r"unsqueeze|view|reshape|flatten|squeeze|expand|detach|clone|contiguous|item|tolist|numpy|cpu|"
    r"float|double|half|long|int|bool|tensor|as_tensor|from_numpy|array|asarray|atleast_[12]d|"
    r"DataFrame|Series|len|ones|zeros|full"
)


def joined_by(lines: Sequence[str], line: int) -> tuple[str, str]:
    """Return what the statement at a line concatenates with, and the store that it appends to.

    A store is a variable or attribute that the result replaces and contains, as in
    `self.rows = torch.cat([self.rows, row])`. It is empty if nothing is appended to one, or if what
    is appended is computed in the same statement, or from the store.

    Args:
        line: its number, from 1.
    """
    statement = _statement(lines, line)
    if statement is None:
        return "", ""
    pairs = list(_assigned(statement))
    for target, value in pairs:
        for node in ast.walk(value):
            joins = _joins(node, target)
            if joins:
                return joins, _store(node, target)
    return "", ""


def nearby(lines: Sequence[str], line: int) -> tuple[tuple[str, ...], int]:
    """Return the lines that `joined_by` needs, and the number of this one among them, from 1.

    Nothing is parsed: of two threads that do so, Python 3.11 lets one fail.

    Returns:
        No lines, and 0, if nothing there can concatenate.
    """
    first = max(0, line - 1 - _MAX_BEFORE)
    found = tuple(lines[first : line - 1 + _MAX_LINES])
    return (found, line - first) if any(map(_MAYBE.search, found)) else ((), 0)


def _statement(lines: Sequence[str], line: int) -> ast.stmt | None:
    """Return the simple statement that contains a line, if it is short."""
    best: ast.stmt | None = None
    for first in range(line, max(0, line - 1 - _MAX_BEFORE), -1):
        if not 0 < first <= len(lines) or _COMPOUND.match(lines[first - 1]):
            continue
        for last in range(max(first, line), min(first + _MAX_LINES, len(lines) + 1)):
            text = textwrap.dedent("".join(lines[first - 1 : last]))
            if "\\" in text:  # the parser may warn of an escape sequence, in the script's name
                break
            try:
                found = ast.parse(text).body
            except (SyntaxError, ValueError):
                continue
            if len(found) == 1 and isinstance(found[0], _SIMPLE):
                if not isinstance(found[0], ast.Expr):
                    return found[0]
                best = best or found[0]  # or it is a line of a longer statement
            break
    return best


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    """Yield the targets of a statement with what is assigned to each."""
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        else:
            yield target, value
    elif isinstance(statement, ast.AnnAssign | ast.Return | ast.Expr):
        if statement.value is not None:
            yield getattr(statement, "target", None), statement.value
    elif isinstance(statement, ast.AugAssign) and isinstance(statement.value, ast.Tuple):
        # A list is extended in place, a tuple is copied.
        yield statement.target, ast.BinOp(statement.target, statement.op, statement.value)


def _joins(node: ast.AST, target: ast.expr | None) -> str:
    """Return the name of what concatenates; empty if a node does not."""
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name) and function.id in _NAMES:
            return function.id
        if isinstance(function, ast.Attribute):
            owner = function.value
            if isinstance(owner, ast.Name) and owner.id in _LIBRARIES:
                is_one = function.attr in _NAMES or (
                    function.attr == "append" and owner.id != "torch"
                )
                return f"{owner.id}.{function.attr}" if is_one else ""
            if function.attr == "append" and _is(owner, target):
                return "append"  # of a table: a list returns None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = (node.left, node.right)
        is_new = any(isinstance(side, ast.List | ast.Tuple | ast.ListComp) for side in sides)
        return "+" if is_new and any(_is(side, target) for side in sides) else ""
    return ""


def _store(node: ast.AST, target: ast.expr | None) -> str:
    """Return the store that a concatenation appends to; empty if it appends to nothing."""
    parts = list(_parts(node))
    old = [part for part in parts if _is_within(part, target)]
    new = [part for part in parts if not _is_within(part, target)]
    if target is None or len(old) != 1 or not new:
        return ""
    return "" if any(map(_is_computed, new)) else ast.unparse(target)


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what is concatenated."""
    if isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Call):
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        is_library = isinstance(owner, ast.Name) and owner.id in _LIBRARIES
        if owner is not None and not is_library:
            yield owner  # `table.append(row)`
        for given in node.args[:2] if _name(node).endswith("append") else node.args[:1]:
            if isinstance(given, ast.List | ast.Tuple):
                yield from given.elts
            else:
                yield given


def _name(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is(node: ast.AST, target: ast.expr | None) -> bool:
    return (
        target is not None
        and isinstance(node, ast.expr)
        and isinstance(node, type(target))
        and ast.unparse(node) == ast.unparse(target)
    )


def _is_within(node: ast.AST, target: ast.expr | None) -> bool:
    return any(_is(inner, target) for inner in ast.walk(node))


def _is_computed(node: ast.expr) -> bool:
    """Return whether a value is the result of a call or of an operation that may take time."""
    return any(
        (isinstance(inner, ast.Call) and not _CHEAP.fullmatch(_name(inner)))
        or isinstance(inner, ast.BinOp | ast.ListComp | ast.GeneratorExp)
        for inner in ast.walk(node)
    )

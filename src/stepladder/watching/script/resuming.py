"""Read from a script's source what it takes from a checkpoint, and whether it resumes from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

POSITIONS: Final = frozenset(
    {"epoch", "epochs", "start_epoch", "step", "steps", "global_step", "iter", "iteration"}
)
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_READING: Final = ("get", "pop")


@dataclass(frozen=True)
class Use:
    """What a script takes from a checkpoint.

    Attributes:
        name: the variable of the checkpoint.
        taken: the names of the entries that it takes.
        read: all names of entries that are read anywhere in the file.
        is_resumed: a loop continues from the position that it takes.
    """

    name: str
    taken: frozenset[str]
    read: frozenset[str]
    is_resumed: bool


def use_of(tree: ast.Module, line: int) -> Use | None:
    """Return what is taken from the checkpoint that a line reads; None if that is unclear.

    It is unclear if the checkpoint is passed on as a whole.
    """
    scope, name = _assigned(tree, line)
    if scope is None or name is None:
        return None
    parents = {child: node for node in ast.walk(scope) for child in ast.iter_child_nodes(node)}
    taken: set[str] = set()
    positions: list[ast.AST] = []
    for node in ast.walk(scope):
        if not isinstance(node, ast.Name) or node.id != name or isinstance(node.ctx, ast.Store):
            continue
        entry, outer = _entry_of(node, parents)
        if entry is None:
            return None
        taken.add(entry)
        if entry in POSITIONS:
            positions.append(outer)
    targets = {name for one in positions for name in _targets_of(one, parents, tree)}
    is_resumed = any(
        _names_in(start) & targets or not set(positions).isdisjoint(ast.walk(start))
        for start in _starts(tree)
    )
    return Use(name, frozenset(taken), frozenset(_read_in(tree)), is_resumed)


def _assigned(tree: ast.Module, line: int) -> tuple[ast.AST | None, str | None]:
    """Return the function and the variable to which a line assigns what it loads."""
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, scope = stack.pop()
        is_there = isinstance(node, ast.Assign) and node.lineno <= line <= (node.end_lineno or 0)
        if is_there and isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            called = value.func if isinstance(value, ast.Call) else None
            is_load = getattr(called, "attr", getattr(called, "id", "")) == "load"
            if is_load and len(node.targets) == 1 and isinstance(target, ast.Name):
                return scope, target.id
        inner = node if isinstance(node, _FUNCTIONS) else scope
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))
    return None, None


def _entry_of(node: ast.Name, parents: dict[ast.AST, ast.AST]) -> tuple[str | None, ast.AST]:
    """Return the entry that is taken from a checkpoint, and the expression that takes it."""
    outer = parents[node]
    if isinstance(outer, ast.Subscript) and outer.value is node:
        return _text(outer.slice), outer
    if isinstance(outer, ast.Attribute) and outer.attr in _READING:
        call = parents[outer]
        if isinstance(call, ast.Call) and call.func is outer and call.args:
            return _text(call.args[0]), call
    if isinstance(outer, ast.Compare) and outer.left is not node:
        return _text(outer.left), outer
    return None, outer


def _text(node: ast.expr) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _targets_of(node: ast.AST, parents: dict[ast.AST, ast.AST], tree: ast.Module) -> Iterator[str]:
    """Yield the variables and attributes that a position is stored in."""
    while node in parents and not isinstance(node, ast.stmt):
        node = parents[node]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _names_in(target)
    if not isinstance(node, ast.Return):
        return
    while node in parents and not isinstance(node, _FUNCTIONS):
        node = parents[node]
    name = getattr(node, "name", None)
    for one in ast.walk(tree):
        if isinstance(one, ast.Assign) and isinstance(one.value, ast.Call):
            called: Any = one.value.func
            if name is not None and getattr(called, "attr", getattr(called, "id", "")) == name:
                for target in one.targets:
                    yield from _names_in(target)


def _names_in(node: ast.AST) -> set[str]:
    """Return the variables of an expression; of `self.epoch`, the attribute."""
    attributes = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    owners = {id(one.value) for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    names = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return attributes | {one.id for one in names if id(one) not in owners}


def _starts(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield where loops start: the first of two arguments of `range`, and conditions of `while`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.While):
            yield node.test
        elif isinstance(node, ast.Call) and len(node.args) > 1 and _is_range(node.func):
            yield node.args[0]


def _is_range(called: Any) -> bool:
    return getattr(called, "attr", getattr(called, "id", "")) in ("range", "trange")


def _read_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of entries that are read from anything."""
    for node in ast.walk(tree):
        found: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            found = node.slice
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _READING:
            found = node.args[0] if node.args else None
        elif isinstance(node, ast.Compare):
            found = node.left
        if found is not None and (text := _text(found)) is not None:
            yield text

"""Read counters of early stopping from a script's source, and whether these are ever reset."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_LOOPS: Final = (ast.For, ast.AsyncFor, ast.While)
_LIMIT: Final = re.compile(r"\w*(patience|early_?stop)\w*", re.IGNORECASE)
_ENDS: Final = (ast.Break, ast.Return, ast.Raise)
_STOP: Final = re.compile(r"\w*(stop|done|finish|end)\w*", re.IGNORECASE)


@dataclass(frozen=True)
class Counter:
    """A counter of evaluations without improvement, which ends the training at a limit.

    Attributes:
        name: its variable or attribute, such as `self.wait`.
        best: that of the best value, which is assigned in another branch of the same condition.
        limit: the code of the limit.
        function: that counts; empty for code outside of functions.
        owner: the class of an attribute of `self`; empty for a variable.
        line: that counts.
        is_reset: it is also assigned elsewhere than before the loop, or in `__init__`.
    """

    name: str
    best: str
    limit: str
    function: str
    owner: str
    line: int
    is_reset: bool


def counters(tree: ast.Module) -> list[Counter]:
    """Return the counters of early stopping in a file."""
    owners = {
        id(one): node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, _FUNCTIONS)
    }
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS))]
    found: list[Counter] = []
    for scope in scopes:
        for chain in (node for node in _nodes(scope) if isinstance(node, ast.If)):
            one = _counter(chain, scope, owners.get(id(scope), ""), tree)
            if one is not None and all(other.line != one.line for other in found):
                found.append(one)
    return found


def _counter(chain: ast.If, scope: ast.AST, owner: str, tree: ast.Module) -> Counter | None:
    """Return the counter that one branch of a condition increases, and another one has the best."""
    branches = list(_branches(chain))
    for at, (_, body) in enumerate(branches):
        for statement in body:
            name = _increased(statement)
            if not name or ("." in name and not (owner and name.startswith("self."))):
                continue
            limit = _limit_of(name, scope)
            tests = [test for test, _ in branches if test is not None]
            best = next(
                (
                    target
                    for idx, (_, other) in enumerate(branches)
                    if idx != at
                    for target in _assigned(other)
                    if target != name and any(_compares(test, target) for test in tests)
                ),
                None,
            )
            if limit and best is not None:
                function = scope.name if isinstance(scope, _FUNCTIONS) else ""
                is_reset = _is_reset(name, statement.lineno, scope, tree)
                its_owner = owner if "." in name else ""
                line = statement.lineno
                return Counter(name, best, limit, function, its_owner, line, is_reset)
    return None


def _branches(chain: ast.If) -> Iterator[tuple[ast.expr | None, list[ast.stmt]]]:
    """Yield the conditions and bodies of if, elif and else."""
    node = chain
    while True:
        yield node.test, node.body
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            continue
        yield None, node.orelse
        return


def _increased(node: ast.stmt) -> str:
    """Return the variable that a statement increases by 1; empty if it does not."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        is_one = isinstance(node.value, ast.Constant) and node.value.value == 1
        return ast.unparse(node.target) if is_one else ""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        name = ast.unparse(node.targets[0])
        return name if ast.unparse(node.value) in (f"{name} + 1", f"1 + {name}") else ""
    return ""


def _targets(node: ast.AST) -> Iterator[str]:
    """Yield the variables and attributes that a statement assigns."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = list(node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        targets = [node.target]
    for target in targets:
        elements = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        yield from (ast.unparse(one) for one in elements)


def _assigned(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        yield from _targets(statement)


def _compares(test: ast.expr, name: str) -> bool:
    return any(
        isinstance(node, ast.Compare)
        and not isinstance(node.ops[0], (ast.Is, ast.IsNot, ast.Eq, ast.NotEq))
        and any(ast.unparse(one) == name for one in ast.walk(node) if isinstance(one, ast.expr))
        for node in ast.walk(test)
    )


def _limit_of(name: str, scope: ast.AST) -> str:
    """Return the limit that a counter is compared with in order to stop, or an empty text."""
    for node in _nodes(scope):
        if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
            continue
        sides = [ast.unparse(node.test.left), *(ast.unparse(c) for c in node.test.comparators)]
        if len(sides) != 2 or name not in sides:
            continue
        limit = sides[1 - sides.index(name)]
        is_named = _LIMIT.search(limit) or _LIMIT.search(name)
        ends = any(
            isinstance(one, _ENDS) or any(map(_STOP.search, _targets(one)))
            for statement in node.body
            for one in ast.walk(statement)
        )
        if is_named and ends:
            return limit
    return ""


def _is_reset(name: str, line: int, scope: ast.AST, tree: ast.Module) -> bool:
    """Return whether a counter may be set back, by any assignment but a first one."""
    attribute = name.rpartition(".")[2]
    loop = [
        node
        for node in _nodes(scope)
        if isinstance(node, _LOOPS) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    before = min((node.lineno for node in loop), default=None)
    if "." not in name:
        shared = any(
            isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names
            for node in ast.walk(tree)
        )
        if shared or before is None:
            return True  # it may be
        return any(node.lineno > before for node in _changes(scope, name, line))
    first = [
        (one.lineno, one.end_lineno or 0)
        for one in ast.walk(tree)
        if isinstance(one, _FUNCTIONS) and one.name == "__init__"
    ]
    if before is not None and isinstance(scope, _FUNCTIONS):
        first.append((scope.lineno, before))
    return any(
        not any(start <= node.lineno <= end for start, end in first)
        for node in _changes(tree, attribute, line, is_attribute=True)
    )


def _changes(
    scope: ast.AST, name: str, line: int, *, is_attribute: bool = False
) -> Iterator[ast.stmt]:
    """Yield the statements that assign a variable, or an attribute of any object, but that one."""
    for node in ast.walk(scope):
        if not isinstance(node, ast.stmt) or node.lineno == line:
            continue
        if isinstance(node, ast.Delete):
            targets = [ast.unparse(one) for one in node.targets]
        elif isinstance(node, (ast.AugAssign, ast.For, ast.AsyncFor)):
            targets = [ast.unparse(node.target)]
        else:
            targets = list(_targets(node))
        if isinstance(node, ast.Expr):
            targets += [one for part in ast.walk(node) for one in _targets(part)]
            is_set = isinstance(node.value, ast.Call) and "setattr" in ast.unparse(node.value.func)
            targets += [name] if is_set else []
        ends = [one.rpartition(".")[2] if is_attribute and "." in one else one for one in targets]
        if name in ends:
            yield node


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or module, without those of functions within it."""
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop(0)
        yield node
        if not isinstance(node, _FUNCTIONS):
            left += ast.iter_child_nodes(node)

"""Read from a script's source whether the target of Q-learning ignores where episodes end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_END: Final = re.compile(
    r"d|(b|batch|mb)?_?(is|not)?_?(done|terminal|terminated|termination)s?(_?(b|batch|mb|flags?|t))?"
)
_NEXT: Final = re.compile(
    r"\w*next\w*|nxt\w*|(s|o|obs|state)2|ns|s_|(s|obs|state)_?(p|prime|tp1)|new_(obs|state)\w*"
)
_REWARD: Final = re.compile(r"r|rs|rew|rews|\w*reward\w*")
_DISCOUNT: Final = re.compile(r"\w*(gamma|discount)\w*", re.IGNORECASE)
_OTHER_END: Final = re.compile(
    r"\w*(mask|done|final|termin|trunc|alive|continu|absorb|where|not_end|is_end|last)\w*",
    re.IGNORECASE,
)
_DISCOUNTS: Final = (0.8, 1.0)  # as a number
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_MIN_PARTS: Final = 4  # of a transition
_MAX_DEPTH: Final = 6
_PARTS_OF_TARGET: Final = 3
_Given = list[tuple[str, ast.expr]]


@dataclass(frozen=True)
class IgnoredEnd:
    """A target with the value of the next state, beside the end of an episode that is never read.

    Attributes:
        function: that computes it; empty for code outside of functions.
        name: the variable of the end.
        target: the code of the target.
        line: of the target.
    """

    function: str
    name: str
    target: str
    line: int


def ignored_ends(tree: ast.Module, lines: Sequence[int]) -> list[IgnoredEnd]:
    """Return the targets in functions that contain some lines, or are called by them."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    around: list[ast.AST] = []
    for line in lines:
        inside = [one for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
        around.append(max(inside, key=lambda one: one.lineno) if inside else tree)
    called = {name for scope in around for node in _nodes(scope) for name in _called(node)}
    scopes = list(dict.fromkeys([*around, *(one for one in functions if one.name in called)]))
    return [found for scope in scopes if (found := _ignored_in(scope)) is not None]


def is_undiscounted(node: ast.BinOp) -> bool:
    """Return whether it is `reward + discount * mask + next_value`, as if with parentheses.

    The value of the next state is then neither discounted nor left out at the end of an episode.
    """
    terms = _addends(node)
    names = [{_name(one) for one in ast.walk(term)} - {""} for term in terms]
    is_next = [any(map(_NEXT.fullmatch, found)) for found in names]
    if len(terms) != _PARTS_OF_TARGET or sum(is_next) != 1:
        return False
    has_reward = any(_REWARD.fullmatch(_name(_unwrapped(term))) for term in terms)
    products = [
        (term, found)
        for term, found, is_value in zip(terms, names, is_next, strict=True)
        if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult) and not is_value
    ]
    value = terms[is_next.index(True)]
    return (
        has_reward
        and not isinstance(value, ast.BinOp)
        and any(
            any(map(_DISCOUNT.fullmatch, found)) and any(map(_OTHER_END.fullmatch, found))
            for _, found in products
        )
    )


def _addends(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_addends(node.left), *_addends(node.right)]
    return [node]


def _called(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call):
        yield _name(node.func)


def _name(node: ast.AST) -> str:
    """Return the last name of a variable or an attribute."""
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function; of a module, those outside of functions and classes."""
    left = list(ast.iter_child_nodes(scope))
    while left:
        node = left.pop()
        yield node
        if not isinstance(scope, ast.Module) or not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


def _transition(scope: ast.AST) -> tuple[str, str, set[str]] | None:
    """Return the names of reward and end, and all names of a transition that a function gets."""
    groups = [
        [_name(one) for one in node.elts]
        for node in _nodes(scope)
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store)
    ]
    if isinstance(scope, _FUNCTIONS):
        groups.append([one.arg for one in scope.args.args])
    for names in groups:
        rewards = [name for name in names if _REWARD.fullmatch(name)]
        ends = [name for name in names if _END.fullmatch(name)]
        is_whole = len(names) >= _MIN_PARTS and any(map(_NEXT.fullmatch, names))
        if is_whole and len(rewards) == 1 and len(ends) == 1:
            return rewards[0], ends[0], set(names)
    return None


def _ignored_in(scope: ast.AST) -> IgnoredEnd | None:
    found = _transition(scope)
    if found is None:
        return None
    reward, end, names = found
    given = list(_assigned(scope))
    if _is_read(scope, end, names - {end}, given):
        return None
    for node in _nodes(scope):
        if isinstance(node, ast.BinOp) and _is_target(node, reward, given, scope):
            function = scope.name if isinstance(scope, _FUNCTIONS) else ""
            return IgnoredEnd(function, end, ast.unparse(node), node.lineno)
    return None


def _is_read(scope: ast.AST, end: str, rest: set[str], given: _Given) -> bool:
    """Return whether a function uses the end of an episode, perhaps by another name.

    What converts it or gives it a name does not use it yet.
    """
    known, excused = {end}, set[ast.AST]()
    for _ in range(_MAX_DEPTH):
        for target, value in given:
            loads = list(_loads(value))
            words = {_name(node) for node in loads}
            if words & known and not words & rest:
                known.add(target)
                excused.update(loads)
    for node in _nodes(scope):
        if node in excused:
            continue
        word = ""
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            word = _name(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            word = node.value
        if word in known or _OTHER_END.fullmatch(word):
            return True
    return False


def _assigned(scope: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that are assigned, each with its value."""
    for node in _nodes(scope):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, its in zip(target.elts, value.elts, strict=False):
                yield _name(one), its


def _loads(value: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(value):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            yield node


def _is_target(node: ast.BinOp, reward: str, given: _Given, scope: ast.AST) -> bool:
    """Return whether it is reward + discount * value of the next state, without a third factor."""
    if not isinstance(node.op, ast.Add):
        return False
    for one, other in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(other, ast.BinOp) or not isinstance(other.op, ast.Mult):
            continue
        if _name(_unwrapped(one)) != reward:
            continue
        for factor, value in ((other.left, other.right), (other.right, other.left)):
            if _is_discount(factor) and _is_of_next(value, given, scope):
                return True
    return False


def _unwrapped(node: ast.expr) -> ast.expr:
    """Return what methods such as `unsqueeze` are called on."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return node


def _is_discount(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, float):
        return _DISCOUNTS[0] <= node.value < _DISCOUNTS[1]
    return _DISCOUNT.fullmatch(_name(node)) is not None


def _is_of_next(value: ast.expr, given: _Given, scope: ast.AST) -> bool:
    """Return whether a value depends on the next state alone, and is not changed in part."""
    if any(isinstance(node, ast.BinOp) for node in ast.walk(value)):
        return False  # it may have another factor
    changed = {
        _name(node.value)
        for node in _nodes(scope)
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    }
    names = {_name(node) for node in _loads(value)}
    is_next = False
    for _ in range(_MAX_DEPTH):
        is_next = is_next or any(_NEXT.fullmatch(name) for name in names)
        for target, one in given:
            if target in names:
                names |= {_name(node) for node in _loads(one)}
    return is_next and not names & changed

"""Read from a script's source which of its options an optimizer gets as its learning rate."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RATES: Final = frozenset({
    "lr", "learning_rate", "learningrate", "base_lr", "init_lr", "initial_lr", "lrate",
})  # fmt: skip
_OTHERS: Final = frozenset({
    "weight_decay", "weightdecay", "wd", "l2", "l2_reg", "momentum", "dropout", "eps", "epsilon",
    "batch_size", "batchsize", "epochs", "num_epochs", "seed",
})  # fmt: skip
_MENTIONED: Final = re.compile(
    rf"(?:\blr\s*=|,)\s*(?:float\()?[\w.\[\]\"']*(?:{'|'.join(sorted(_OTHERS))})\b", re.IGNORECASE
)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Passed:
    """An option with another name that an optimizer gets as its learning rate.

    Attributes:
        value: the expression that is passed.
        owner: what the option belongs to, such as `args`; None for a variable.
        scope: the function of the call.
        line: of the expression.
    """

    call: ast.Call
    value: ast.expr
    owner: ast.expr | None
    scope: ast.AST
    line: int


def may_pass(source: str) -> bool:
    """Return whether a script may pass another option as a learning rate, without parsing it."""
    return _MENTIONED.search(source) is not None


def passed_as_rate(tree: ast.Module, line: int, kind: str) -> Passed | None:
    """Return what an optimizer gets as its learning rate, if its name is that of another option.

    Args:
        line: of the call that creates it.
        kind: its class.
    """
    found: tuple[int, ast.Call, ast.AST] | None = None
    stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while stack:
        node, scope = stack.pop()
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or 0):
            span = (node.end_lineno or 0) - node.lineno
            if _rate_of(node, kind) is not None and (found is None or span <= found[0]):
                found = span, node, scope
        inner = node if isinstance(node, _SCOPES) else scope
        stack.extend((child, inner) for child in ast.iter_child_nodes(node))
    if found is None:
        return None
    _, call, scope = found
    value = _rate_of(call, kind)
    while isinstance(value, ast.Call) and getattr(value.func, "id", "") == "float" and value.args:
        value = value.args[0]
    if value is None or normalised(name_of(value)) not in _OTHERS:
        return None
    owner = value.value if isinstance(value, (ast.Attribute, ast.Subscript)) else None
    return Passed(call, value, owner, scope, value.lineno)


def is_read(tree: ast.Module, one: Passed, name: str, *, is_local: bool) -> bool:
    """Return whether an option is read anywhere but in the same call, or to be printed.

    Args:
        name: of the option that belongs to the same owner.
        is_local: it is a variable of the function.
    """
    inside = set(ast.walk(one.call))
    for node in _computing(one.scope if is_local else tree):
        if isinstance(node, ast.Call) and any(word.arg is None for word in node.keywords):
            spread = [word.value for word in node.keywords if word.arg is None]
            owner = None if one.owner is None else ast.unparse(one.owner)
            if any(owner is not None and owner in ast.unparse(value) for value in spread):
                return True
        if node not in inside and name in _names_read_by(node, one.owner):
            return True
    return False


def _computing(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those of texts and of what is printed."""
    stack = [tree]
    while stack:
        node = stack.pop()
        is_printed = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
        if not is_printed and not isinstance(node, ast.JoinedStr):
            yield node
            stack.extend(ast.iter_child_nodes(node))


def _names_read_by(node: ast.AST, owner: ast.expr | None) -> Iterator[str]:
    """Yield the options that an expression itself reads."""
    if isinstance(node, ast.Name) and owner is None and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.Attribute, ast.Subscript)) and owner is not None:
        if isinstance(node.ctx, ast.Load):
            yield name_of(node)
    elif isinstance(node, ast.Call) and owner is not None:
        texts = (one.value for one in node.args if isinstance(one, ast.Constant))
        yield from (text for text in texts if isinstance(text, str))


def name_of(node: ast.expr) -> str:
    """Return the name of a variable, an attribute or an item; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return node.slice.value if isinstance(node.slice.value, str) else ""
    return ""


def normalised(name: str) -> str:
    """Return the name of an option in lower case, with underscores."""
    return name.lower().replace("-", "_")


def _rate_of(call: ast.Call, kind: str) -> ast.expr | None:
    """Return what a call passes as a learning rate."""
    named = next((word.value for word in call.keywords if word.arg == "lr"), None)
    if named is not None:
        return named
    is_known = getattr(call.func, "attr", getattr(call.func, "id", "")) == kind
    return call.args[1] if is_known and len(call.args) > 1 else None

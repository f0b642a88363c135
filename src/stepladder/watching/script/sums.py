"""Read the sum that backward is called on from a script's source, and its terms made to numbers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_LEAVING: Final = frozenset({"item", "tolist", "numpy", "detach"})
_ENTERING: Final = frozenset({"tensor", "as_tensor", "FloatTensor", "from_numpy"})
_PASSING: Final = frozenset({
    "cpu", "cuda", "to", "float", "double", "mean", "sum", "clone", "squeeze", "requires_grad_",
})  # fmt: skip
_HOOKS: Final = frozenset({"training_step", "compute_loss"})  # of libraries that call backward
_MAX_DEPTH: Final = 8
_MAX_SUSPECTS: Final = 16


@dataclass(frozen=True)
class Suspect:
    """A term of a sum that the source turns into a number.

    Attributes:
        first, last: the lines of that operation.
        term: its code.
        loss: the code of what backward is called on.
        factors: what the term is multiplied by.
        is_direct: it is turned into a number within the sum.
    """

    first: int
    last: int
    term: str
    loss: str
    factors: tuple[ast.expr, ...]
    is_direct: bool


@dataclass(frozen=True)
class _Place:
    """A place in a sum: how it was reached."""

    loss: str
    scope: ast.AST
    until: int
    factors: tuple[ast.expr, ...] = ()
    is_added: bool = False
    is_direct: bool = True
    depth: int = 0
    names: frozenset[str] = frozenset()


@dataclass
class _Reader:
    tree: ast.Module
    found: list[Suspect] = field(default_factory=list)

    def read(self, node: ast.expr, at: _Place) -> None:
        """Collect the suspects below an expression of a sum."""
        if at.depth > _MAX_DEPTH or len(self.found) >= _MAX_SUSPECTS:
            return
        if (inner := _made_number(node)) is not None:
            self._note(node, inner, at)
        elif isinstance(node, ast.BinOp):
            self._read_operation(node, at)
        elif isinstance(node, ast.UnaryOp):
            self.read(node.operand, at)
        elif isinstance(node, ast.Name):
            self._read_name(node.id, at)
        elif isinstance(node, ast.Call):
            self._read_call(node, at)

    def _note(self, node: ast.expr, inner: ast.expr, at: _Place) -> None:
        is_constant_trick = isinstance(inner, ast.BinOp) or _is_peak(inner)
        if at.is_added and not is_constant_trick and not at.names & _names_in(inner):
            last = node.end_lineno or node.lineno
            self.found.append(
                Suspect(node.lineno, last, ast.unparse(node), at.loss, at.factors, at.is_direct)
            )

    def _read_operation(self, node: ast.BinOp, at: _Place) -> None:
        if isinstance(node.op, (ast.Add, ast.Sub)):
            for side in (node.left, node.right):
                self.read(side, _to(at, is_added=True))
        elif isinstance(node.op, (ast.Mult, ast.Div)):
            numerators, others = _factors_of(node)
            for idx, one in enumerate(numerators):
                rest = (*numerators[:idx], *numerators[idx + 1 :], *others)
                if not any(isinstance(other, ast.Call) for other in rest):
                    self.read(one, _to(at, factors=rest))

    def _read_name(self, name: str, at: _Place) -> None:
        if name in at.names:
            return
        values = list(_assigned(at.scope, name, at.until))
        if at.names and len(values) > 1 and at.is_added:
            return  # a number in one case only
        if at.is_added and _num_loads(at.scope, name) > 1:
            return  # also elsewhere, as the peak that is subtracted and added again
        if at.is_added and any(self._may_vary(factor, at) for factor in at.factors):
            return
        below = _to(at, is_direct=at.is_direct and not at.is_added, name=name)
        for value, is_added in values:
            self.read(value, _to(below, is_added=is_added))

    def _may_vary(self, factor: ast.expr, at: _Place) -> bool:
        """Return whether a factor may be another one by the time of the sum."""
        names = [one for one in ast.walk(factor) if isinstance(one, ast.Name)]
        values = [v for one in names for v, _ in _assigned(at.scope, one.id, 1 << 30)]
        return any(not isinstance(value, ast.Constant) for value in values)

    def _read_call(self, node: ast.Call, at: _Place) -> None:
        function, args = node.func, node.args
        name = function.attr if isinstance(function, ast.Attribute) else ""
        if name in ("scale", "stack") or (isinstance(function, ast.Name) and function.id == "sum"):
            for one in args[:1]:
                if isinstance(one, (ast.List, ast.Tuple)):
                    for part in one.elts:
                        self.read(part, _to(at, is_added=True))
                elif name == "scale":
                    self.read(one, at)
        elif name in _PASSING and isinstance(function, ast.Attribute) and not args:
            self.read(function.value, at)
        else:
            called = name or (function.id if isinstance(function, ast.Name) else "")
            for one in self._functions(called):
                place = _Place(at.loss, one, 1 << 30, at.factors, at.is_added, True, at.depth + 1)
                for value in _returned(one):
                    self.read(value, place)

    def _functions(self, name: str) -> Iterator[ast.AST]:
        """Yield the functions of the file that a call may reach, such as `forward` of a loss."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                yield node
        kinds = {
            value.func.id
            for value, _ in _assigned(self.tree, name, 1 << 30)
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)
        }
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef) and node.name in kinds:
                for one in node.body:
                    if isinstance(one, ast.FunctionDef) and one.name == "forward":
                        yield one


def suspects(source: str, line: int) -> list[Suspect]:
    """Return the terms of a sum that its source turns into numbers.

    Args:
        line: where backward is called, or where a library that calls it is.
    """
    tree = ast.parse(source)
    reader = _Reader(tree)
    calls = [one for one in ast.walk(tree) if _is_backward(one, line)]
    for call in calls:
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Attribute)
        scope = _scope_of(tree, call)
        for root in (call.func.value, *call.args[:1]):
            reader.read(root, _Place(ast.unparse(root), scope, line))
    if not calls:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in _HOOKS:
                for root in _returned(node):
                    reader.read(root, _Place(ast.unparse(root), node, 1 << 30))
    return reader.found


def _to(
    at: _Place,
    *,
    factors: tuple[ast.expr, ...] = (),
    is_added: bool = False,
    is_direct: bool = True,
    name: str | None = None,
) -> _Place:
    return _Place(
        at.loss,
        at.scope,
        at.until,
        (*at.factors, *factors),
        at.is_added or is_added,
        at.is_direct and is_direct,
        at.depth + 1,
        at.names if name is None else at.names | {name},
    )


def _is_backward(node: ast.AST, line: int) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("backward", "manual_backward")
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    )


def _scope_of(tree: ast.Module, inner: ast.AST) -> ast.AST:
    """Return the innermost function that contains a node, or the module."""
    found: ast.AST = tree
    for node in ast.walk(tree):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function and any(one is inner for one in ast.walk(node)):
            found = node  # walk goes from outer to inner ones
    return found


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions within it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))


def _assigned(scope: ast.AST, name: str, until: int) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the values that a name receives up to a line, and whether they are added to it."""
    for node in _own(scope):
        if getattr(node, "lineno", 0) > until:
            continue
        if isinstance(node, ast.Assign):
            is_it = any(_is_name(target, name) for target in node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
            is_it = _is_name(node.target, name)
        else:
            continue
        is_added = isinstance(node, ast.AugAssign)
        is_other = is_added and not isinstance(node.op, (ast.Add, ast.Sub))
        if is_it and node.value is not None and not is_other:
            yield node.value, is_added


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _num_loads(scope: ast.AST, name: str) -> int:
    """Count where a name is used in arithmetic."""
    sums = [one for one in _own(scope) if isinstance(one, ast.BinOp)]
    return len(
        {
            (one.lineno, one.col_offset)
            for operation in sums
            for one in ast.walk(operation)
            if isinstance(one, ast.Name) and one.id == name
        }
    )


def _returned(function: ast.AST) -> Iterator[ast.expr]:
    for node in _own(function):
        if isinstance(node, ast.Return) and node.value is not None:
            value = node.value
            if isinstance(value, ast.Dict):
                keys = [key.value if isinstance(key, ast.Constant) else "" for key in value.keys]
                if "loss" not in keys:
                    continue
                value = value.values[keys.index("loss")]
            yield value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value


def _factors_of(node: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """Split a product and quotient into numerators and denominators."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        above, below = _factors_of(node.left)
        other_above, other_below = _factors_of(node.right)
        if isinstance(node.op, ast.Div):
            other_above, other_below = other_below, other_above
        return above + other_above, below + other_below
    return [node], []


def _made_number(node: ast.expr) -> ast.expr | None:
    """Return what an expression turns into a number; None if it does not."""
    is_made = False
    for _ in range(_MAX_DEPTH):
        inner, leaves = _step_inwards(node)
        if inner is None:
            break
        node, is_made = inner, is_made or leaves
    return node if is_made else None


def _step_inwards(node: ast.expr) -> tuple[ast.expr | None, bool]:
    """Return what an operation is applied to, and whether its result has no graph."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value, True
    if not isinstance(node, ast.Call):
        return None, False
    function, given = node.func, node.args[0] if node.args else None
    if isinstance(function, ast.Name):
        return (given, True) if function.id == "float" else (None, False)
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if name in _ENTERING and given is not None:
        is_one = isinstance(given, (ast.List, ast.Tuple)) and len(given.elts) == 1
        return (given.elts[0] if is_one else given), True  # type: ignore[attr-defined]
    if name not in _LEAVING and name not in _PASSING:
        return None, False
    assert isinstance(function, ast.Attribute)
    return function.value, name in _LEAVING


def _is_peak(node: ast.expr) -> bool:
    """Return whether it is a maximum, which is subtracted for the sake of rounding."""
    names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return bool(names & {"max", "amax", "min", "amin"})


def _names_in(node: ast.expr) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}

"""Read the sum that backward is called on from a script's source, and its terms made to numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LEAVING: Final = frozenset({"item", "tolist", "numpy", "detach"})
_ENTERING: Final = frozenset({"tensor", "as_tensor", "FloatTensor", "from_numpy"})
_PASSING: Final = frozenset({
    "cpu", "cuda", "to", "float", "double", "mean", "sum", "clone", "squeeze", "requires_grad_",
})  # fmt: skip
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_ROOT: Final = re.compile(r"(\w+)\.backward\(|backward\(\s*(\w+)")
_MADE: Final = re.compile(r"\.(item|detach|numpy|tolist)\(|\bfloat\(|\.data\b|[tT]ensor\(")
_GIVEN: Final = re.compile(r"\s*(\w+)\s*(?::[^=]+)?([-+*/]?=)(?!=)(.*)")
_END: Final = 1 << 30  # any line
_HOOKS: Final = frozenset({"training_step", "compute_loss"})  # of libraries that call backward
_OTHER: Final = (ast.Mult, ast.Div, ast.Pow, ast.MatMult, ast.Mod, ast.FloorDiv)
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


class _Reader:
    """Reads sums in one file.

    Attributes:
        functions: its functions and the `forward` of its classes, by name of function or class.
        calls: its calls of backward, and the innermost function that contains each.
        kinds: the classes or functions whose results are assigned to a name.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[Suspect] = []
        self.functions: dict[str, list[ast.AST]] = {}
        self.calls: list[tuple[ast.Call, ast.AST]] = []
        self.kinds: dict[str, str] = {}
        self._values: dict[int, dict[str, list[tuple[ast.expr, bool, int]]]] = {}
        stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
        while stack:
            node, scope = stack.pop()
            self._index(node, scope)
            inner = node if isinstance(node, _FUNCTIONS) else scope
            stack.extend((child, inner) for child in ast.iter_child_nodes(node))

    def _index(self, node: ast.AST, scope: ast.AST) -> None:
        if isinstance(node, _FUNCTIONS):
            self.functions.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.ClassDef):
            own = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "forward"]
            self.functions.setdefault(node.name, []).extend(own)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("backward", "manual_backward"):
                self.calls.append((node, scope))
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
            self._index_value(node, scope)

    def _index_value(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: ast.AST
    ) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        operation = node.op if isinstance(node, ast.AugAssign) else None
        value = node.value
        for one in targets:
            name = one.id if isinstance(one, ast.Name) else getattr(one, "attr", "")
            if value is None or not name or isinstance(operation, _OTHER):
                continue
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                self.kinds[name] = value.func.id
            if isinstance(one, ast.Name):
                known = self._values.setdefault(id(scope), {}).setdefault(name, [])
                known.append((value, operation is not None, node.lineno))

    def _assigned(self, scope: ast.AST, name: str, until: int) -> list[tuple[ast.expr, bool]]:
        """Return the values that a name receives up to a line, and whether they are added."""
        known = self._values.get(id(scope), {}).get(name, [])
        return [(value, is_added) for value, is_added, line in known if line <= until]

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
        values = self._assigned(at.scope, name, at.until)
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
        values = [v for one in names for v, _ in self._assigned(at.scope, one.id, _END)]
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
            called = self.kinds.get(called, called)
            for scope in self.functions.get(called, ())[:4]:
                place = _Place(at.loss, scope, _END, at.factors, at.is_added, True, at.depth + 1)
                for value in _returned(scope):
                    self.read(value, place)


def suspects(source: str, line: int) -> list[Suspect]:
    """Return the terms of a sum that its source turns into numbers.

    Args:
        line: where backward is called, or where a library that calls it is.
    """
    if not _may_have(source):
        return []
    reader = _Reader(ast.parse(source))
    calls = [(c, scope) for c, scope in reader.calls if c.lineno <= line <= (c.end_lineno or 0)]
    for call, scope in calls:
        assert isinstance(call.func, ast.Attribute)
        for root in (call.func.value, *call.args[:1]):
            reader.read(root, _Place(ast.unparse(root), scope, line))
    for name in () if calls else _HOOKS:
        for function in reader.functions.get(name, ()):
            for root in _returned(function):
                reader.read(root, _Place(ast.unparse(root), function, _END))
    return reader.found


def _may_have(source: str) -> bool:
    """Return whether any line may turn a term into a number, without parsing the source."""
    roots = {name for pair in _ROOT.findall(source) for name in pair if name}
    for line in source.splitlines():
        if _MADE.search(line) is None:
            continue
        given = _GIVEN.match(line)
        if given is None:
            if "+" in line or "-" in line or "sum(" in line or "stack(" in line:
                return True
            continue
        name, sign, value = given.groups()
        if sign != "=":
            is_summed = name in roots
        else:
            name = re.escape(name)
            is_summed = re.search(r"[+-]|\b(sum|stack)\(", value) is not None or (
                re.search(rf"[-+*/]\s*{name}\b|\b{name}\s*[-+*/]", source) is not None
            )
        if is_summed:
            return True
    return False


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


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions within it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))


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

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
_MAX_SOURCES: Final = 32


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
class Summand:
    """A call whose result is added to what backward is called on, or is that itself.

    Attributes:
        end: the line and column at which it ends.
        code: the whole of it.
        loss: the code of what backward is called on.
        factors: what it is multiplied by.
    """

    end: tuple[int, int]
    code: str
    loss: str
    factors: tuple[ast.expr, ...]
    is_added: bool


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
    """Reads sums in one file: terms that are turned into numbers, or all that are calls.

    Attributes:
        functions: its functions and the `forward` of its classes, by name of function or class.
        calls: its calls of backward, and the innermost function that contains each.
        kinds: the classes or functions whose results are assigned to a name.
    """

    def __init__(self, tree: ast.Module, *, reads_calls: bool = False) -> None:
        self.found: list[Suspect] = []
        self.summands: list[Summand] = []
        self._reads_calls = reads_calls
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
        for target in targets:
            one = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
            if one is not target and not isinstance(value, ast.Call):
                continue  # of what a function returns, the first is the loss
            name = one.id if isinstance(one, ast.Name) else getattr(one, "attr", "")
            if value is None or not name or isinstance(operation, _OTHER):
                continue
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                self.kinds[name] = value.func.id
            if isinstance(one, ast.Name):
                known = self._values.setdefault(id(scope), {}).setdefault(name, [])
                known.append((value, operation is not None, node.lineno))

    def assigned(self, scope: ast.AST, name: str, until: int) -> list[tuple[ast.expr, bool]]:
        """Return the values that a name receives up to a line, and whether they are added."""
        known = self._values.get(id(scope), {}).get(name, [])
        return [(value, is_added) for value, is_added, line in known if line <= until]

    def read(self, node: ast.expr, at: _Place) -> None:
        """Collect the suspects below an expression of a sum."""
        if at.depth > _MAX_DEPTH or len(self.found) + len(self.summands) >= _MAX_SUSPECTS:
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
        if self._reads_calls:
            return
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
        values = self.assigned(at.scope, name, at.until)
        if at.is_added and not self._reads_calls and self._is_uncertain(name, len(values), at):
            return
        below = _to(at, is_direct=at.is_direct and not at.is_added, name=name)
        for value, is_added in values:
            self.read(value, _to(below, is_added=is_added))

    def _is_uncertain(self, name: str, num_values: int, at: _Place) -> bool:
        if at.names and num_values > 1:
            return True  # a number in one case only
        if _num_loads(at.scope, name) > 1:
            return True  # also elsewhere, as the peak that is subtracted and added again
        return any(self._may_vary(factor, at) for factor in at.factors)

    def _may_vary(self, factor: ast.expr, at: _Place) -> bool:
        """Return whether a factor may be another one by the time of the sum."""
        names = [one for one in ast.walk(factor) if isinstance(one, ast.Name)]
        values = [v for one in names for v, _ in self.assigned(at.scope, one.id, _END)]
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
            scopes = self.functions.get(called, ())
            if self._reads_calls and not scopes:
                self._read_summand(node, at)
            for scope in scopes[:4]:
                place = _Place(at.loss, scope, _END, at.factors, at.is_added, True, at.depth + 1)
                for value in _returned(scope):
                    self.read(value, place)

    def _read_summand(self, node: ast.Call, at: _Place) -> None:
        function = node.func
        if isinstance(function, ast.Attribute) and function.attr in ("mean", "sum"):
            self.read(function.value, at)  # over some dimensions
            return
        end = node.end_lineno or 0, node.end_col_offset or 0
        self.summands.append(
            Summand(end, ast.unparse(node), at.loss, at.factors, is_added=at.is_added)
        )


def _read_at(reader: _Reader, line: int) -> None:
    """Read the sums that backward is called on in a line, or that a library calls it on there."""
    calls = [(c, scope) for c, scope in reader.calls if c.lineno <= line <= (c.end_lineno or 0)]
    for call, scope in calls:
        assert isinstance(call.func, ast.Attribute)
        for root in (call.func.value, *call.args[:1]):
            reader.read(root, _Place(ast.unparse(root), scope, line))
    for name in () if calls else _HOOKS:
        for function in reader.functions.get(name, ()):
            for root in _returned(function):
                reader.read(root, _Place(ast.unparse(root), function, _END))


def summands(tree: ast.Module, line: int) -> list[Summand]:
    """Return the calls that are added up to what backward is called on in a line."""
    reader = _Reader(tree, reads_calls=True)
    _read_at(reader, line)
    return reader.summands


class Sources:
    """Reads where the arguments of a call come from, within its function."""

    def __init__(self, tree: ast.Module) -> None:
        self._reader = _Reader(tree)
        self._calls: dict[tuple[int, int], tuple[ast.Call, ast.AST]] = {}
        self._without: list[tuple[int, int]] = []
        stack: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
        while stack:
            node, scope = stack.pop()
            if isinstance(node, ast.Call):
                self._calls[node.end_lineno or 0, node.end_col_offset or 0] = node, scope
            elif isinstance(node, (ast.With, ast.AsyncWith)) and _is_without_graph(node):
                self._without.append((node.lineno, node.end_lineno or 0))
            inner = node if isinstance(node, _FUNCTIONS) else scope
            stack.extend((child, inner) for child in ast.iter_child_nodes(node))

    def of_call(self, end: tuple[int, int]) -> list[tuple[ast.expr, bool]]:
        """Return the expressions that the two arguments of a loss are computed from.

        Each comes with whether it is assigned under `torch.no_grad()`.

        Args:
            end: where the call ends: line and column.
        """
        call, scope = self._calls.get(end, (None, None))
        if call is None or scope is None:
            return []
        named = [word.value for word in call.keywords if word.arg in ("input", "target")]
        found: list[tuple[ast.expr, bool]] = []
        known: set[str] = set()
        stack = [(one, 0) for one in (*call.args[:2], *named)]
        while stack and len(found) < _MAX_SOURCES:
            value, depth = stack.pop()
            is_without = any(first <= value.lineno <= last for first, last in self._without)
            found.append((value, is_without))
            for name in _names_in(value) - known if depth < _MAX_DEPTH else ():
                known.add(name)
                values = self._reader.assigned(scope, name, call.lineno)
                stack += [(one, depth + 1) for one, _ in values]
        return found


def _is_without_graph(node: ast.With | ast.AsyncWith) -> bool:
    calls = [one.context_expr for one in node.items if isinstance(one.context_expr, ast.Call)]
    names = [getattr(one.func, "attr", getattr(one.func, "id", "")) for one in calls]
    return any(name in ("no_grad", "inference_mode") for name in names)


def suspects(source: str, line: int) -> list[Suspect]:
    """Return the terms of a sum that its source turns into numbers.

    Args:
        line: where backward is called, or where a library that calls it is.
    """
    if not _may_have(source):
        return []
    reader = _Reader(ast.parse(source))
    _read_at(reader, line)
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

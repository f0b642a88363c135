"""Lines that compute what only the `if` after them uses, such as an accuracy that it prints."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from stepladder.scripts.flow import aliases_in, changed_in, flow_of

_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = {
    *("__import__", "compile", "delattr", "eval", "exec", "exit", "globals", "input", "locals"),
    *("next", "open", "print", "quit", "setattr", "super", "vars"),
}
"""Functions of Python whose calls are more than what they return."""
_METHODS: Final = {
    *("sleep", "wait"),
    *("backward", "load_state_dict", "step", "zero_grad", "register_buffer", "synchronize"),
    *("manual_seed", "manual_seed_all", "seed", "set_rng_state", "setstate", "set_state"),
    *("add_figure", "add_histogram", "add_image", "add_scalar", "add_scalars", "add_text"),
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "all_to_all"),
    *("barrier", "broadcast", "gather_for_metrics", "reduce_scatter", "reduce_scatter_tensor"),
    *("close", "commit", "dump", "execute", "flush", "put", "save", "savefig", "savetxt", "savez"),
    *("send", "set_description", "set_postfix", "write", "writelines", "writerow"),
}
"""Methods, or functions of modules, whose calls are more than what they return."""
_CHANGES: Final = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "fill", "insert", "pop"),
    *("popitem", "popleft", "remove", "reset", "reverse", "setdefault", "sort", "update"),
}
"""Methods that change their object."""
_TESTS: Final = {"bool", "int", "isinstance", "len"}
_OF_PROCESS: Final = re.compile(r"rank|main_?process|is_main|master", re.IGNORECASE)
"""A name that is another in each process; all processes have to evaluate together."""
_FIXED: Final = (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete)


@dataclass(frozen=True)
class MetricLines:
    """Assignments, and the `if` after them that alone uses what they assign.

    Attributes:
        line, column: of the `if`; lines from 1, columns in bytes from 0.
        end_line, end_column: where it ends.
        num: statements before it.
        first_line: of the first of these.
    """

    line: int
    column: int
    end_line: int
    end_column: int
    num: int
    first_line: int

    @property
    def start(self) -> tuple[int, int]:
        """Line and column."""
        return self.line, self.column


def metric_lines(tree: ast.Module) -> list[MetricLines]:
    """Return such lines of a file."""
    found = []
    for scope in (tree, *(one for one in ast.walk(tree) if isinstance(one, _Scope))):
        for body in _bodies(scope):
            for at, node in enumerate(body):
                num = _num_before(body[:at], node, scope) if isinstance(node, ast.If) else 0
                if num:
                    found.append(_lines(body[at - num], node, num))
    return list(dict.fromkeys(found))


def _lines(first: ast.stmt, node: ast.stmt, num: int) -> MetricLines:
    return MetricLines(
        line=node.lineno,
        column=node.col_offset,
        end_line=node.end_lineno or node.lineno,
        end_column=node.end_col_offset or 0,
        num=num,
        first_line=first.lineno,
    )


def _bodies(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a function or file, but for those of functions and classes in it."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(scope, name, None)
        if isinstance(block, list):
            yield block
            for node in block:
                if not isinstance(node, (*_Scope.__args__, ast.ClassDef)):
                    yield from _bodies(node)
    for handler in getattr(scope, "handlers", ()):
        yield from _bodies(handler)


def _num_before(before: Sequence[ast.stmt], node: ast.If, scope: _Scope) -> int:
    """Return how many statements before an `if` only it uses."""
    if not _is_plain_test(node.test):
        return 0
    num = 0
    for statement in reversed(before):
        if not _is_assignment(statement) or why_impure([statement], is_function=False):
            break
        num += 1
    while num and not _is_only_used(before[len(before) - num :], node, scope):
        num -= 1
    if num and num < len(before) and before[-num - 1].end_lineno == before[-num].lineno:
        return 0  # two statements in one line
    return num


def _is_assignment(node: ast.stmt) -> bool:
    """Return whether a line, alone, assigns what is computed to variables."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return False
    target = node.targets[0]
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    computes = any(isinstance(one, (ast.Call, ast.BinOp)) for one in ast.walk(node.value))
    return computes and all(isinstance(name, ast.Name) for name in names)


def _is_plain_test(test: ast.expr) -> bool:
    """Return whether an `if` only compares, and does so alike in all processes."""
    names = [one.id for one in ast.walk(test) if isinstance(one, ast.Name)]
    names += [one.attr for one in ast.walk(test) if isinstance(one, ast.Attribute)]
    if any(_OF_PROCESS.search(name) for name in names):
        return False
    calls = (one for one in ast.walk(test) if isinstance(one, (ast.Call, ast.NamedExpr, ast.Await)))
    return all(
        isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id in _TESTS
        for one in calls
    )


def _is_only_used(lines: Sequence[ast.stmt], node: ast.If, scope: _Scope) -> bool:
    flow = flow_of(lines)
    names = flow.bound.keys()
    starts = [one.lineno for one in (*lines, node)]
    if names & flow.needed or len({*starts}) < len(starts):
        return False
    inside = {id(one) for part in (*lines, *node.body) for one in ast.walk(part)}
    others = _names_outside(scope, inside, is_file=isinstance(scope, ast.Module))
    used = {one.id for one in others if isinstance(one.ctx, ast.Load)}
    sees_all = {one.id for one in others if one.id in ("locals", "vars", "exec", "eval")}
    shared = (one for one in ast.walk(scope) if isinstance(one, (ast.Global, ast.Nonlocal)))
    declared = {name for one in shared for name in one.names}
    return not names & (used | declared) and not sees_all


def _names_outside(node: ast.AST, inside: Collection[int], *, is_file: bool) -> list[ast.Name]:
    """Return the names of a function or file outside of some nodes, but for those local to others.

    Args:
        is_file: functions in it may have variables of these names.
    """
    found: list[ast.Name] = []
    for one in ast.iter_child_nodes(node):
        if id(one) in inside:
            continue
        inner = _names_outside(one, inside, is_file=is_file)
        if is_file and isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own = flow_of(one.body).bound.keys() | {arg.arg for arg in _arguments(one)}
            inner = [name for name in inner if name.id not in own]
        found += inner
        if isinstance(one, ast.Name):
            found.append(one)
    return found


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    args = function.args
    more = [one for one in (args.vararg, args.kwarg) if one is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *more]


def why_impure(body: Sequence[ast.stmt], *, is_function: bool) -> str | None:
    """Return what statements do besides computing what they assign or return; None: nothing.

    Args:
        is_function: they are the body of a function, which may change objects that it makes.
    """
    nodes = [node for statement in body for node in ast.walk(statement)]
    fresh = _fresh(nodes) if is_function else set[str]()
    for node in nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, _FIXED):
            return f"line {line} does more than compute"
        match node:
            case ast.AugAssign(target=ast.Name(id=name)) if name not in fresh:
                return f"line {line} may change {name} in place"
        if isinstance(node, ast.Call) and (called := _acting(node, fresh)):
            return f"line {line} calls {called}"
    others = changed_in(nodes) - fresh
    return f"{min(others) or 'an object'} is changed" if others else None


def _fresh(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of objects that statements make themselves."""
    made = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign)
        for one in node.targets
        for target in (one.elts if isinstance(one, ast.Tuple) else [one])
        if isinstance(target, ast.Name)
    }
    return made - aliases_in(nodes)


def _acting(call: ast.Call, fresh: Collection[str]) -> str | None:
    """Return the function that a call does more with than to compute; None: it does not."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id if function.id in _FUNCTIONS | _METHODS else None
    if not isinstance(function, ast.Attribute):
        return None
    name = function.attr
    is_in_place = name.endswith("_") and not name.startswith("_")
    is_of_fresh = isinstance(function.value, ast.Name) and function.value.id in fresh
    if name in _METHODS or is_in_place or (name in _CHANGES and not is_of_fresh):
        return name
    return None


def moved(tree: ast.Module, chosen: Iterable[tuple[int, int]]) -> ast.Module:
    """Return a file in which such lines are the first ones of their `if`.

    Args:
        chosen: lines and columns of the `if`.
    """
    wanted = set(chosen)

    def move(body: list[ast.stmt], at: int, num: int) -> None:
        node = body[at]
        assert isinstance(node, ast.If)
        node.body[:0] = body[at - num : at]
        del body[at - num : at]

    return _changed(tree, move, [one for one in metric_lines(tree) if one.start in wanted])


def timed(tree: ast.Module, name: str) -> ast.Module:
    """Return a file that calls methods of a global object around such lines.

    These are `begin(idx)`, `end(idx)`, and `used(idx)` where the `if` uses them; the index is that
    in `metric_lines`.
    """
    lines = metric_lines(tree)
    found = [one.start for one in lines]

    def call(method: str, at: int, like: ast.stmt) -> ast.stmt:
        node = ast.parse(f"{name}.{method}({at})").body[0]
        return ast.fix_missing_locations(_located(node, like))

    def around(body: list[ast.stmt], at: int, num: int) -> None:
        node = body[at]
        assert isinstance(node, ast.If)
        idx = found.index((node.lineno, node.col_offset))
        node.body.insert(0, call("used", idx, node.body[0]))
        body.insert(at, call("end", idx, node))
        body.insert(at - num, call("begin", idx, body[at - num]))

    return _changed(tree, around, lines)


def _located(node: ast.stmt, like: ast.stmt) -> ast.stmt:
    for one in ast.walk(node):
        if isinstance(one, (ast.stmt, ast.expr)):
            ast.copy_location(one, like)
    return node


def _changed(
    tree: ast.Module,
    change: Callable[[list[ast.stmt], int, int], None],
    lines: Iterable[MetricLines],
) -> ast.Module:
    chosen = {one.start: one.num for one in lines}
    tree = copy.deepcopy(tree)
    for scope in [tree, *(one for one in ast.walk(tree) if isinstance(one, _Scope))]:
        for body in list(_bodies(scope)):
            for node in list(body):
                num = chosen.pop((node.lineno, node.col_offset), 0)
                if num and isinstance(node, ast.If):
                    change(body, body.index(node), num)
    return tree

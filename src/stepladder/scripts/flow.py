"""Which names statements assign on every path, and which they need from before."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_Known = set[str] | None  # None: this point is never reached


@dataclass(kw_only=True)
class Flow:
    """The names of some statements.

    Attributes:
        bound: assigned on some path, in order.
        assigned: assigned, or given, on every path through all statements.
        needed: used where they are not surely assigned yet.
    """

    bound: dict[str, None] = field(default_factory=dict)
    assigned: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)


def flow_of(statements: Sequence[ast.stmt], given: Iterable[str] = ()) -> Flow:
    """Follow the names through statements of a function.

    Args:
        given: names that are assigned before.
    """
    flow = Flow()
    known = _Paths(flow).block(statements, set(given))
    flow.assigned = set(flow.bound) if known is None else known
    return flow


def changed_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names whose attributes or items are assigned or deleted."""
    found = set()
    for node in nodes:
        is_part = isinstance(node, (ast.Attribute, ast.Subscript))
        if is_part and not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
            inner: ast.AST = node
            while isinstance(inner, (ast.Attribute, ast.Subscript)):
                inner = inner.value
            found.add(inner.id if isinstance(inner, ast.Name) else "")
    return found


def aliases_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are assigned what an object holds, rather than a new object."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node.value, (ast.Name, ast.Attribute, ast.Subscript)):
                found.update(name for target in targets for name in _names_in(target))
    return found


def _names_in(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


class _Paths:
    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    def block(self, statements: Iterable[ast.stmt], known: _Known) -> _Known:
        """Return the names that are assigned after some statements."""
        for statement in statements:
            if known is None:
                return None
            known = self._after(statement, known)
        return known

    def _after(self, node: ast.stmt, known: set[str]) -> _Known:
        match node:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                self._uses(node, known)
                return None
            case ast.If():
                self._uses(node.test, known)
                after = _both(self.block(node.body, {*known}), self.block(node.orelse, {*known}))
            case ast.For() | ast.AsyncFor():
                self._uses(node.iter, known)
                self.block(node.body, known | self._binds(node.target, known))
                self.block(node.orelse, {*known})
                after = known  # there may be nothing to iterate over
            case ast.While():
                self._uses(node.test, known)
                self.block(node.body, {*known})
                self.block(node.orelse, {*known})
                after = known
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._uses(item.context_expr, known)
                    if item.optional_vars is not None:
                        known |= self._binds(item.optional_vars, known)
                after = self.block(node.body, known)
            case ast.Try() | ast.TryStar():
                after = self._after_try(node, known)
            case ast.Match():
                after = self._after_match(node, known)
            case _:
                after = known | self._bound_by(node, known)
        return after

    def _bound_by(self, node: ast.stmt, known: set[str]) -> set[str]:
        """Return the names that a simple statement, or a definition, assigns."""
        found: set[str] = set()
        match node:
            case ast.Assign():
                self._uses(node.value, known)
                found = found.union(*(self._binds(target, known) for target in node.targets))
            case ast.AugAssign():
                self._uses(node.value, known)
                if isinstance(node.target, ast.Name):
                    self._need([node.target.id], known)
                found = self._binds(node.target, known)
            case ast.AnnAssign():
                if node.value is not None:
                    self._uses(node.value, known)
                    found = self._binds(node.target, known)
            case ast.Import() | ast.ImportFrom():
                names = (one.asname or one.name.partition(".")[0] for one in node.names)
                found = self._bind(names)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._uses(node, known)
                found = self._bind([node.name])
            case _:
                self._uses(node, known)
        return found

    def _after_try(self, node: ast.Try | ast.TryStar, known: set[str]) -> _Known:
        after = self.block(node.orelse, self.block(node.body, {*known}))
        for handler in node.handlers:
            name = {handler.name} if handler.name else set()
            self._bind(name)
            if handler.type is not None:
                self._uses(handler.type, known)
            caught = self.block(handler.body, known | name)
            after = _both(after, None if caught is None else caught - name)
        last = self.block(node.finalbody, {*known})
        return None if last is None or after is None else after | last

    def _after_match(self, node: ast.Match, known: set[str]) -> _Known:
        self._uses(node.subject, known)
        after: _Known = None
        is_whole = False
        for case in node.cases:
            names = set(_captured(case.pattern))
            self._bind(names)
            if case.guard is not None:
                self._uses(case.guard, known | names)
            after = _both(after, self.block(case.body, known | names))
            is_any = isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            is_whole = is_whole or (is_any and case.guard is None)
        return after if is_whole else _both(after, {*known})

    def _binds(self, target: ast.expr, known: set[str]) -> set[str]:
        """Return the names that an assignment to a target assigns."""
        match target:
            case ast.Name():
                return self._bind([target.id])
            case ast.Tuple() | ast.List():
                return set().union(*(self._binds(one, known) for one in target.elts))
            case ast.Starred():
                return self._binds(target.value, known)
            case _:
                self._uses(target, known)
                return set()

    def _bind(self, names: Iterable[str]) -> set[str]:
        found = list(names)
        self._flow.bound.update(dict.fromkeys(found))
        return set(found)

    def _uses(self, node: ast.AST, known: set[str]) -> None:
        walrus = [one.target for one in ast.walk(node) if isinstance(one, ast.NamedExpr)]
        self._bind(one.id for one in walrus)  # on some path
        self._need(_used_in(node), known)

    def _need(self, names: Iterable[str], known: set[str]) -> None:
        self._flow.needed.update(name for name in names if name not in known)


def _used_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that an expression or statement uses, or deletes, of those around it."""
    match node:
        case ast.Name():
            if not isinstance(node.ctx, ast.Store):
                yield node.id
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            own: set[str] = set()
            for part in node.generators:
                yield from (name for name in _used_in(part.iter) if name not in own)
                own |= {one.id for one in ast.walk(part.target) if isinstance(one, ast.Name)}
                inner = (name for one in part.ifs for name in _used_in(one))
                yield from (name for name in inner if name not in own)
            is_map = isinstance(node, ast.DictComp)
            values = [node.key, node.value] if is_map else [node.elt]  # type: ignore[union-attr]
            inner = (name for one in values for name in _used_in(one))
            yield from (name for name in inner if name not in own)
        case ast.Lambda():
            arguments = [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
            own = {one.arg for one in arguments}
            yield from _used_in(node.args)
            yield from (name for name in _used_in(node.body) if name not in own)
        case _:
            for one in ast.iter_child_nodes(node):
                yield from _used_in(one)


def _both(one: _Known, other: _Known) -> _Known:
    """Return what is assigned on both of two paths, of which one may never end."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _captured(pattern: ast.pattern) -> Iterator[str]:
    for node in ast.walk(pattern):
        name = None
        if isinstance(node, (ast.MatchAs, ast.MatchStar)):
            name = node.name
        elif isinstance(node, ast.MatchMapping):
            name = node.rest
        if name is not None:
            yield name
